#include "plugin/recognizer/textbook.h"

namespace nv_norms {
namespace {

double Difference(double a, double b) { return a - b; }
double Product(double a, double b) { return a * b; }

}  // namespace

Gradients GradientsOf(const Normalized& x, bool subtract_mean, const Numbers& dy,
                      const Numbers& gamma, const Dim& others, double count) {
  const Numbers& xhat = subtract_mean ? x.xhat : x.plain;
  const Numbers w = Zip(dy, gamma, Product);
  const Numbers along = MeanOver(Zip(w, xhat, Product), x.reduced);
  Numbers dx = w;
  if (subtract_mean) dx = Zip(dx, MeanOver(w, x.reduced), Difference);
  dx = Zip(dx, Zip(x.xhat, along, Product), Difference);
  const auto sum = [&](const Numbers& numbers) {
    return Map(MeanOver(numbers, others), [count](double v) { return v * count; });
  };
  return {Zip(dx, x.rstd, Product), sum(Zip(dy, xhat, Product)), sum(dy)};
}

}  // namespace nv_norms
