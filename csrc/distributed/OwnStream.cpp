// Streams between two owners.
#include "distributed/OwnStream.h"

#include <array>
#include <mutex>
#include <vector>

#include "runtime/Error.h"
#include "runtime/chip/Loader.h"

namespace kunlun::distributed {

namespace {

struct Unowned {
  std::mutex lock;                                                     // guards the rest
  std::array<std::array<std::vector<Stream>, 2>, kMaxDevices> streams; // by device and priority
};

Unowned& unowned() {
  static Unowned& value = *new Unowned; // groups may end after static objects
  return value;
}

Stream take(bool high_priority, c10::DeviceIndex device) {
  {
    Unowned& u = unowned();
    std::lock_guard lock(u.lock);
    auto& streams = u.streams[static_cast<size_t>(device)][high_priority ? 1 : 0];
    if (!streams.empty()) {
      const Stream stream = streams.back();
      streams.pop_back();
      return stream;
    }
  }
  lazyInit();
  kl_stream handle = nullptr;
  check(chip::runtime().stream_create(device, high_priority ? -1 : 0, &handle), "stream_create");
  markPrimaryContext(device);
  return getStreamFromExternal(handle, device);
}

} // namespace

OwnStream::OwnStream(bool high_priority, c10::DeviceIndex device)
    : high_priority_(high_priority), stream_(take(high_priority, device)) {}

OwnStream::~OwnStream() {
  Unowned& u = unowned();
  std::lock_guard lock(u.lock);
  u.streams[static_cast<size_t>(stream_.device_index())][high_priority_ ? 1 : 0].push_back(stream_);
}

} // namespace kunlun::distributed
