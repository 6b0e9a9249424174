#include "plugin/report.h"

#include <cmath>
#include <cstdio>
#include <deque>
#include <iomanip>
#include <iterator>
#include <locale>
#include <mutex>
#include <sstream>

namespace nv_norms {
namespace {

// Some 10 MB; a training step of 200 layers makes 800.
constexpr size_t kMostRecords = 10'000;

struct Registry {
  std::mutex mutex;
  std::deque<Record> records;
  size_t dropped = 0;
};

Registry& TheRegistry() {
  static Registry* const registry = new Registry;
  return *registry;
}

std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof(code), "\\u%04x", c);
      out += code;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

template <typename T, typename F>
std::string List(const std::vector<T>& items, F format) {
  std::string out = "[";
  for (const T& item : items) {
    if (out.size() > 1) out += ", ";
    out += format(item);
  }
  return out + "]";
}

std::string Number(double value) {
  std::ostringstream text;
  text.imbue(std::locale::classic());  // a program's own may have a comma
  text << std::setprecision(17) << (std::isfinite(value) ? value : 0.0);
  return text.str();
}

}  // namespace

std::string ToJson(const std::vector<Record>& records) {
  return List(records, [](const Record& r) {
    return "{\"kind\": " + Quoted(r.kind) + ", \"direction\": " + Quoted(r.direction) +
           ", \"fused\": " + (r.reason == Reason::kNone ? "true" : "false") +
           ", \"reason\": " + Quoted(ReasonName(r.reason)) +
           ", \"detail\": " + Quoted(ReasonSentence(r.reason)) +
           ", \"inputs\": " + List(r.inputs, Quoted) + ", \"outputs\": " + List(r.outputs, Quoted) +
           ", \"axes\": " + List(r.axes, [](int axis) { return std::to_string(axis); }) +
           ", \"epsilon\": " + Number(r.epsilon) +
           ", \"negative_slope\": " + Number(r.negative_slope) +
           ", \"silu\": " + (r.silu ? "true" : "false") +
           ", \"goes_on\": " + (r.goes_on ? "true" : "false") +
           ", \"leaves_dx\": " + (r.leaves_dx ? "true" : "false") +
           ", \"stops_gradient\": " + (r.stops_gradient ? "true" : "false") +
           ", \"transposes\": [" + std::to_string(r.transposes_before) + ", " +
           std::to_string(r.transposes_after) + "]" + ", \"dtype\": " + Quoted(r.dtype) +
           ", \"device\": " + Quoted(r.device) + ", \"graph\": " + Quoted(r.graph) + "}";
  });
}

void AddToReport(const std::vector<Record>& records) {
  Registry& registry = TheRegistry();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  registry.records.insert(registry.records.end(), records.begin(), records.end());
  for (; registry.records.size() > kMostRecords; ++registry.dropped) registry.records.pop_front();
}

Report TakeReport() {
  Registry& registry = TheRegistry();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  Report report{{std::make_move_iterator(registry.records.begin()),
                 std::make_move_iterator(registry.records.end())},
                registry.dropped};
  registry.records.clear();
  registry.dropped = 0;
  return report;
}

}  // namespace nv_norms
