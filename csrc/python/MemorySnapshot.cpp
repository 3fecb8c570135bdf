// Python bindings: recording of the memory history, and snapshots in the format of torch.cuda's viewer.
#include <c10/core/AllocatorConfig.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include "python/Module.h"
#include "runtime/CachingAllocator.h"
#include "runtime/allocator/CachingAllocatorCore.h"

namespace kunlun::python {

namespace {

using c10::CachingAllocator::AcceleratorAllocatorConfig;
using torch::CapturedTraceback;
using torch::wrap_pybind_function;

constexpr std::array<const char*, 9> kActions{
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom"};

template <bool Cpp>
AllocatorContext gather() {
  return CapturedTraceback::gather(/*python=*/true, /*script=*/true, Cpp);
}

AllocatorHistoryOptions::Level levelOf(const std::optional<std::string>& context) {
  using Level = AllocatorHistoryOptions::Level;
  if (!context.has_value()) {
    return Level::Never;
  }
  const std::array<std::pair<const char*, Level>, 3> known{
      {{"state", Level::State}, {"alloc", Level::Alloc}, {"all", Level::All}}};
  for (const auto& [name, level] : known) {
    if (*context == name) {
      return level;
    }
  }
  TORCH_CHECK_VALUE(false, "expected context to be one of None, 'state', 'alloc', 'all', but got '", *context, "'");
}

uint32_t maskOf(const std::vector<std::string>& actions) {
  uint32_t mask = 0;
  for (const auto& action : actions) {
    const auto found = std::find(kActions.begin(), kActions.end(), action);
    TORCH_CHECK_VALUE(found != kActions.end(), "Unknown TraceEntry action: ", action);
    mask |= 1u << (found - kActions.begin());
  }
  return mask;
}

void recordMemoryHistory(
    const std::optional<std::string>& enabled,
    const std::optional<std::string>& context,
    const std::string& stacks,
    int64_t max_entries,
    bool clear_history,
    const std::vector<std::string>& skip_actions) {
  TORCH_CHECK_VALUE(
      !enabled.has_value() || *enabled == "state" || *enabled == "all",
      "expected enabled to be one of None, 'state', 'all', but got '",
      *enabled,
      "'");
  TORCH_CHECK_VALUE(
      stacks == "python" || stacks == "all", "expected stacks to be 'python' or 'all', but got '", stacks, "'");
  TORCH_CHECK_VALUE(max_entries >= 0, "max_entries must not be negative, got ", max_entries);
  AllocatorHistoryOptions options;
  options.enabled = enabled.has_value();
  options.trace = enabled == "all";
  options.context = levelOf(context);
  options.gather = stacks == "all" ? &gather<true> : &gather<false>;
  options.max_entries = static_cast<size_t>(max_entries);
  options.clear = clear_history;
  options.skip = maskOf(skip_actions);
  if (options.enabled && stacks == "all") {
    torch::unwind::unwind(); // the first call is slow
  }
  CachingAllocator::core().recordHistory(options);
}

// torch's own py_symbolize has a header that needs a library which torch's packages do not bring.
std::vector<py::list> readable(const std::vector<CapturedTraceback*>& tracebacks) {
  const torch::SymbolizedTracebacks symbolized = torch::symbolize(tracebacks);
  std::vector<py::dict> frames;
  for (const auto& frame : symbolized.all_frames) {
    py::dict entry;
    entry["name"] = frame.funcname;
    entry["filename"] = frame.filename;
    entry["line"] = frame.lineno;
    frames.push_back(std::move(entry));
  }
  std::vector<py::list> result;
  for (const auto& traceback : symbolized.tracebacks) {
    py::list list;
    for (const uint64_t index : traceback) {
      list.append(frames.at(index));
    }
    result.push_back(std::move(list));
  }
  return result;
}

// Collects the places that stack traces belong to, so that all are made readable at once.
class Frames {
 public:
  void add(const AllocatorContext& context, py::dict place) {
    if (context != nullptr) {
      tracebacks_.push_back(static_cast<CapturedTraceback*>(context.get()));
      places_.push_back(std::move(place));
    } else {
      place["frames"] = py::list();
    }
  }
  void fill() {
    const auto frames = readable(tracebacks_);
    for (size_t i = 0; i < places_.size(); ++i) {
      places_[i]["frames"] = frames.at(i);
    }
  }

 private:
  std::vector<CapturedTraceback*> tracebacks_;
  std::vector<py::dict> places_;
};

py::dict toDict(const AllocatorSegmentInfo& segment, Frames& frames) {
  py::dict result;
  result["device"] = segment.device;
  result["address"] = segment.address;
  result["total_size"] = segment.total_size;
  result["allocated_size"] = segment.allocated_size;
  result["active_size"] = segment.active_size;
  result["requested_size"] = segment.requested_size;
  result["stream"] = reinterpret_cast<uintptr_t>(segment.stream);
  result["segment_type"] = segment.large ? "large" : "small";
  result["segment_pool_id"] = segment.pool;
  result["is_expandable"] = segment.expandable;
  frames.add(segment.context, result);
  py::list blocks;
  for (const auto& block : segment.blocks) {
    py::dict entry;
    entry["address"] = block.address;
    entry["size"] = block.size;
    entry["requested_size"] = block.requested;
    entry["state"] = block.allocated ? "active_allocated" : block.active ? "active_awaiting_free" : "inactive";
    frames.add(block.context, entry);
    blocks.append(std::move(entry));
  }
  result["blocks"] = std::move(blocks);
  return result;
}

py::dict toDict(const AllocatorTraceEntry& trace, Frames& frames) {
  py::dict result;
  result["action"] = kActions.at(static_cast<size_t>(trace.action));
  result[trace.action == AllocatorAction::OutOfMemory ? "device_free" : "addr"] = trace.address;
  result["size"] = trace.size;
  result["stream"] = reinterpret_cast<uintptr_t>(trace.stream);
  result["pool_id"] = trace.pool;
  result["time_us"] = trace.time_us;
  result["compile_context"] = "";
  result["user_metadata"] = trace.metadata;
  frames.add(trace.context, result);
  return result;
}

py::dict allocatorSettings() {
  py::dict result;
  const auto split = AcceleratorAllocatorConfig::max_split_size();
  result["PYTORCH_ALLOC_CONF"] = AcceleratorAllocatorConfig::last_allocator_settings();
  result["last_allocator_settings"] = AcceleratorAllocatorConfig::last_allocator_settings();
  result["max_split_size"] = split == std::numeric_limits<size_t>::max() ? int64_t(-1) : static_cast<int64_t>(split);
  result["garbage_collection_threshold"] = AcceleratorAllocatorConfig::garbage_collection_threshold();
  result["expandable_segments"] = AcceleratorAllocatorConfig::use_expandable_segments();
  py::dict divisions;
  size_t megabytes = 1;
  for (const auto& division : AcceleratorAllocatorConfig::roundup_power2_divisions()) {
    divisions[py::str(std::to_string(megabytes))] = division;
    megabytes *= 2;
  }
  result["roundup_power2_divisions"] = std::move(divisions);
  return result;
}

py::dict memorySnapshot(const std::optional<AllocatorPoolId>& pool, bool include_traces) {
  HANDLE_TH_ERRORS
  const auto snapshot = CachingAllocator::core().snapshot(include_traces, pool.has_value() ? &*pool : nullptr);
  Frames frames;
  py::list segments;
  for (const auto& segment : snapshot.segments) {
    segments.append(toDict(segment, frames));
  }
  py::list traces;
  for (const auto& device : snapshot.traces) {
    py::list entries;
    for (const auto& trace : device) {
      entries.append(toDict(trace, frames));
    }
    traces.append(std::move(entries));
  }
  frames.fill();
  py::dict result;
  result["segments"] = std::move(segments);
  result["device_traces"] = std::move(traces);
  result["allocator_settings"] = allocatorSettings();
  result["external_annotations"] = py::list();
  return result;
  END_HANDLE_TH_ERRORS_PYBIND
}

py::object allocationTraceback(uintptr_t pointer) {
  HANDLE_TH_ERRORS
  const auto context = CachingAllocator::core().blockContext(reinterpret_cast<void*>(pointer));
  if (context == nullptr) {
    return py::none();
  }
  std::vector<CapturedTraceback*> tracebacks{static_cast<CapturedTraceback*>(context.get())};
  return readable(tracebacks).at(0);
  END_HANDLE_TH_ERRORS_PYBIND
}

} // namespace

void bindMemorySnapshot(py::module_& module) {
  module.def("_record_memory_history", wrap_pybind_function(&recordMemoryHistory));
  module.def("_memory_snapshot", &memorySnapshot);
  module.def("_allocation_traceback", &allocationTraceback);
  module.def("_set_memory_metadata", [](std::string text) { CachingAllocatorCore::setMetadata(std::move(text)); });
  module.def("_get_memory_metadata", [] { return CachingAllocatorCore::metadata(); });
}

} // namespace kunlun::python
