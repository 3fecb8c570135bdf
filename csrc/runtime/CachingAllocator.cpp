// torch's view of the caching allocator: c10::DeviceAllocator over CachingAllocatorCore.
#include "runtime/CachingAllocator.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include <c10/core/AllocatorConfig.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include "runtime/AllocatorConfig.h"
#include "runtime/Error.h"
#include "runtime/PluggableAllocator.h"
#include "runtime/Stream.h"
#include "runtime/TorchVersion.h"
#include "runtime/allocator/CachingAllocatorCore.h"
#include "runtime/chip/Loader.h"
#include "runtime/ipc/SharedStorage.h"

namespace kunlun::CachingAllocator {

namespace {

using c10::CachingAllocator::AcceleratorAllocatorConfig;
using c10::CachingAllocator::format_size;

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

AllocatorSettings readSettings() {
  AllocatorSettings settings;
  settings.large_segment_size = AcceleratorAllocatorConfig::large_segment_size();
  settings.max_split_size = AcceleratorAllocatorConfig::max_split_size();
  settings.max_non_split_rounding_size = AcceleratorAllocatorConfig::max_non_split_rounding_size();
  settings.garbage_collection_threshold = AcceleratorAllocatorConfig::garbage_collection_threshold();
  settings.expandable_segments = AcceleratorAllocatorConfig::use_expandable_segments();
  return settings;
}

size_t readDivisions(size_t size) {
  return AcceleratorAllocatorConfig::roundup_power2_divisions(size);
}

// Memory that was lent to other processes and that they have given up, or that they cannot use any more.
bool reclaimLoans() {
  return ipc::collect(/*look_for_dead=*/true);
}

std::atomic<bool> core_exists{false};
std::atomic<bool> caching{true};

std::mutex observers_lock; // guards observers
std::vector<OutOfMemoryObserver>& observers() {
  static auto& list = *new std::vector<OutOfMemoryObserver>;
  return list;
}

void callObservers(const AllocatorOutOfMemory& e) {
  std::vector<OutOfMemoryObserver> list;
  {
    std::lock_guard lock(observers_lock);
    list = observers();
  }
  for (const auto& observer : list) {
    observer(
        e.device,
        static_cast<int64_t>(e.segment),
        static_cast<int64_t>(std::min(e.allowed, e.total_bytes)),
        static_cast<int64_t>(e.free_bytes));
  }
}

[[noreturn]] void raiseOutOfMemory(const AllocatorOutOfMemory& e) {
  c10::reportOutOfMemoryToProfiler(
      static_cast<int64_t>(e.requested),
      static_cast<size_t>(e.allocated),
      static_cast<size_t>(e.reserved),
      c10::Device(kType, static_cast<c10::DeviceIndex>(e.device)));
  callObservers(e);
  const auto idle = static_cast<uint64_t>(e.reserved - e.allocated);
  std::string advice = "Free tensors, use a smaller batch, or give the device more memory.";
  if (e.limited) {
    advice = "Raise the limit with torch.kunlun.set_per_process_memory_fraction, free tensors or use a smaller batch.";
  } else if (idle >= e.requested) {
    advice =
        "The cached memory is in pieces that are too small or belong to other streams: "
        "PYTORCH_ALLOC_CONF=expandable_segments:True avoids such fragmentation.";
  }
  TORCH_CHECK_WITH(
      OutOfMemoryError,
      false,
      "kunlun out of memory. Tried to allocate ",
      format_size(e.requested),
      ". Device ",
      e.device,
      " has a total capacity of ",
      format_size(e.total_bytes),
      " of which ",
      format_size(e.free_bytes),
      " is free. ",
      e.limited ? c10::str("This process may reserve ", format_size(e.allowed), " of it. ") : std::string(),
      "This process has ",
      format_size(static_cast<uint64_t>(e.allocated)),
      " allocated by torch",
      e.in_private_pools != 0
          ? c10::str(", ", format_size(static_cast<uint64_t>(e.in_private_pools)), " reserved in memory pools,")
          : std::string(),
      " and ",
      format_size(idle),
      " reserved by torch but unallocated. ",
      advice);
}

// Runs a call of the core and turns what it throws into torch's exceptions.
template <typename Function>
auto translate(Function&& function) {
  try {
    return function();
  } catch (const AllocatorOutOfMemory& e) {
    raiseOutOfMemory(e);
  } catch (const AllocatorDriverFailure& e) {
    raiseLastError(e.result, e.call);
  }
}

void deleteMemory(void* ptr) {
  // A forked child has no right to the parent's device, and after the shutdown there is no device.
  if (ptr == nullptr || !checkUsable()) {
    return;
  }
  CachingAllocatorCore& memory = core();
  if (c10::memoryProfilingEnabled()) [[unlikely]] {
    kl_pointer_info info{};
    if (chip::runtime().pointer_info(ptr, &info) == KL_SUCCESS && info.type == KL_POINTER_DEVICE) {
      const auto size = static_cast<int64_t>(memory.blockSize(ptr));
      memory.free(ptr);
      const auto [allocated, reserved] = memory.usage(info.device);
      c10::reportMemoryUsageToProfiler(
          ptr, -size, allocated, reserved, c10::Device(kType, static_cast<c10::DeviceIndex>(info.device)));
      return;
    }
  }
  if (!memory.free(ptr)) [[unlikely]] {
    TORCH_WARN("kunlun memory at ", ptr, " was freed twice or does not come from the caching allocator; ignored");
  }
}

struct Allocator final : public c10::DeviceAllocator {
  c10::DataPtr allocate(size_t nbytes) override {
    const c10::DeviceIndex device = currentDevice();
    return allocateOnStream(nbytes, device, currentStreamHandle(device));
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &deleteMemory;
  }

  void copy_data(void* dest, const void* src, std::size_t count) const override {
    if (count == 0) {
      return;
    }
    // Copies within one device, in order with the work that made the source.
    kl_pointer_info info{};
    check(chip::runtime().pointer_info(dest, &info), "pointer_info");
    const kl_stream stream =
        currentStreamHandle(info.device >= 0 ? static_cast<c10::DeviceIndex>(info.device) : currentDevice());
    check(chip::runtime().memcpy_async(dest, src, count, KL_COPY_DEVICE_TO_DEVICE, 0, stream), "memcpy_async");
    afterLaunch(stream);
  }

  bool initialized() override {
    return checkUsable();
  }

  void emptyCache(c10::MempoolId_t pool) override {
    CachingAllocator::emptyCache(pool);
  }

  void recordStream(const c10::DataPtr& ptr, c10::Stream stream) override {
    CachingAllocator::recordStream(ptr, stream);
  }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    return CachingAllocator::getDeviceStats(device);
  }

  void resetAccumulatedStats(c10::DeviceIndex device) override {
    CachingAllocator::resetAccumulatedStats(device);
  }

  void resetPeakStats(c10::DeviceIndex device) override {
    CachingAllocator::resetPeakStats(device);
  }

  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return CachingAllocator::getMemoryInfo(device);
  }
};

c10::CachingAllocator::Stat convert(const AllocatorStat& stat) {
  c10::CachingAllocator::Stat result;
  result.current = stat.current;
  result.peak = stat.peak;
  result.allocated = stat.allocated;
  result.freed = stat.freed;
  return result;
}

c10::CachingAllocator::StatArray convert(const AllocatorStatArray& stats) {
  return {convert(stats[0]), convert(stats[1]), convert(stats[2])};
}

c10::DeviceAllocator* native() {
  static auto* instance = new Allocator; // leaked: torch keeps the pointer until the end of the process
  return instance;
}

REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, native())

} // namespace

c10::DeviceAllocator* get() {
  c10::DeviceAllocator* pluggable = PluggableAllocator::current();
  return pluggable == nullptr ? native() : pluggable;
}

// Made at the first use of a device and never destroyed, since tensors may be freed until the very end.
CachingAllocatorCore& core() {
  static CachingAllocatorCore* instance = [] {
    lazyInit();
    parseAllocatorConfig();
    auto* made = new CachingAllocatorCore(chip::runtime(), deviceCount(), &readSettings, &readDivisions, &reclaimLoans);
    core_exists.store(true, std::memory_order_release);
    return made;
  }();
  return *instance;
}

bool coreExists() noexcept {
  return core_exists.load(std::memory_order_acquire);
}

c10::DataPtr allocateOnStream(size_t nbytes, c10::DeviceIndex device, kl_stream stream, uint64_t sequence_limit) {
  const c10::Device where(kType, device);
  if (nbytes == 0) {
    return {nullptr, nullptr, &deleteMemory, where};
  }
  if (PluggableAllocator::current() != nullptr) [[unlikely]] {
    return PluggableAllocator::allocateOnStream(nbytes, device, stream);
  }
  CachingAllocatorCore& memory = core();
  void* ptr = translate([&] {
    return isEnabled() ? memory.malloc(device, stream, nbytes, sequence_limit)
                       : memory.mallocUncached(device, stream, nbytes);
  });
  if (c10::memoryProfilingEnabled()) [[unlikely]] {
    const auto [allocated, reserved] = memory.usage(device);
    c10::reportMemoryUsageToProfiler(ptr, static_cast<int64_t>(memory.blockSize(ptr)), allocated, reserved, where);
  }
  return {ptr, ptr, &deleteMemory, where};
}

Route currentRoute() {
  Route route{allocator_route, nullptr};
  if (coreExists() && core().recordsHistory()) [[unlikely]] {
    route.context = core().gather();
  }
  return route;
}

HostCallScope::HostCallScope(kl_stream stream, uint64_t sequence, const Route& route) noexcept
    : previous_stream_(allocator_host_call.stream),
      previous_sequence_(allocator_host_call.sequence),
      previous_pools_(allocator_route),
      previous_context_(allocator_borrowed_context) {
  allocator_host_call = {stream, sequence};
  allocator_route = route.pools;
  allocator_borrowed_context = &route.context;
}

HostCallScope::~HostCallScope() {
  allocator_host_call = {previous_stream_, previous_sequence_};
  allocator_route = previous_pools_;
  allocator_borrowed_context = previous_context_;
}

void recordStream(const c10::DataPtr& ptr, c10::Stream stream) {
  // Empty tensors have no memory, and memory of other origin is its owner's business, as on CUDA.
  if (ptr.get() == nullptr || ptr.get_deleter() != &deleteMemory) {
    return;
  }
  const Stream wrapped(stream);
  const kl_stream handle = wrapped.handle();
  core().recordStream(ptr.get(), wrapped.device_index(), handle);
}

void emptyCache(c10::MempoolId_t pool) {
  if (checkUsable() && coreExists()) {
    translate([&] { core().emptyCache(pool); });
  }
}

AllocatorSleep putToSleep(c10::DeviceIndex device, c10::MempoolId_t pool, bool keep, uint64_t& bytes) {
  return translate([&] { return core().putToSleep(device, pool, keep, currentStreamHandle(device), bytes); });
}

AllocatorSleep wakeUp(c10::DeviceIndex device, c10::MempoolId_t pool) {
  return translate([&] { return core().wakeUp(device, pool, currentStreamHandle(device)); });
}

bool isAsleep(const void* memory) {
  return coreExists() && core().isAsleep(memory);
}

void refuseAsleep() {
  TORCH_CHECK(false, "the tensor lies in a memory pool that sleeps and has no memory: call the pool's wake_up() first");
}

void enable(bool value) {
  caching.store(value, std::memory_order_relaxed);
}

bool isEnabled() noexcept {
  return caching.load(std::memory_order_relaxed);
}

void attachOutOfMemoryObserver(OutOfMemoryObserver observer) {
  std::lock_guard lock(observers_lock);
  observers().push_back(std::move(observer));
}

c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) {
  device = resolveDevice(device);
  c10::CachingDeviceAllocator::DeviceStats result;
  result.max_split_size = static_cast<int64_t>(AcceleratorAllocatorConfig::max_split_size());
  if (runtimeState() == RuntimeState::NotStarted) {
    return result; // nothing has been allocated
  }
  lazyInit();
  PluggableAllocator::refuse("memory_stats");
  const AllocatorStats stats = core().stats(device);
  result.allocation = convert(stats.allocation);
  result.segment = convert(stats.segment);
  result.active = convert(stats.active);
  result.inactive_split = convert(stats.inactive_split);
  result.allocated_bytes = convert(stats.allocated_bytes);
  result.reserved_bytes = convert(stats.reserved_bytes);
  result.active_bytes = convert(stats.active_bytes);
  result.inactive_split_bytes = convert(stats.inactive_split_bytes);
  result.requested_bytes = convert(stats.requested_bytes);
  result.oversize_allocations = convert(stats.oversize_allocations);
  result.oversize_segments = convert(stats.oversize_segments);
  result.num_alloc_retries = stats.num_alloc_retries;
  result.num_ooms = stats.num_ooms;
  result.num_sync_all_streams = stats.num_sync_all_streams;
  result.num_device_alloc = stats.num_device_alloc;
  result.num_device_free = stats.num_device_free;
#if !KUNLUN_TORCH_BEFORE(2, 13)
  for (const auto& [id, reserved] : core().poolReservedBytes(device)) {
    result.reserved_bytes_by_private_pools[id] = convert(reserved);
  }
#endif
  return result;
}

void resetAccumulatedStats(c10::DeviceIndex device) {
  device = resolveDevice(device);
  core().resetAccumulatedStats(device);
}

void resetPeakStats(c10::DeviceIndex device) {
  device = resolveDevice(device);
  core().resetPeakStats(device);
}

std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) {
  lazyInit();
  device = resolveDevice(device);
  uint64_t free_bytes = 0;
  uint64_t total_bytes = 0;
  check(chip::runtime().memory_info(device, &free_bytes, &total_bytes), "memory_info");
  return {free_bytes, total_bytes};
}

void setMemoryFraction(double fraction, c10::DeviceIndex device) {
  TORCH_CHECK_VALUE(fraction >= 0 && fraction <= 1, "the memory fraction must be between 0 and 1, got ", fraction);
  lazyInit();
  device = resolveDevice(device);
  PluggableAllocator::refuse("set_per_process_memory_fraction");
  translate([&] { core().setMemoryFraction(device, fraction); });
}

double getMemoryFraction(c10::DeviceIndex device) {
  lazyInit();
  return core().memoryFraction(resolveDevice(device));
}

std::pair<void*, size_t> getBaseAllocation(void* ptr) {
  lazyInit();
  return core().baseAllocation(ptr);
}

} // namespace kunlun::CachingAllocator
