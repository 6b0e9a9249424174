#include "plugin/recognizer/textbook.h"

namespace nv_norms {
Gradients GradientsOf(const Normalized& x, bool subtract_mean, const Numbers& dy,
                      const Numbers& gamma, const Dim& others, double count) {
  const Numbers& xhat = subtract_mean ? x.xhat : x.plain;
  const Numbers w = Zip(dy, gamma, Times);
  const Numbers along = MeanOver(Zip(w, xhat, Times), x.reduced);
  Numbers dx = w;
  if (subtract_mean) dx = Zip(dx, MeanOver(w, x.reduced), Minus);
  dx = Zip(dx, Zip(x.xhat, along, Times), Minus);
  const auto sum = [&](const Numbers& numbers) {
    return Map(MeanOver(numbers, others), [count](double v) { return v * count; });
  };
  return {Zip(dx, x.rstd, Times), sum(Zip(dy, xhat, Times)), sum(dy)};
}

}  // namespace nv_norms
