// The shapes of op types that tensorflow/core/grappler/optimizers/remapper.cc of TensorFlow 2.21
// looks for. Of the first two it checks the axes of the mean, but neither those of the variance nor
// where gamma runs, and it loses epsilon where it makes _MklLayerNorm; of the third it looks at no
// shape. (A fourth, with a Square of another Sub than the one that is scaled, it never meets: an
// earlier pass makes a SquaredDifference of that.)
//
//   by moments, gamma and beta constant:
//     w = Rsqrt(Mean(SquaredDifference(x, m)) + e) * gamma,  m = Mean(x)
//     y = x * w + (beta - w * m)
//   as the formula is written, over axes counted from the first (a layer norm with any gamma and
//   beta). Arithmetic optimizations keep the remapper from most of these, but not from a division:
//     y = (x - m) * Rsqrt(Mean(SquaredDifference(x, m)) + e) * gamma + beta
//     y = (x - m) / Sqrt(Mean(SquaredDifference(x, m)) + e) * gamma + beta, or Pow
//   tf_keras' layer norm:
//     y = Reshape(FusedBatchNormV3(Reshape(x), Fill, Fill)) * gamma + beta
#include "plugin/early/chains.h"

#include <set>

#include "tensorflow/core/framework/tensor.h"

namespace nv_norms {
namespace {

// Nodes behind an operand that are looked at before it is given up as not constant.
constexpr int kMaxConstantNodes = 64;
constexpr int kMaxIdentities = 8;

class Finder {
 public:
  Finder(const Body& body, bool pruned) : body_(body), pruned_(pruned) {}

  std::vector<Link> Find() {
    std::vector<Link> links;
    for (int node = 0; node < body_.num_nodes(); ++node) {
      Link link{-1, 0};
      if (IsRoot(body_.op(node)) && Moments(node, &link)) links.push_back(link);
      if (body_.op(node) == "FusedBatchNormV3" && BatchNorm(node)) links.push_back({node, 1});
    }
    return links;
  }

 private:
  // What Grappler reads in the place of a node: it removes these.
  int Behind(int node) const {
    for (int i = 0; i < kMaxIdentities && node >= 0; ++i) {
      const std::string& op = body_.op(node);
      if (op != "Identity" && op != "StopGradient" && op != "PreventGradient") break;
      node = body_.input(node, 0);
    }
    return node;
  }
  int Behind(int node, int input) const {
    return input < body_.num_inputs(node) ? Behind(body_.input(node, input)) : -1;
  }

  bool Is(int node, const char* op) const { return node >= 0 && body_.op(node) == op; }
  bool IsAdd(int node) const { return Is(node, "AddV2") || Is(node, "Add"); }

  std::vector<int> Readers(int node, const char* op) const {
    std::vector<int> readers;
    for (const Link& link : body_.readers(node)) {
      if (Is(link.reader, op)) readers.push_back(link.reader);
    }
    return readers;
  }

  // Whether nobody reads a node but `count` links of the chain; that may be so later, if pruned.
  bool ReadBy(int node, size_t count) const {
    return pruned_ || body_.readers(node).size() <= count;
  }

  // The input of a binary op that is not this one, or -1 if it does not read it.
  int Other(int node, int one) const {
    if (body_.num_inputs(node) != 2) return -1;
    for (int i = 0; i < 2; ++i) {
      if (Behind(node, i) == one) return Behind(node, 1 - i);
    }
    return -1;
  }

  bool MayBeConstant(int node) const {
    std::set<int> seen;
    std::vector<int> todo{node};
    while (!todo.empty()) {
      const int at = todo.back();
      todo.pop_back();
      if (at < 0 && !body_.arguments_may_be_constant()) return false;
      if (at < 0 || Is(at, "Const") || !seen.insert(at).second) continue;
      const int inputs = body_.num_inputs(at);
      if (inputs == 0 || seen.size() > kMaxConstantNodes) return false;
      for (int i = 0; i < inputs; ++i) todo.push_back(body_.input(at, i));
    }
    return true;
  }

  // x - Mean(x), as a SquaredDifference or a Sub; *mean is the Mean.
  bool IsCentred(int node, int* mean) const {
    for (int i = 0; i < 2 && node >= 0 && body_.num_inputs(node) == 2; ++i) {
      const int m = Behind(node, i);
      if (Is(m, "Mean") && Behind(m, 0) == Behind(node, 1 - i)) {
        *mean = m;
        return true;
      }
    }
    return false;
  }

  static bool IsRoot(const std::string& op) { return op == "Rsqrt" || op == "Sqrt" || op == "Pow"; }

  bool Moments(int root, Link* link) const {
    const int add = Behind(root, 0);
    if (!IsAdd(add)) return false;
    for (int i = 0; i < 2; ++i) {
      const int variance = Behind(add, i);
      if (!Is(variance, "Mean") || !MayBeConstant(body_.input(add, 1 - i))) continue;
      const int square = Behind(variance, 0);
      int mean = -1;
      const bool difference = Is(square, "SquaredDifference") && IsCentred(square, &mean);
      const int sub = Is(square, "Square") ? Behind(square, 0) : -1;
      const bool centred = Is(sub, "Sub") && IsCentred(sub, &mean);
      if (!difference && !centred) continue;
      *link = {add, i};
      // Grappler makes a SquaredDifference of a Square of a Sub that nobody else reads.
      if ((Is(root, "Rsqrt") && ByMoments(root, mean)) || AsTheFormula(root, mean)) return true;
    }
    return false;
  }

  // beta - w * mean, and gamma in w.
  bool ByMoments(int rsqrt, int mean) const {
    if (!ReadBy(rsqrt, 1)) return false;
    for (int scale : Readers(rsqrt, "Mul")) {
      if (!ReadBy(scale, 2) || !MayBeConstant(Other(scale, rsqrt))) continue;
      for (int shift : Readers(scale, "Mul")) {
        if (Other(shift, scale) != mean) continue;
        for (int sub : Readers(shift, "Sub")) {
          if (Behind(sub, 1) == shift && MayBeConstant(body_.input(sub, 0))) return true;
        }
      }
    }
    return false;
  }

  // Whether a node is a constant of axes of which the first is negative.
  bool CountsFromTheLast(int node) const {
    const tensorflow::AttrValue* const value =
        Is(node, "Const") ? body_.attr(node, "value") : nullptr;
    tensorflow::Tensor axes;
    if (value == nullptr || !axes.FromProto(value->tensor()) || axes.NumElements() == 0)
      return false;
    if (axes.dtype() == tensorflow::DT_INT32) return axes.flat<int32_t>()(0) < 0;
    return axes.dtype() == tensorflow::DT_INT64 && axes.flat<int64_t>()(0) < 0;
  }

  // (x - mean) * root, or / root, scaled and shifted. A gradient that reads what is inside keeps
  // the remapper from it, but not for long: it is fused, and TensorFlow's passes run twice.
  bool AsTheFormula(int root, int mean) const {
    if (CountsFromTheLast(Behind(mean, 1))) return false;
    std::vector<int> products = Readers(root, "Mul");
    for (int quotient : Readers(root, "RealDiv")) products.push_back(quotient);
    for (int product : products) {
      const int centred = Other(product, root);
      int of = -1;
      if (!Is(centred, "Sub") || !IsCentred(centred, &of) || of != mean) continue;
      for (int scaled : Readers(product, "Mul")) {
        if (!Readers(scaled, "AddV2").empty() || !Readers(scaled, "Add").empty()) return true;
      }
    }
    return false;
  }

  bool BatchNorm(int norm) const {
    const tensorflow::AttrValue* const training = body_.attr(norm, "is_training");
    if (training == nullptr || !training->b() || !ReadBy(norm, 1)) return false;
    if (!Is(Behind(norm, 0), "Reshape") || !Is(Behind(norm, 1), "Fill") ||
        !Is(Behind(norm, 2), "Fill")) {
      return false;
    }
    for (int reshape : Readers(norm, "Reshape")) {
      for (int scale : Readers(reshape, "Mul")) {
        if (!Readers(scale, "AddV2").empty()) return true;
      }
    }
    return false;
  }

  const Body& body_;
  const bool pruned_;
};

}  // namespace

void ChainOps::See(const std::string& op) {
  switch (op.empty() ? '\0' : op[0]) {
    case 'F':
      batch_norm_ = batch_norm_ || op == "FusedBatchNormV3";
      break;
    case 'M':
      mean_ = mean_ || op == "Mean";
      break;
    case 'P':
      root_ = root_ || op == "Pow";
      break;
    case 'R':
      root_ = root_ || op == "Rsqrt";
      break;
    case 'S':
      root_ = root_ || op == "Sqrt";
      square_ = square_ || op == "SquaredDifference" || op == "Square";
      break;
    default:
      break;
  }
}

std::vector<Link> LinksToPart(const Body& body, bool pruned) { return Finder(body, pruned).Find(); }

}  // namespace nv_norms
