// The flight recorder's file, and its binding. Here and not beside the recorder, because torch's headers for pickling
// need include paths that only the module has.
#include "distributed/FlightRecorder.h"

#include <c10/util/StringUtil.h>
#include <torch/csrc/distributed/c10d/FlightRecorder.hpp>

#include "python/Module.h"

namespace kunlun::python {

namespace {

using kunlun::distributed::Completion;
using kunlun::distributed::FlightRecorder;
using Dict = c10::Dict<c10::IValue, c10::IValue>;

c10::List<c10::IValue> listOf(const std::vector<std::vector<int64_t>>& sizes) {
  auto list = c10d::new_list();
  for (const auto& dims : sizes) {
    auto inner = c10d::new_list();
    for (const int64_t dim : dims) {
      inner.push_back(dim);
    }
    list.push_back(inner);
  }
  return list;
}

// The recorder's states, in the order of an operation's life.
const char* stateOf(Completion& completion) {
  return completion.isSuccess() ? "completed" : completion.hasStarted() ? "started" : "scheduled";
}

std::string pickleRecords(bool include_stacks, bool only_active) {
  FlightRecorder& recorder = FlightRecorder::get();
  auto records = recorder.records();
  if (only_active) {
    std::erase_if(records, [](const auto& record) { return record->entry.completion->isDone(); });
  }
  std::vector<Dict> frames;
  torch::SymbolizedTracebacks symbols;
  if (include_stacks) {
    std::vector<torch::CapturedTraceback*> tracebacks;
    for (const auto& record : records) {
      tracebacks.push_back(record->traceback.get());
    }
    symbols = torch::symbolize(tracebacks);
    for (const auto& frame : symbols.all_frames) {
      auto dict = c10d::new_dict();
      dict.insert(c10d::name_key, frame.funcname);
      dict.insert(c10d::filename_key, frame.filename);
      dict.insert(c10d::line_key, static_cast<int64_t>(frame.lineno));
      frames.push_back(std::move(dict));
    }
  }
  auto entries = c10d::new_list();
  for (size_t i = 0; i < records.size(); ++i) {
    const FlightRecorder::Record& record = *records[i];
    const FlightRecorder::Entry& entry = record.entry;
    auto dict = c10d::new_dict();
    if (include_stacks) {
      auto stack = c10d::new_list();
      for (const uint64_t frame : symbols.tracebacks.at(i)) {
        stack.push_back(frames.at(frame));
      }
      dict.insert(c10d::frames_key, stack);
    }
    dict.insert(c10d::record_id_key, static_cast<int64_t>(record.id));
    dict.insert(c10d::pg_id_key, static_cast<int64_t>(entry.group_id));
    dict.insert(c10d::pg_name_key, std::make_tuple(entry.group.first, entry.group.second));
    dict.insert(c10d::collective_seq_id_key, static_cast<int64_t>(entry.collective_sequence));
    dict.insert(c10d::p2p_seq_id_key, static_cast<int64_t>(entry.transfer_sequence));
    dict.insert(c10d::op_id_key, static_cast<int64_t>(entry.operation));
    dict.insert(c10d::profiling_name_key, entry.name);
    dict.insert(c10d::time_created_key, record.created_ns);
    dict.insert(c10d::input_sizes_key, listOf(record.input_sizes));
    dict.insert(c10d::input_dtypes_key, record.input_dtypes);
    dict.insert(c10d::output_sizes_key, listOf(record.output_sizes));
    dict.insert(c10d::output_dtypes_key, record.output_dtypes);
    dict.insert(c10d::state_key, stateOf(*entry.completion));
    if (entry.completion->isDone()) {
      dict.insert(c10d::duration_key, static_cast<double>(entry.completion->milliseconds()));
    }
    dict.insert(c10d::retired_key, entry.completion->isDone());
    dict.insert(c10d::timeout_key, entry.timeout_ms);
    dict.insert(c10d::is_p2p_key, entry.is_transfer);
    entries.push_back(dict);
  }
  auto config = c10d::new_dict();
  for (const auto& group : recorder.groups()) {
    auto dict = c10d::new_dict();
    dict.insert("name", group.name);
    dict.insert("desc", group.description);
    dict.insert("ranks", c10::str("[", c10::Join(", ", group.ranks), "]"));
    config.insert(group.name, dict);
  }
  auto whole = c10d::new_dict();
  whole.insert(c10d::version_key, c10d::version_val);
  whole.insert(c10d::pg_config_key, config);
  whole.insert(c10d::entries_key, entries);
  return c10d::pickle_str(whole);
}

} // namespace

void bindFlightRecorder(py::module_& module) {
  FlightRecorder::setPickle(pickleRecords);
  module.def(
      "_dump_flight_recorder",
      [](bool include_stacks, bool only_active) {
        std::string dump;
        {
          const py::gil_scoped_release no_gil;
          dump = pickleRecords(include_stacks, only_active);
        }
        return py::bytes(dump);
      },
      py::arg("include_stacks"),
      py::arg("only_active"));
}

} // namespace kunlun::python
