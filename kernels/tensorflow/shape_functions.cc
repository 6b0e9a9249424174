#include "kernels/tensorflow/shape_functions.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/geometry.h"
#include "tensorflow/core/framework/op.h"

namespace nv_norms {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// How many elements gamma and beta have.
struct Elements {
  DimensionHandle all;
  DimensionHandle shared;  // or so many
};

// gamma and beta may have any shape: only their number of elements matters.
absl::Status CheckElements(InferenceContext* c, int input, const char* name,
                           const Elements& expected) {
  const DimensionHandle elements = c->NumElements(c->input(input));
  const auto fits = [&](DimensionHandle wanted) {
    return !c->ValueKnown(wanted) || c->Value(elements) == c->Value(wanted);
  };
  if (!c->ValueKnown(elements) || fits(expected.all) || fits(expected.shared)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      name, " has shape ", c->DebugString(c->input(input)), ", expected ", c->Value(expected.all),
      " elements for x of shape ", c->DebugString(c->input(0))));
}

// The inputs scale and, if there may be one, offset; scale is number `input`.
absl::Status CheckParams(InferenceContext* c, int input, bool may_have_offset,
                         const Elements& expected) {
  int64_t num_scale;
  int64_t num_offset = 0;
  TF_RETURN_IF_ERROR(c->GetAttr("num_scale", &num_scale));
  if (may_have_offset) TF_RETURN_IF_ERROR(c->GetAttr("num_offset", &num_offset));
  if (num_scale > 1 || num_offset > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("at most one scale and one offset, got ", num_scale, " and ", num_offset));
  }
  if (num_scale == 1) TF_RETURN_IF_ERROR(CheckElements(c, input++, "scale", expected));
  if (num_offset == 1) TF_RETURN_IF_ERROR(CheckElements(c, input, "offset", expected));
  return absl::OkStatus();
}

// Splits x's axes into those that `axis` names and the others. False: the rank is unknown.
absl::Status SplitAxes(InferenceContext* c, ShapeHandle x, std::vector<DimensionHandle>* normalized,
                       std::vector<DimensionHandle>* kept, bool* known) {
  std::vector<int64_t> axis;
  TF_RETURN_IF_ERROR(c->GetAttr("axis", &axis));
  *known = c->RankKnown(x);
  if (!*known) return absl::OkStatus();
  std::vector<bool> reduced;
  const Status status = ResolveAxes(axis, c->Rank(x), &reduced);
  if (!status.ok()) return absl::InvalidArgumentError(status.message());
  for (int i = 0; i < c->Rank(x); ++i) {
    (reduced[i] ? normalized : kept)->push_back(c->Dim(x, i));
  }
  return absl::OkStatus();
}

absl::Status Product(InferenceContext* c, const std::vector<DimensionHandle>& dims,
                     DimensionHandle* out) {
  *out = c->MakeDim(1);
  for (DimensionHandle dim : dims) TF_RETURN_IF_ERROR(c->Multiply(*out, dim, out));
  return absl::OkStatus();
}

// Whether each sample has parameters of its own; then the first axis is not normalized (that the
// others are the last ones the kernels check).
absl::Status CheckSamples(InferenceContext* c, const std::vector<DimensionHandle>& kept,
                          bool* per_sample) {
  TF_RETURN_IF_ERROR(c->GetAttr("per_sample", per_sample));
  if (!*per_sample || !kept.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError("per_sample: expected an axis of x that is not normalized");
}

// [N, C] of x; unknown where the rank is.
absl::Status BatchAndChannels(InferenceContext* c, ShapeHandle x, int64_t groups,
                              DimensionHandle* batch, DimensionHandle* channels,
                              DimensionHandle* statistics) {
  // Each of its own: what is joined with one of them says nothing of the others.
  *batch = c->UnknownDim();
  *channels = c->UnknownDim();
  *statistics = c->UnknownDim();
  std::string data_format;
  TF_RETURN_IF_ERROR(c->GetAttr("data_format", &data_format));
  if (c->RankKnown(x)) {
    ShapeHandle unused;
    TF_RETURN_IF_ERROR(c->WithRankAtLeast(x, 2, &unused));
    *batch = c->Dim(x, 0);
    *channels = c->Dim(x, data_format == "N...C" ? -1 : 1);
  }
  if (groups == -1) {
    *statistics = *channels;
    return absl::OkStatus();
  }
  if (groups <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("groups is ", groups, ", expected 1 or more"));
  }
  if (c->ValueKnown(*channels) && c->Value(*channels) % groups != 0) {
    return absl::InvalidArgumentError(absl::StrCat(c->Value(*channels),
                                                   " channels cannot be split into ", groups,
                                                   " groups of the same size"));
  }
  *statistics = c->MakeDim(groups);
  return absl::OkStatus();
}

// y's batch, x's being `of_x`: where that is 1, or may be, a parameter of more samples tells, each
// of which has `count`.
absl::Status BatchOfY(InferenceContext* c, DimensionHandle of_x, DimensionHandle count,
                      DimensionHandle* batch) {
  bool per_sample;
  TF_RETURN_IF_ERROR(c->GetAttr("per_sample", &per_sample));
  *batch = of_x;
  if (!per_sample || (c->ValueKnown(of_x) && c->Value(of_x) != 1)) return absl::OkStatus();
  for (int i = 1; i < c->num_inputs(); ++i) {
    const DimensionHandle elements = c->NumElements(c->input(i));
    const bool known = c->ValueKnown(elements) && c->ValueKnown(count) && c->Value(count) > 0;
    if (known && c->Value(elements) == c->Value(count)) continue;
    if (!known) {
      *batch = c->UnknownDim();
    } else if (c->Value(elements) % c->Value(count) == 0) {
      *batch = c->MakeDim(c->Value(elements) / c->Value(count));
      break;
    }
  }
  return absl::OkStatus();
}

// The shape of the gradients of gamma and beta, and how many elements those have: of `dims`, of
// each sample if these have their own.
absl::Status ParamsOf(InferenceContext* c, DimensionHandle batch, std::vector<DimensionHandle> dims,
                      ShapeHandle* shape, Elements* elements) {
  bool per_sample;
  TF_RETURN_IF_ERROR(c->GetAttr("per_sample", &per_sample));
  TF_RETURN_IF_ERROR(Product(c, dims, &elements->shared));
  elements->all = elements->shared;
  if (per_sample) {
    TF_RETURN_IF_ERROR(c->Multiply(batch, elements->shared, &elements->all));
    dims.insert(dims.begin(), batch);
  }
  *shape = c->MakeShape(dims);
  return absl::OkStatus();
}

// Sets the outputs of a gradient op, each a list that is empty where it is not wanted.
absl::Status SetGradients(InferenceContext* c, ShapeHandle dx, ShapeHandle params) {
  const std::pair<const char*, ShapeHandle> outputs[] = {
      {"num_dx", dx}, {"num_dscale", params}, {"num_doffset", params}};
  int index = 0;
  for (const auto& [name, shape] : outputs) {
    int64_t count;
    TF_RETURN_IF_ERROR(c->GetAttr(name, &count));
    if (count > 1) {
      return absl::InvalidArgumentError(absl::StrCat(name, " is ", count, ", expected 0 or 1"));
    }
    if (count == 1) c->set_output(index++, shape);
  }
  return absl::OkStatus();
}

// dy is as x, but that it may have more samples than an x of one; `batch` is dy's.
absl::Status MergeSamples(InferenceContext* c, ShapeHandle* x, DimensionHandle* batch) {
  bool per_sample;
  TF_RETURN_IF_ERROR(c->GetAttr("per_sample", &per_sample));
  ShapeHandle dy = c->input(0);
  *x = c->input(1);
  *batch = c->UnknownDim();
  const auto may_be_one = [&](DimensionHandle dim) {
    return !c->ValueKnown(dim) || c->Value(dim) == 1;
  };
  if (c->RankKnown(dy) && c->Rank(dy) > 0) *batch = c->Dim(dy, 0);
  const bool may_be_larger = per_sample && c->RankKnown(*x) && c->RankKnown(dy) &&
                             c->Rank(*x) > 0 && c->Rank(dy) > 0 && may_be_one(c->Dim(*x, 0));
  if (may_be_larger) TF_RETURN_IF_ERROR(c->ReplaceDim(dy, 0, c->Dim(*x, 0), &dy));
  TF_RETURN_IF_ERROR(c->Merge(dy, *x, x));
  if (!may_be_larger && c->RankKnown(*x) && c->Rank(*x) > 0) *batch = c->Dim(*x, 0);
  return absl::OkStatus();
}

}  // namespace

absl::Status LayerNormShape(InferenceContext* c, bool with_mean) {
  ShapeHandle y = c->input(0);
  std::vector<DimensionHandle> normalized;
  std::vector<DimensionHandle> kept;
  bool known;
  TF_RETURN_IF_ERROR(SplitAxes(c, y, &normalized, &kept, &known));
  Elements elements = {c->UnknownDim(), c->UnknownDim()};
  ShapeHandle statistics = c->UnknownShape();
  if (known) {
    bool per_sample;
    TF_RETURN_IF_ERROR(CheckSamples(c, kept, &per_sample));
    DimensionHandle batch;
    if (per_sample) {
      DimensionHandle count;
      TF_RETURN_IF_ERROR(Product(c, normalized, &count));
      TF_RETURN_IF_ERROR(BatchOfY(c, kept[0], count, &batch));
      TF_RETURN_IF_ERROR(c->ReplaceDim(y, 0, batch, &y));
      kept[0] = batch;
    }
    ShapeHandle params;
    TF_RETURN_IF_ERROR(ParamsOf(c, batch, normalized, &params, &elements));
    statistics = c->MakeShape(kept);
  }
  c->set_output(0, y);
  TF_RETURN_IF_ERROR(CheckParams(c, 1, /*may_have_offset=*/true, elements));
  c->set_output(1, statistics);
  if (with_mean) c->set_output(2, statistics);
  return absl::OkStatus();
}

absl::Status GroupNormShape(InferenceContext* c, int64_t groups) {
  const ShapeHandle x = c->input(0);
  DimensionHandle of_x;
  DimensionHandle channels;
  DimensionHandle statistics;
  TF_RETURN_IF_ERROR(BatchAndChannels(c, x, groups, &of_x, &channels, &statistics));
  DimensionHandle batch;
  TF_RETURN_IF_ERROR(BatchOfY(c, of_x, channels, &batch));
  ShapeHandle y = x;
  if (c->RankKnown(x)) TF_RETURN_IF_ERROR(c->ReplaceDim(x, 0, batch, &y));
  c->set_output(0, y);
  ShapeHandle params;
  Elements elements;
  TF_RETURN_IF_ERROR(ParamsOf(c, batch, {channels}, &params, &elements));
  TF_RETURN_IF_ERROR(CheckParams(c, 1, /*may_have_offset=*/true, elements));
  c->set_output(1, c->Matrix(batch, statistics));
  c->set_output(2, c->Matrix(batch, statistics));
  return absl::OkStatus();
}

absl::Status LayerNormGradShape(InferenceContext* c, bool with_mean) {
  ShapeHandle x;
  DimensionHandle batch;
  TF_RETURN_IF_ERROR(MergeSamples(c, &x, &batch));
  std::vector<DimensionHandle> normalized;
  std::vector<DimensionHandle> kept;
  bool known;
  TF_RETURN_IF_ERROR(SplitAxes(c, x, &normalized, &kept, &known));
  Elements elements = {c->UnknownDim(), c->UnknownDim()};
  ShapeHandle params = c->UnknownShape();
  if (known) {
    bool per_sample;
    TF_RETURN_IF_ERROR(CheckSamples(c, kept, &per_sample));
    if (per_sample) kept[0] = batch;
    TF_RETURN_IF_ERROR(ParamsOf(c, batch, normalized, &params, &elements));
    ShapeHandle unused;
    const ShapeHandle statistics = c->MakeShape(kept);
    for (int i = 1; i <= (with_mean ? 2 : 1); ++i) {
      TF_RETURN_IF_ERROR(c->Merge(statistics, c->input(c->num_inputs() - i), &unused));
    }
  }
  TF_RETURN_IF_ERROR(CheckParams(c, 2, /*may_have_offset=*/false, elements));
  return SetGradients(c, x, params);
}

absl::Status GroupNormGradShape(InferenceContext* c, int64_t groups) {
  ShapeHandle x;
  DimensionHandle batch;
  TF_RETURN_IF_ERROR(MergeSamples(c, &x, &batch));
  DimensionHandle of_x;
  DimensionHandle channels;
  DimensionHandle statistics;
  TF_RETURN_IF_ERROR(BatchAndChannels(c, x, groups, &of_x, &channels, &statistics));
  ShapeHandle unused;
  for (int i = 1; i <= 2; ++i) {
    TF_RETURN_IF_ERROR(
        c->Merge(c->Matrix(batch, statistics), c->input(c->num_inputs() - i), &unused));
  }
  ShapeHandle params;
  Elements elements;
  TF_RETURN_IF_ERROR(ParamsOf(c, batch, {channels}, &params, &elements));
  TF_RETURN_IF_ERROR(CheckParams(c, 2, /*may_have_offset=*/true, elements));
  return SetGradients(c, x, params);
}

}  // namespace nv_norms
