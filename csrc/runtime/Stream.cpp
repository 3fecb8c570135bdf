// Streams: the default stream, a pool per device and priority, and the thread's current streams.
#include "runtime/Stream.h"

#include <algorithm>
#include <mutex>

#include "runtime/Error.h"
#include "runtime/SyncDebug.h"
#include "runtime/chip/Loader.h"

namespace kunlun {

namespace detail {

constinit thread_local ThreadStreams thread_streams;
std::atomic<bool> launch_blocking{false};

} // namespace detail

namespace {

enum class StreamKind : int { Normal = 1, HighPriority = 2, External = 3 };
constexpr int kKindBits = 2;
constexpr int kStreamsPerDevice = 1 + 2 * kStreamsPerPool;

struct DeviceStreams {
  // Guards the creation of the driver's streams, which never change once they are there, and `external`.
  std::mutex mutex;
  std::vector<kl_stream> external; // made by others, in the order in which we were told of them
  std::array<std::atomic<kl_stream>, kStreamsPerDevice> handles{};
  std::atomic<uint32_t> next_normal{0};
  std::atomic<uint32_t> next_high{0};
};

// Streams live as long as the process: ids travel freely, and nobody could tell when the last one is gone.
DeviceStreams device_streams[kMaxDevices];

c10::StreamId makeId(StreamKind kind, uint32_t index) {
  return (static_cast<c10::StreamId>(index) << kKindBits) | static_cast<int>(kind);
}

c10::Stream makeStream(c10::DeviceIndex device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::DeviceType::PrivateUse1, device), id);
}

// Place of a stream in DeviceStreams::handles.
int slotOf(c10::StreamId id) {
  if (id == 0) {
    return 0;
  }
  const auto kind = id & ((1 << kKindBits) - 1);
  const auto index = id >> kKindBits;
  TORCH_CHECK_VALUE(
      (kind == static_cast<int>(StreamKind::Normal) || kind == static_cast<int>(StreamKind::HighPriority)) &&
          index >= 0 && index < kStreamsPerPool,
      "there is no kunlun stream with id ",
      id);
  return 1 + static_cast<int>(kind - 1) * kStreamsPerPool + static_cast<int>(index);
}

// The reverse of slotOf.
c10::StreamId idOf(int slot) {
  if (slot == 0) {
    return 0;
  }
  const auto kind = static_cast<StreamKind>(1 + (slot - 1) / kStreamsPerPool);
  return makeId(kind, static_cast<uint32_t>((slot - 1) % kStreamsPerPool));
}

StreamKind kindOf(c10::StreamId id) {
  return static_cast<StreamKind>(id & ((1 << kKindBits) - 1));
}

bool isHighPriority(c10::StreamId id) {
  return kindOf(id) == StreamKind::HighPriority;
}

kl_stream externalHandle(DeviceStreams& streams, c10::StreamId id) {
  std::lock_guard<std::mutex> lock(streams.mutex);
  const auto index = static_cast<uint64_t>(id >> kKindBits);
  TORCH_CHECK_VALUE(index < streams.external.size(), "there is no kunlun stream with id ", id);
  return streams.external[index];
}

// Raises for a handle of somebody else's that is no stream, or one of another device, if the driver can tell.
void checkExternal(kl_stream handle, c10::DeviceIndex device) {
  int32_t owner = -1;
  const kl_result result = chip::runtime().stream_device(handle, &owner);
  if (result == KL_ERROR_NOT_IMPLEMENTED) {
    return; // the first use will show
  }
  check(result, "stream_device");
  TORCH_CHECK_VALUE(
      owner == device,
      "the stream ",
      static_cast<void*>(handle),
      " belongs to kunlun:",
      owner,
      " and not to kunlun:",
      static_cast<int>(device));
}

kl_stream handleOf(c10::DeviceIndex device, c10::StreamId id) {
  lazyInit();
  device = resolveDevice(device);
  auto& streams = device_streams[device];
  if (kindOf(id) == StreamKind::External) {
    return externalHandle(streams, id);
  }
  auto& handle = streams.handles[slotOf(id)];
  kl_stream stream = handle.load(std::memory_order_acquire);
  if (stream == nullptr) {
    std::lock_guard<std::mutex> lock(streams.mutex);
    stream = handle.load(std::memory_order_relaxed);
    if (stream == nullptr) {
      check(chip::runtime().stream_create(device, isHighPriority(id) ? -1 : 0, &stream), "stream_create");
      markPrimaryContext(device);
      handle.store(stream, std::memory_order_release);
    }
  }
  return stream;
}

} // namespace

namespace detail {

kl_stream lookUpCurrentStream(c10::DeviceIndex device) {
  lazyInit();
  device = resolveDevice(device);
  kl_stream stream = handleOf(device, thread_streams.id[device]);
  thread_streams.handle[device] = stream;
  return stream;
}

void waitForLaunch(kl_stream stream) {
  check(chip::runtime().stream_synchronize(stream), "stream_synchronize");
}

} // namespace detail

int Stream::priority() const {
  return isHighPriority(id()) ? -1 : 0;
}

kl_stream Stream::handle() const {
  return handleOf(device_index(), id());
}

bool Stream::query() const {
  return checkReady(chip::runtime().stream_query(handle()), "stream_query");
}

void Stream::synchronize() const {
  noteSynchronization("a wait for a stream");
  check(chip::runtime().stream_synchronize(handle()), "stream_synchronize");
}

std::ostream& operator<<(std::ostream& out, const Stream& stream) {
  return out << stream.unwrap();
}

Stream getDefaultStream(c10::DeviceIndex device) {
  return Stream(Stream::UNCHECKED, makeStream(resolveDevice(device), 0));
}

Stream getCurrentStream(c10::DeviceIndex device) {
  device = resolveDevice(device);
  return Stream(Stream::UNCHECKED, makeStream(device, detail::thread_streams.id[device]));
}

void setCurrentStream(Stream stream) {
  const c10::DeviceIndex device = resolveDevice(stream.device_index());
  // Both raise for an id that does not exist.
  if (kindOf(stream.id()) == StreamKind::External) {
    externalHandle(device_streams[device], stream.id());
  } else {
    slotOf(stream.id());
  }
  detail::thread_streams.id[device] = stream.id();
  detail::thread_streams.handle[device] = nullptr;
}

Stream getStreamFromPool(int priority, c10::DeviceIndex device) {
  return getStreamFromPool(priority < 0, device);
}

Stream getStreamFromPool(bool high_priority, c10::DeviceIndex device) {
  if (runtimeState() == RuntimeState::BadFork) {
    lazyInit(); // raises, and not only once the stream is used
  }
  device = resolveDevice(device);
  auto& streams = device_streams[device];
  auto& next = high_priority ? streams.next_high : streams.next_normal;
  const uint32_t index = next.fetch_add(1, std::memory_order_relaxed) % kStreamsPerPool;
  const auto kind = high_priority ? StreamKind::HighPriority : StreamKind::Normal;
  return Stream(Stream::UNCHECKED, makeStream(device, makeId(kind, index)));
}

Stream getStreamFromExternal(kl_stream handle, c10::DeviceIndex device) {
  TORCH_CHECK_VALUE(handle != nullptr, "expected the handle of a stream that exists, got 0");
  lazyInit();
  device = resolveDevice(device);
  auto& streams = device_streams[device];
  std::lock_guard<std::mutex> lock(streams.mutex);
  for (int slot = 0; slot < kStreamsPerDevice; ++slot) {
    if (streams.handles[slot].load(std::memory_order_relaxed) == handle) {
      return Stream(Stream::UNCHECKED, makeStream(device, idOf(slot)));
    }
  }
  checkExternal(handle, device);
  const auto known = std::find(streams.external.begin(), streams.external.end(), handle);
  const auto index = static_cast<uint32_t>(known - streams.external.begin());
  if (known == streams.external.end()) {
    streams.external.push_back(handle);
  }
  return Stream(Stream::UNCHECKED, makeStream(device, makeId(StreamKind::External, index)));
}

std::vector<kl_stream> busyStreams(c10::DeviceIndex device) {
  device = resolveDevice(device);
  auto& streams = device_streams[device];
  std::vector<kl_stream> all;
  {
    std::lock_guard<std::mutex> lock(streams.mutex);
    all = streams.external;
    // Those that their owner has destroyed meanwhile.
    std::erase_if(all, [](kl_stream stream) {
      int32_t owner = -1;
      return chip::runtime().stream_device(stream, &owner) == KL_ERROR_VALUE;
    });
    for (const auto& handle : streams.handles) {
      if (const kl_stream stream = handle.load(std::memory_order_relaxed)) {
        all.push_back(stream);
      }
    }
  }
  // A stream that cannot say counts as busy.
  std::erase_if(all, [](kl_stream stream) { return chip::runtime().stream_query(stream) == KL_SUCCESS; });
  return all;
}

std::pair<int, int> streamPriorityRange() {
  return {0, -1};
}

} // namespace kunlun
