#include "kernels/xla/call.h"

#include <cmath>
#include <iomanip>
#include <locale>
#include <sstream>

namespace nv_norms {
namespace xla_call {
namespace {

template <typename Field>
std::string Array(const Geometry& geometry, const Field& field) {
  std::string text = "array<i64";
  for (int i = 0; i < geometry.rank; ++i) {
    text += (i == 0 ? ": " : ", ") + std::to_string(static_cast<int64_t>(field(geometry.axes[i])));
  }
  return text + ">";
}

std::string GeometryText(const Geometry& geometry) {
  return "sizes = " + Array(geometry, [](const Axis& axis) { return axis.size; }) +
         ", reduced = " + Array(geometry, [](const Axis& axis) { return axis.reduced; }) +
         ", strides = " + Array(geometry, [](const Axis& axis) { return axis.param_stride; });
}

std::string FormulaText(Formula formula) {
  return "formula = " + std::to_string(static_cast<int>(formula)) + " : i64";
}

// ", name = value : f64"
Status Number(const char* name, double value, std::string* text) {
  if (!std::isfinite(value)) {
    return Status::InvalidArgument(std::string(name) + " is " + std::to_string(value) +
                                   ", expected a finite number");
  }
  std::ostringstream digits;
  digits.imbue(std::locale::classic());  // a program's own may have a comma
  digits << std::scientific << std::setprecision(17) << value;
  *text += std::string(", ") + name + " = " + digits.str() + " : f64";
  return Status();
}

std::string Flag(const char* name, bool value) {
  return std::string(", ") + name + (value ? " = true" : " = false");
}

Status ActivationText(const Activation& activation, std::string* text) {
  const Status status = Number("negative_slope", activation.negative_slope, text);
  *text += Flag("silu", activation.silu);
  return status;
}

}  // namespace

Status AttributesOf(const ForwardCall& call, std::string* text) {
  *text = "{" + FormulaText(call.problem.formula);
  Status status = Number("epsilon", call.problem.epsilon, text);
  if (status.ok()) status = ActivationText(call.problem.activation, text);
  *text += Flag("scale", call.scale) + Flag("offset", call.offset) + ", " +
           GeometryText(call.problem.geometry) + "}";
  return status;
}

Status AttributesOf(const BackwardCall& call, std::string* text) {
  *text = "{" + FormulaText(call.problem.formula);
  const Status status = ActivationText(call.problem.activation, text);
  *text += Flag("scale", call.scale) + Flag("offset", call.offset) + Flag("dx", call.dx) +
           Flag("dscale", call.dscale) + Flag("doffset", call.doffset) + ", " +
           GeometryText(call.problem.geometry) + "}";
  return status;
}

}  // namespace xla_call
}  // namespace nv_norms
