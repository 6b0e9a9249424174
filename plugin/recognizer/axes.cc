#include "plugin/recognizer/axes.h"

namespace nv_norms {

// Far below what shape inference hands out.
constexpr int64_t kFirstOwnSymbol = -(int64_t{1} << 40);

Atom Axes::New(const Size& size, bool bindable) {
  atoms_.push_back({size, bindable, {}});
  return static_cast<Atom>(atoms_.size()) - 1;
}

Dim Axes::ForDimension(TensorId tensor, int dimension, const Size& size, bool is_root) {
  if (Resolve(size).Is(1)) return {};
  const auto key = std::make_pair(tensor, dimension);
  auto found = of_dimension_.find(key);
  if (found == of_dimension_.end()) {
    found = of_dimension_.emplace(key, New(Resolve(size), !is_root)).first;
  }
  Dim dim;
  Expand(found->second, &dim);
  return dim;
}

Size Axes::size(const Dim& dim) const {
  Size product(1);
  for (Atom atom : dim) product = product * size(atom);
  return Resolve(product);
}

bool Axes::Split(Atom atom, const Size& outer, const Size& inner) {
  if (outer.Is(1) || inner.Is(1)) return false;
  const bool bindable = atoms_[atom].bindable;
  const Atom first = New(outer, bindable);
  const Atom second = New(inner, bindable);
  atoms_[atom].finer = {first, second};
  return true;
}

void Axes::Tie(int64_t symbol, const Size& value) {
  Assume(symbol, value);
  if (Trusts(symbol)) return;
  tied_.insert(symbol);
  tied_.insert(value.symbols().begin(), value.symbols().end());
}

void Axes::Expand(Atom atom, Dim* out) const {
  if (!atoms_[atom].finer.empty()) {
    for (Atom finer : atoms_[atom].finer) Expand(finer, out);
    return;
  }
  if (!Resolve(atoms_[atom].size).Is(1)) out->push_back(atom);
}

Size Axes::Resolve(const Size& size) const {
  if (assumed_.empty() || size.known()) return size;
  Size resolved(size.coefficient());
  for (int64_t symbol : size.symbols()) {
    auto found = assumed_.find(symbol);
    resolved =
        resolved * (found == assumed_.end() ? Size::Unknown(symbol) : Resolve(found->second));
  }
  return resolved;
}

int64_t Axes::SymbolFor(TensorId tensor, int dimension) {
  const int64_t next = kFirstOwnSymbol - static_cast<int64_t>(symbol_of_.size());
  return symbol_of_.emplace(std::make_pair(tensor, dimension), next).first->second;
}

}  // namespace nv_norms
