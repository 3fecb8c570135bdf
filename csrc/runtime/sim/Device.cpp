// The simulated devices: enumeration, start, poison and reset.
#include "runtime/sim/Device.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>
#include <thread>

#include "runtime/Env.h"
#include "runtime/sim/HostInfo.h"
#include "runtime/sim/PeerMemory.h"
#include "runtime/sim/Process.h"
#include "runtime/sim/Stream.h"

namespace kunlun::sim {
namespace {

constexpr int kMaxDevices = 64;
constexpr uint64_t kMemoryUnit = uint64_t{2} << 20;
constexpr uint64_t kMaxDefaultMemory = uint64_t{4} << 30;

struct Started {
  std::mutex lock; // guards the start of a device, and the speeds
  std::array<std::atomic<Device*>, kMaxDevices> devices{};
  // Of every device, also of those that start later. The environment's until they are set.
  std::optional<uint64_t> copy_speed = env().sim_copy_speed;
  std::optional<uint64_t> link_speed = env().sim_link_speed;
};

Started& started() {
  static Started& value = *new Started;
  return value;
}

// Physical numbers of the devices that the process sees.
const std::vector<int>& visibleDevices() {
  static const std::vector<int>& value = *new std::vector<int>([] {
    const Env& e = env();
    std::vector<int> devices;
    if (!e.visible_devices) {
      for (int i = 0; i < e.sim_devices; ++i) {
        devices.push_back(i);
      }
      return devices;
    }
    for (const int device : *e.visible_devices) {
      if (device >= e.sim_devices) {
        discardEnv(); // so that a corrected list is seen by the next call
        throw EnvError(
            "KUNLUN_VISIBLE_DEVICES names device " + std::to_string(device) + ", but there are " +
            std::to_string(e.sim_devices) + " simulated devices (KUNLUN_SIM_DEVICES), numbered from 0");
      }
    }
    return *e.visible_devices;
  }());
  return value;
}

} // namespace

int deviceCount() {
  return static_cast<int>(visibleDevices().size());
}

void checkIndex(int index) {
  const int count = deviceCount();
  if (index < 0 || index >= count) {
    raise(
        KL_ERROR_INDEX,
        -1,
        "kunlun device %d does not exist: this process sees %d simulated device%s",
        index,
        count,
        count == 1 ? "" : "s");
  }
}

uint64_t deviceMemory() {
  static const uint64_t bytes = [] {
    const Env& e = env();
    if (e.sim_memory) {
      return std::max(kMemoryUnit, *e.sim_memory & ~(Arena::kPage - 1));
    }
    const uint64_t devices = static_cast<uint64_t>(std::max(1, e.sim_devices));
    const uint64_t share = availableHostMemory() / 2 / devices;
    return std::max(kMemoryUnit, std::min(kMaxDefaultMemory, share) & ~(kMemoryUnit - 1));
  }();
  return bytes;
}

void deviceProperties(int index, kl_device_properties* out) {
  checkIndex(index);
  const int physical = visibleDevices()[static_cast<size_t>(index)];
  *out = kl_device_properties{};
  std::snprintf(out->name, sizeof(out->name), "Kunlun XPU (simulated)");
  std::snprintf(out->uuid, sizeof(out->uuid), "6b756e6c-756e-4000-8000-%012x", static_cast<unsigned>(physical));
  out->total_memory = deviceMemory();
  out->l3_memory = 0;
  out->major = 3;
  out->minor = 0;
  out->multi_processor_count = static_cast<int32_t>(std::max(1u, std::thread::hardware_concurrency()));
  out->physical_id = physical;
  out->capabilities = KL_CAP_EVENT_TIMING | KL_CAP_PEER_ACCESS | KL_CAP_IPC;
  if ((env().sim_missing_dtypes & (1u << KL_FLOAT64)) == 0) {
    out->capabilities |= KL_CAP_FP64;
  }
  if (env().sim_host_addressable) {
    out->capabilities |= KL_CAP_HOST_ADDRESSABLE;
  }
}

Device* startedDevice(int index) {
  return index < 0 || index >= kMaxDevices
      ? nullptr
      : started().devices[static_cast<size_t>(index)].load(std::memory_order_acquire);
}

Device& device(int index) {
  if (Device* existing = startedDevice(index)) [[likely]] {
    return *existing;
  }
  checkIndex(index);
  Started& s = started();
  std::lock_guard lock(s.lock);
  auto& slot = s.devices[static_cast<size_t>(index)];
  if (slot.load(std::memory_order_relaxed) == nullptr) {
    startProcess();
    auto* fresh = new Device(index, deviceMemory());
    fresh->hostLink().setSpeed(s.copy_speed);
    fresh->peerLink().setSpeed(s.link_speed);
    slot.store(fresh, std::memory_order_release);
  }
  return *slot.load(std::memory_order_relaxed);
}

Device* deviceHolding(const void* ptr, uint64_t bytes) {
  for (int i = 0, count = deviceCount(); i < count; ++i) {
    Device* candidate = startedDevice(i);
    if (candidate != nullptr && candidate->arena().contains(ptr, bytes)) {
      return candidate;
    }
  }
  return importingDevice(ptr, bytes);
}

void setCopySpeed(std::optional<uint64_t> bytes_a_second) {
  Started& s = started();
  std::lock_guard lock(s.lock);
  s.copy_speed = bytes_a_second;
  for (const auto& slot : s.devices) {
    if (Device* device = slot.load(std::memory_order_relaxed)) {
      device->hostLink().setSpeed(bytes_a_second);
    }
  }
}

void setLinkSpeed(std::optional<uint64_t> bytes_a_second) {
  Started& s = started();
  std::lock_guard lock(s.lock);
  s.link_speed = bytes_a_second;
  for (const auto& slot : s.devices) {
    if (Device* device = slot.load(std::memory_order_relaxed)) {
      device->peerLink().setSpeed(bytes_a_second);
    }
  }
}

Device::Device(int index, uint64_t bytes) : index_(index), arena_(new Arena(index, bytes)) {}

std::shared_ptr<Stream> Device::createStream() {
  std::lock_guard lock(lock_);
  if (poison_ != nullptr) {
    throw Failure(*poison_);
  }
  auto stream = std::make_shared<Stream>(*this, next_stream_++);
  streams_.push_back(stream);
  return stream;
}

kl_result Device::destroyStream(Stream& stream) {
  const std::shared_ptr<Stream> kept = stream.shared_from_this();
  stream.destroy();
  const kl_result result = stream.report();
  std::lock_guard lock(lock_);
  std::erase(streams_, kept);
  return result;
}

std::vector<std::shared_ptr<Stream>> Device::streams() const {
  std::lock_guard lock(lock_);
  return streams_;
}

bool Device::hasStream(const void* address) const {
  std::lock_guard lock(lock_);
  return std::any_of(
      streams_.begin(), streams_.end(), [address](const auto& stream) { return stream.get() == address; });
}

kl_result Device::synchronize() {
  const auto all = streams();
  for (const auto& stream : all) {
    stream->refuseOwnThread("device_synchronize");
  }
  for (const auto& stream : all) {
    stream->waitUntil(stream->enqueued());
  }
  checkHealthy();
  // A fault that has spread over several streams is one failure and reported once.
  Fault first;
  for (const auto& stream : all) {
    const Fault fault = stream->unreported();
    if (fault != nullptr && (first == nullptr || fault == first) && stream->report(fault.get()) != KL_SUCCESS) {
      first = fault;
    }
  }
  return first == nullptr ? KL_SUCCESS : setLastError(*first);
}

void Device::reset() {
  const auto why = std::make_shared<const kl_error>(
      makeError(KL_ERROR_RUNTIME, index_, "", 0, "dropped because the device was reset"));
  const auto all = streams();
  for (const auto& stream : all) {
    stream->refuseOwnThread("device_reset");
  }
  for (const auto& stream : all) {
    stream->beginReset(why);
  }
  for (const auto& stream : all) {
    stream->endReset();
  }
  arena_->clear();
  std::lock_guard lock(lock_);
  poison_ = nullptr;
  poisoned_.store(false, std::memory_order_release);
  for (const auto& stream : streams_) {
    stream->setPoisoned(false);
  }
}

void Device::poison(const Fault& fault) {
  std::lock_guard lock(lock_);
  if (poison_ == nullptr) {
    poison_ = fault;
    poisoned_.store(true, std::memory_order_release);
  }
  for (const auto& stream : streams_) {
    stream->setPoisoned(true);
  }
}

Fault Device::poison() const {
  std::lock_guard lock(lock_);
  return poison_;
}

void Device::raisePoison() const {
  // A reset may have come in between.
  if (const Fault fault = poison()) {
    throw Failure(*fault);
  }
}

} // namespace kunlun::sim
