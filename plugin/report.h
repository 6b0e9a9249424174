#ifndef NV_NORMS_PLUGIN_REPORT_H_
#define NV_NORMS_PLUGIN_REPORT_H_

#include <cstddef>
#include <string>
#include <vector>

#include "plugin/recognizer/reasons.h"

namespace nv_norms {

// One normalization that was found, fused or not; or, of the kind "layout", a change of layout:
// inputs are the Transposes that it removed, outputs the normalizations that it brought into
// another layout.
struct Record {
  std::string kind;
  std::string direction = "forward";
  Reason reason = Reason::kNone;
  std::vector<std::string> inputs, outputs;
  std::vector<int> axes;
  double epsilon = 0;
  double negative_slope = 1;    // of the activation inside; 1: none
  bool silu = false;            // that activation is inside
  bool goes_on = false;         // scaled or shifted for each sample beside the fused op
  bool leaves_dx = false;       // a fused gradient gives dgamma and dbeta, others the dx of it
  bool stops_gradient = false;  // what a fused gradient replaced has another gradient than it
  int transposes_before = 0, transposes_after = 0;
  std::string dtype, device, graph;
};

std::string ToJson(const std::vector<Record>& records);

// The records of every graph since the library was loaded or TakeReport() was called; where nobody
// takes them, the latest, and how many were dropped. TensorFlow optimizes a graph twice: what was
// fused in the first pass is not found again in the second, but what was refused is.
struct Report {
  std::vector<Record> records;
  size_t dropped = 0;
};
void AddToReport(const std::vector<Record>& records);
Report TakeReport();

}  // namespace nv_norms

#endif  // NV_NORMS_PLUGIN_REPORT_H_
