// The simulated devices of the process.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/sim/Arena.h"
#include "runtime/sim/Faults.h"
#include "runtime/sim/Status.h"

namespace kunlun::sim {

class Stream;

class Device {
 public:
  Device(int index, uint64_t bytes);

  int index() const {
    return index_;
  }
  Arena& arena() {
    return *arena_;
  }

  // Between the host and the device, and from the device to others.
  Link& hostLink() {
    return host_link_;
  }
  Link& peerLink() {
    return peer_link_;
  }

  std::shared_ptr<Stream> createStream();
  // Waits for the stream's work. Returns the failure that nobody has been told of.
  kl_result destroyStream(Stream& stream);
  std::vector<std::shared_ptr<Stream>> streams() const;
  // Whether the address is that of one of the streams; it is not followed.
  bool hasStream(const void* address) const;

  kl_result synchronize();
  void reset();

  void poison(const Fault& fault);
  Fault poison() const;
  // Raises the fault of a poisoned device.
  void checkHealthy() const {
    if (poisoned_.load(std::memory_order_acquire)) [[unlikely]] {
      raisePoison();
    }
  }

 private:
  void raisePoison() const;

  const int index_;
  Arena* const arena_; // lives for ever
  Link host_link_;
  Link peer_link_;

  mutable std::mutex lock_; // guards everything below
  std::vector<std::shared_ptr<Stream>> streams_;
  int next_stream_ = 0;
  Fault poison_;
  std::atomic<bool> poisoned_{false}; // poison_ is set
};

// Neither of these starts anything.
int deviceCount();
void deviceProperties(int index, kl_device_properties* out);
uint64_t deviceMemory();

// The device, started. Raises KL_ERROR_INDEX.
Device& device(int index);
// The device if it has been started.
Device* startedDevice(int index);
// The started device whose memory holds the range, its own or what it has imported from another process.
Device* deviceHolding(const void* ptr, uint64_t bytes);

void checkIndex(int index);

} // namespace kunlun::sim
