// Streams: the default stream, a pool per device and priority, and the thread's current streams.
#pragma once

#include <array>
#include <ostream>
#include <utility>
#include <vector>

#include <c10/core/DeviceType.h>
#include <c10/core/Stream.h>
#include <c10/util/Exception.h>

#include "runtime/Device.h"
#include "runtime/chip/chip.h"

namespace kunlun {

// Pool streams per device and priority; handed out round robin.
inline constexpr int kStreamsPerPool = 32;

// A c10::Stream that is known to be on a kunlun device, with what the chip interface needs. Stream ids: 0 is the
// default stream, (index << 2 | 1) a normal and (index << 2 | 2) a high-priority stream of the pool, (index << 2 | 3) a
// stream that somebody else made.
class Stream {
 public:
  enum Unchecked { UNCHECKED };

  explicit Stream(c10::Stream stream) : stream_(stream) {
    TORCH_CHECK_VALUE(
        stream.device_type() == c10::DeviceType::PrivateUse1, "expected a kunlun stream, got one on ", stream.device());
  }
  Stream(Unchecked, c10::Stream stream) : stream_(stream) {}

  bool operator==(const Stream& other) const noexcept {
    return stream_ == other.stream_;
  }
  bool operator!=(const Stream& other) const noexcept {
    return stream_ != other.stream_;
  }
  operator c10::Stream() const {
    return stream_;
  }
  c10::Stream unwrap() const {
    return stream_;
  }
  c10::Device device() const {
    return stream_.device();
  }
  c10::DeviceIndex device_index() const {
    return stream_.device_index();
  }
  c10::StreamId id() const {
    return stream_.id();
  }
  // 0, or -1 for a stream of the high-priority pool.
  int priority() const;
  // The driver's stream; created at first use.
  kl_stream handle() const;
  // True when all work enqueued so far is done. Raises what the stream has to report.
  bool query() const;
  // Waits for all work enqueued so far. Raises what the stream has to report.
  void synchronize() const;

 private:
  c10::Stream stream_;
};

std::ostream& operator<<(std::ostream& out, const Stream& stream);

// device -1 is the current device everywhere below.
Stream getDefaultStream(c10::DeviceIndex device = -1);
Stream getCurrentStream(c10::DeviceIndex device = -1);
// Makes it the calling thread's current stream of its device; the current device does not change.
void setCurrentStream(Stream stream);
// A negative priority is high, any other normal, as in CUDA.
Stream getStreamFromPool(int priority, c10::DeviceIndex device = -1);
Stream getStreamFromPool(bool high_priority = false, c10::DeviceIndex device = -1);
// The stream of a handle that comes from elsewhere, such as another library. It is the caller's: it must outlive every
// use, and it must belong to `device`, which is checked if the driver can tell. A handle of one of our own streams
// gives that stream.
Stream getStreamFromExternal(kl_stream handle, c10::DeviceIndex device = -1);
// Those streams of the device that have work to do.
std::vector<kl_stream> busyStreams(c10::DeviceIndex device);
// {least, greatest} priority.
std::pair<int, int> streamPriorityRange();

namespace detail {
// What a thread remembers about its current streams. A null handle means that it has not been looked up yet.
struct ThreadStreams {
  std::array<kl_stream, kMaxDevices> handle{};
  std::array<c10::StreamId, kMaxDevices> id{};
};
extern constinit thread_local ThreadStreams thread_streams;
kl_stream lookUpCurrentStream(c10::DeviceIndex device);
void waitForLaunch(kl_stream stream);
} // namespace detail

// The driver's stream that work of this thread on `device` goes to. A few ns; starts the device at first use and
// raises in a forked child, so a launcher needs no other check.
inline kl_stream currentStreamHandle(c10::DeviceIndex device) {
  if (checkUsable() && device >= 0 && device < kMaxDevices) [[likely]] {
    if (kl_stream stream = detail::thread_streams.handle[device]) [[likely]] {
      return stream;
    }
  }
  return detail::lookUpCurrentStream(device);
}

namespace detail {
extern std::atomic<bool> launch_blocking;
}

// Called after every launch: with KUNLUN_LAUNCH_BLOCKING=1 waits for it, so that a failure is raised at the call.
inline void afterLaunch(kl_stream stream) {
  if (detail::launch_blocking.load(std::memory_order_relaxed)) [[unlikely]] {
    detail::waitForLaunch(stream);
  }
}

} // namespace kunlun
