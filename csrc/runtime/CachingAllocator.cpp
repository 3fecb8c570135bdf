// torch's view of the caching allocator: c10::DeviceAllocator over CachingAllocatorCore.
#include "runtime/CachingAllocator.h"

#include <algorithm>
#include <string>

#include <c10/core/AllocatorConfig.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include "runtime/Error.h"
#include "runtime/Stream.h"
#include "runtime/allocator/CachingAllocatorCore.h"
#include "runtime/chip/Loader.h"

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
  return settings;
}

size_t readDivisions(size_t size) {
  return AcceleratorAllocatorConfig::roundup_power2_divisions(size);
}

void warnAboutIgnoredSettings() {
  if (AcceleratorAllocatorConfig::use_expandable_segments()) {
    TORCH_WARN("PYTORCH_ALLOC_CONF: expandable_segments has no effect on kunlun, whose allocator does not offer it");
  }
  if (AcceleratorAllocatorConfig::garbage_collection_threshold() > 0) {
    TORCH_WARN(
        "PYTORCH_ALLOC_CONF: garbage_collection_threshold has no effect on kunlun, whose allocator gives unused memory "
        "back only when it runs out");
  }
}

// Made at the first use of a device and never destroyed, since tensors may be freed until the very end.
CachingAllocatorCore& core() {
  static CachingAllocatorCore* instance = [] {
    lazyInit();
    warnAboutIgnoredSettings();
    return new CachingAllocatorCore(chip::runtime(), deviceCount(), &readSettings, &readDivisions);
  }();
  return *instance;
}

[[noreturn]] void raiseOutOfMemory(const AllocatorOutOfMemory& e) {
  c10::reportOutOfMemoryToProfiler(
      static_cast<int64_t>(e.requested),
      static_cast<size_t>(e.allocated),
      static_cast<size_t>(e.reserved),
      c10::Device(kType, static_cast<c10::DeviceIndex>(e.device)));
  const auto idle = static_cast<uint64_t>(e.reserved - e.allocated);
  std::string advice = "Free tensors, use a smaller batch, or give the device more memory.";
  if (e.limited) {
    advice = "Raise the limit with torch.kunlun.set_per_process_memory_fraction, free tensors or use a smaller batch.";
  } else if (idle >= e.requested) {
    advice =
        "The cached memory is in pieces that are too small or belong to other streams: "
        "PYTORCH_ALLOC_CONF=max_split_size_mb:<size> keeps large blocks whole.";
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
      " allocated by torch and ",
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
    TORCH_CHECK_NOT_IMPLEMENTED(
        pool == c10::MempoolId_t(0, 0), "the kunlun allocator has no private memory pools to empty");
    CachingAllocator::emptyCache();
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

// Leaked: torch keeps the pointer until the end of the process.
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, get())

} // namespace

c10::DeviceAllocator* get() {
  static auto* instance = new Allocator;
  return instance;
}

c10::DataPtr allocateOnStream(size_t nbytes, c10::DeviceIndex device, kl_stream stream, uint64_t sequence_limit) {
  const c10::Device where(kType, device);
  if (nbytes == 0) {
    return {nullptr, nullptr, &deleteMemory, where};
  }
  CachingAllocatorCore& memory = core();
  void* ptr = translate([&] { return memory.malloc(device, stream, nbytes, sequence_limit); });
  if (c10::memoryProfilingEnabled()) [[unlikely]] {
    const auto [allocated, reserved] = memory.usage(device);
    c10::reportMemoryUsageToProfiler(ptr, static_cast<int64_t>(memory.blockSize(ptr)), allocated, reserved, where);
  }
  return {ptr, ptr, &deleteMemory, where};
}

HostCallScope::HostCallScope(kl_stream stream, uint64_t sequence) noexcept
    : previous_stream_(allocator_host_call.stream), previous_sequence_(allocator_host_call.sequence) {
  allocator_host_call = {stream, sequence};
}

HostCallScope::~HostCallScope() {
  allocator_host_call = {previous_stream_, previous_sequence_};
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

void emptyCache() {
  if (checkUsable()) {
    translate([] { core().emptyCache(); });
  }
}

c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) {
  device = resolveDevice(device);
  c10::CachingDeviceAllocator::DeviceStats result;
  result.max_split_size = static_cast<int64_t>(AcceleratorAllocatorConfig::max_split_size());
  if (runtimeState() == RuntimeState::NotStarted) {
    return result; // nothing has been allocated
  }
  lazyInit();
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
  TORCH_CHECK_VALUE(
      fraction > 0 && fraction <= 1, "the memory fraction must be greater than 0 and at most 1, got ", fraction);
  lazyInit();
  device = resolveDevice(device);
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
