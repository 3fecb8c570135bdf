// Python bindings: the caching allocator and its statistics.
#include <torch/csrc/Exceptions.h>

#include "python/Module.h"
#include "runtime/CachingAllocator.h"

namespace kunlun::python {

namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using torch::wrap_pybind_function;
using torch::wrap_pybind_function_no_gil;

py::dict toDict(const Stat& stat) {
  py::dict result;
  result["current"] = stat.current;
  result["peak"] = stat.peak;
  result["allocated"] = stat.allocated;
  result["freed"] = stat.freed;
  return result;
}

py::dict toDict(const StatArray& stats) {
  py::dict result;
  result["all"] = toDict(stats[0]);
  result["small_pool"] = toDict(stats[1]);
  result["large_pool"] = toDict(stats[2]);
  return result;
}

py::dict memoryStats(int64_t device) {
  HANDLE_TH_ERRORS
  const auto stats = CachingAllocator::getDeviceStats(narrow(device));
  py::dict result;
  result["num_alloc_retries"] = stats.num_alloc_retries;
  result["num_ooms"] = stats.num_ooms;
  result["num_sync_all_streams"] = stats.num_sync_all_streams;
  result["num_device_alloc"] = stats.num_device_alloc;
  result["num_device_free"] = stats.num_device_free;
  result["max_split_size"] = stats.max_split_size;
  result["allocation"] = toDict(stats.allocation);
  result["segment"] = toDict(stats.segment);
  result["active"] = toDict(stats.active);
  result["inactive_split"] = toDict(stats.inactive_split);
  result["allocated_bytes"] = toDict(stats.allocated_bytes);
  result["reserved_bytes"] = toDict(stats.reserved_bytes);
  result["active_bytes"] = toDict(stats.active_bytes);
  result["inactive_split_bytes"] = toDict(stats.inactive_split_bytes);
  result["requested_bytes"] = toDict(stats.requested_bytes);
  result["oversize_allocations"] = toDict(stats.oversize_allocations);
  result["oversize_segments"] = toDict(stats.oversize_segments);
  return result;
  END_HANDLE_TH_ERRORS_PYBIND
}

} // namespace

void bindMemory(py::module_& module) {
  module.def("_memory_stats", &memoryStats);
  module.def("_empty_cache", wrap_pybind_function_no_gil(&CachingAllocator::emptyCache));
  module.def("_reset_accumulated_memory_stats", wrap_pybind_function([](int64_t device) {
               CachingAllocator::resetAccumulatedStats(narrow(device));
             }));
  module.def("_reset_peak_memory_stats", wrap_pybind_function([](int64_t device) {
               CachingAllocator::resetPeakStats(narrow(device));
             }));
  module.def("_get_memory_info", wrap_pybind_function([](int64_t device) {
               return CachingAllocator::getMemoryInfo(narrow(device));
             }));
  module.def("_set_memory_fraction", wrap_pybind_function([](double fraction, int64_t device) {
               CachingAllocator::setMemoryFraction(fraction, narrow(device));
             }));
  module.def("_get_memory_fraction", wrap_pybind_function([](int64_t device) {
               return CachingAllocator::getMemoryFraction(narrow(device));
             }));
  module.def("_get_base_allocation", wrap_pybind_function([](uintptr_t pointer) {
               const auto [base, size] = CachingAllocator::getBaseAllocation(reinterpret_cast<void*>(pointer));
               return std::make_pair(reinterpret_cast<uintptr_t>(base), size);
             }));
}

} // namespace kunlun::python
