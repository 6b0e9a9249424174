#include "kernels/xla/call.h"

#include <cmath>
#include <cstdio>

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

std::string Flag(const char* name, bool value) {
  return std::string(", ") + name + (value ? " = true" : " = false");
}

}  // namespace

Status AttributesOf(const ForwardCall& call, std::string* text) {
  if (!std::isfinite(call.problem.epsilon)) {
    return Status::InvalidArgument("epsilon is " + std::to_string(call.problem.epsilon) +
                                   ", expected a finite number");
  }
  char epsilon[64];
  std::snprintf(epsilon, sizeof(epsilon), "%.17e", call.problem.epsilon);
  *text = "{" + FormulaText(call.problem.formula) + ", epsilon = " + epsilon + " : f64" +
          Flag("scale", call.scale) + Flag("offset", call.offset) + ", " +
          GeometryText(call.problem.geometry) + "}";
  return Status();
}

Status AttributesOf(const BackwardCall& call, std::string* text) {
  *text = "{" + FormulaText(call.problem.formula) + Flag("scale", call.scale) +
          Flag("dx", call.dx) + Flag("dscale", call.dscale) + Flag("doffset", call.doffset) + ", " +
          GeometryText(call.problem.geometry) + "}";
  return Status();
}

}  // namespace xla_call
}  // namespace nv_norms
