#include "plugin/recognizer/alignment.h"

#include <algorithm>
#include <deque>

namespace nv_norms {
namespace {

bool IsLoneSymbol(const Size& size) {
  return size.coefficient() == 1 && size.symbols().size() == 1;
}

void Settle(int64_t symbol, const Size& value, Certainty certainty, Axes* axes) {
  if (certainty == Certainty::kSure) {
    axes->Assume(symbol, value);
  } else {
    axes->Tie(symbol, value);
  }
}

// Makes two atoms of different name into one, or splits the larger.
Alignment Unify(Atom a, Atom b, Certainty certainty, Axes* axes) {
  // Another dimension of the same operand has replaced one of them: z beside its own transpose
  // would make each consist of the other.
  if (axes->replaced(a) || axes->replaced(b)) return Alignment::kRestart;
  const Size size_a = axes->Resolve(axes->size(a));
  const Size size_b = axes->Resolve(axes->size(b));
  if (size_a == size_b) {
    if (axes->bindable(b)) {
      axes->Bind(b, {a});
    } else if (axes->bindable(a)) {
      axes->Bind(a, {b});
    } else {
      return Alignment::kImpossible;
    }
    return Alignment::kRestart;
  }
  if (auto rest = size_a.DividedBy(size_b); rest && !IsLoneSymbol(size_a)) {
    return axes->Split(a, size_b, *rest) ? Alignment::kRestart : Alignment::kImpossible;
  }
  if (auto rest = size_b.DividedBy(size_a); rest && !IsLoneSymbol(size_b)) {
    return axes->Split(b, size_a, *rest) ? Alignment::kRestart : Alignment::kImpossible;
  }
  // An unknown against something else: if neither is 1 they are equal. (Were the unknown one 1,
  // the fused op, which checks its parameters' sizes when it runs, would say so; what else is tied
  // is looked at by who takes the outcome.)
  if (!axes->bindable(a) && !axes->bindable(b)) return Alignment::kImpossible;
  if (IsLoneSymbol(size_b) && axes->bindable(b)) {
    Settle(size_b.symbols()[0], size_a, certainty, axes);
  } else if (IsLoneSymbol(size_a)) {
    Settle(size_a.symbols()[0], size_b, certainty, axes);
  } else if (IsLoneSymbol(size_b)) {
    Settle(size_b.symbols()[0], size_a, certainty, axes);
  } else {
    return Alignment::kImpossible;
  }
  if (axes->bindable(b)) axes->Bind(b, {a});
  return Alignment::kRestart;
}

// Whether a Reshape tells the size of a single unknown: every other dimension keeps its size. (Two
// unknowns may change places: the count of elements tells their product only.)
bool TellsOneSize(const Dims& from, const std::vector<Size>& to, const Axes& axes) {
  int told = 0;
  for (size_t i = 0; i < from.size(); ++i) {
    const Size size = axes.size(from[i]);
    if (size == to[i]) continue;
    if (!IsLoneSymbol(size) || !to[i].known()) return false;
    ++told;
  }
  return told == 1;
}

}  // namespace

bool HasAtomTwice(const Dims& dims) {
  Dim all;
  for (const Dim& dim : dims) all.insert(all.end(), dim.begin(), dim.end());
  std::sort(all.begin(), all.end());
  return std::adjacent_find(all.begin(), all.end()) != all.end();
}

Alignment AlignForBroadcast(const std::vector<const Dims*>& operands, Certainty certainty,
                            Axes* axes, Dims* out) {
  size_t rank = 0;
  for (const Dims* dims : operands) rank = std::max(rank, dims->size());
  out->assign(rank, {});
  bool restart = false;  // once for all dimensions of all operands: evaluation is what costs
  for (const Dims* dims : operands) {
    const size_t lead = rank - dims->size();
    const bool restart_before = restart;
    for (size_t i = 0; i < dims->size(); ++i) {
      Dim& have = (*out)[lead + i];
      const Dim& more = (*dims)[i];
      if (more.empty() || have == more) continue;
      if (have.empty()) {
        have = more;
        continue;
      }
      size_t k = 0;
      while (k < std::min(have.size(), more.size()) && have[k] == more[k]) ++k;
      if (k == std::min(have.size(), more.size()) ||
          Unify(have[k], more[k], certainty, axes) == Alignment::kImpossible) {
        return restart_before ? Alignment::kRestart : Alignment::kImpossible;
      }
      restart = true;
    }
  }
  if (restart) return Alignment::kRestart;
  return HasAtomTwice(*out) ? Alignment::kImpossible : Alignment::kDone;
}

Alignment AlignForReshape(const Dims& from, const std::vector<Size>& target, Certainty certainty,
                          Axes* axes, Dims* out) {
  Size total(1), wanted(1);
  std::deque<Atom> rest;
  for (const Dim& dim : from) {
    total = total * axes->size(dim);
    rest.insert(rest.end(), dim.begin(), dim.end());
  }
  int open = -1;
  std::vector<Size> sizes(target.size());
  for (size_t i = 0; i < target.size(); ++i) {
    if (target[i].Is(-1)) {
      if (open >= 0) return Alignment::kImpossible;
      open = static_cast<int>(i);
    } else {
      sizes[i] = axes->Resolve(target[i]);
      wanted = wanted * sizes[i];
    }
  }
  if (open >= 0) {
    const auto remaining = total.DividedBy(wanted);
    if (!remaining) return Alignment::kImpossible;
    sizes[open] = *remaining;
  }
  out->clear();
  for (size_t i = 0; i < sizes.size(); ++i) {
    Dim dim;
    Size filled(1);
    while (filled != sizes[i]) {
      const auto missing = sizes[i].DividedBy(filled);
      if (rest.empty() || !missing || missing->Is(0)) return Alignment::kImpossible;
      const Atom atom = rest.front();
      const Size size = axes->Resolve(axes->size(atom));
      if (missing->DividedBy(size)) {
        dim.push_back(atom);
        filled = filled * size;
        rest.pop_front();
        continue;
      }
      if (const auto inner = size.DividedBy(*missing)) {
        return axes->Split(atom, *missing, *inner) ? Alignment::kRestart : Alignment::kImpossible;
      }
      // A Reshape may tell a size that inference did not.
      if (from.size() == sizes.size() && from[i].size() == 1 && from[i][0] == atom && dim.empty() &&
          IsLoneSymbol(size) && TellsOneSize(from, sizes, *axes)) {
        Settle(size.symbols()[0], sizes[i], certainty, axes);
        return Alignment::kRestart;
      }
      return Alignment::kImpossible;
    }
    out->push_back(dim);
  }
  return rest.empty() ? Alignment::kDone : Alignment::kImpossible;
}

}  // namespace nv_norms
