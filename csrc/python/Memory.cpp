// Python bindings: the allocators, their statistics, memory pools.
#include <memory>
#include <utility>

#include <torch/csrc/Exceptions.h>

#include "python/Module.h"
#include "runtime/CachingAllocator.h"
#include "runtime/HostAllocator.h"
#include "runtime/MemPool.h"
#include "runtime/PluggableAllocator.h"
#include "runtime/TorchVersion.h"
#include "runtime/chip/Loader.h"

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
#if !KUNLUN_TORCH_BEFORE(2, 13)
  py::dict pools;
  for (const auto& [id, reserved] : stats.reserved_bytes_by_private_pools) {
    pools[py::cast(id)] = toDict(reserved);
  }
  result["reserved_bytes_by_private_pools"] = std::move(pools);
#endif
  return result;
  END_HANDLE_TH_ERRORS_PYBIND
}

py::dict toDict(const c10::CachingAllocator::DurationStat& stat) {
  py::dict result;
  result["total"] = stat.total;
  result["max"] = stat.max;
  result["min"] = stat.min;
  result["count"] = stat.count;
  result["avg"] = stat.count == 0 ? 0 : stat.total / stat.count;
  return result;
}

py::dict hostMemoryStats() {
  HANDLE_TH_ERRORS
  const auto stats = getHostAllocator()->get_stats();
  py::dict result;
  result["num_host_alloc"] = stats.num_host_alloc;
  result["num_host_free"] = stats.num_host_free;
  result["allocations"] = toDict(stats.allocations);
  result["allocated_bytes"] = toDict(stats.allocated_bytes);
  result["active_requests"] = toDict(stats.active_requests);
  result["active_bytes"] = toDict(stats.active_bytes);
  result["host_alloc_time"] = toDict(stats.host_alloc_time);
  result["host_free_time"] = toDict(stats.host_free_time);
  return result;
  END_HANDLE_TH_ERRORS_PYBIND
}

// Memory by address, for other frameworks.
uintptr_t rawAlloc(size_t bytes, int64_t device, uintptr_t stream) {
  c10::DataPtr data = CachingAllocator::allocateOnStream(bytes, narrow(device), reinterpret_cast<kl_stream>(stream));
  return reinterpret_cast<uintptr_t>(data.release_context());
}

void rawDelete(uintptr_t pointer) {
  auto* address = reinterpret_cast<void*>(pointer);
  kl_pointer_info info{};
  TORCH_CHECK(
      pointer == 0 || PluggableAllocator::current() != nullptr ||
          (chip::runtime().pointer_info(address, &info) == KL_SUCCESS && info.type == KL_POINTER_DEVICE),
      "invalid device pointer: ",
      address);
  CachingAllocator::get()->raw_deleter()(address);
}

void attachOutOfMemoryObserver(py::object observer) {
  // Kept until the process ends, and so never released without the GIL.
  auto* function = new py::object(std::move(observer));
  CachingAllocator::attachOutOfMemoryObserver([function](int64_t device, int64_t bytes, int64_t total, int64_t free) {
    py::gil_scoped_acquire gil;
    (*function)(device, bytes, total, free);
  });
}

void bindPools(py::module_& module) {
  py::class_<PluggableAllocator, std::shared_ptr<PluggableAllocator>>(module, "_PluggableAllocator")
      .def(py::init<uintptr_t, uintptr_t>());
  module.def("_change_current_allocator", wrap_pybind_function(&PluggableAllocator::install));
  module.def(
      "_get_allocator_backend", [] { return PluggableAllocator::current() == nullptr ? "native" : "pluggable"; });
  py::class_<MemPool, std::shared_ptr<MemPool>>(module, "_MemPool")
      .def(
          py::init<std::shared_ptr<PluggableAllocator>, bool, bool, bool, bool>(),
          py::arg("allocator") = nullptr,
          py::arg("is_user_created") = true,
          py::arg("use_on_oom") = false,
          py::arg("no_split") = false,
          py::arg("can_sleep") = false)
      .def_property_readonly("id", &MemPool::id)
      .def_property_readonly("device", &MemPool::device)
      .def_property_readonly("allocator", &MemPool::allocator)
      .def("use_count", &MemPool::useCount)
      .def("_sleep", wrap_pybind_function_no_gil([](MemPool& pool, bool keep) { return pool.sleep(keep); }))
      .def("_wake_up", wrap_pybind_function_no_gil([](MemPool& pool) { pool.wakeUp(); }))
      .def_property_readonly("_is_asleep", &MemPool::isAsleep)
      .def("_begin", wrap_pybind_function([](MemPool& pool, int64_t device) { pool.begin(narrow(device)); }))
      .def("_end", wrap_pybind_function([](MemPool& pool, int64_t device) { pool.end(narrow(device)); }));
}

} // namespace

void bindMemory(py::module_& module) {
  module.def("_memory_stats", &memoryStats);
  bindPools(module);
  module.def("_empty_cache", wrap_pybind_function_no_gil([] { CachingAllocator::emptyCache(); }));
  module.def("_caching_allocator_alloc", wrap_pybind_function(&rawAlloc));
  module.def("_caching_allocator_delete", wrap_pybind_function(&rawDelete));
  module.def("_caching_allocator_enable", &CachingAllocator::enable);
  module.def("_caching_allocator_is_enabled", &CachingAllocator::isEnabled);
  module.def("_attach_out_of_memory_observer", &attachOutOfMemoryObserver);
  module.def("_host_memory_stats", &hostMemoryStats);
  module.def("_reset_accumulated_host_memory_stats", [] { getHostAllocator()->reset_accumulated_stats(); });
  module.def("_reset_peak_host_memory_stats", [] { getHostAllocator()->reset_peak_stats(); });
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
