// Faults that the simulated chip shows on request, and the speed of its links.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/Env.h"
#include "runtime/chip/chip.h"

namespace kunlun::sim {

class Stream;

// ---- faults: KUNLUN_SIM_FAULT, and at run time

// Counts from now. Each fault shows once.
void injectFault(const SimFault& fault);
// Those that have not shown yet, in the variable's grammar; `after` is what is left.
std::vector<std::string> pendingFaults();
void clearFaults();
// Lets every stream go on that hangs now, or is about to because its hang has been launched.
void releaseHangs();
// Streams that hang now.
int hangingStreams();

// Takes the faults of the environment. Called once, at the start of the chip.
void startFaults();

namespace detail {
inline std::atomic<bool> faults_pending{false};
}

inline bool faultsPending() {
  return detail::faults_pending.load(std::memory_order_relaxed);
}

// Called for each operator before it is enqueued, while faults are pending: counts it, and where a fault's turn has
// come, shows it. Returns true when that takes the operator's place; raises for a launch that is refused.
bool showFault(Stream& stream, const char* op);

// ---- links

// A way that data take, one after the other, at a limited speed.
class Link {
 public:
  // Bytes a second; none: no limit.
  void setSpeed(std::optional<uint64_t> speed);
  bool isLimited() const {
    return speed_.load(std::memory_order_relaxed) != 0;
  }
  // On a stream's thread: waits as long as the bytes are on their way, using no core. False when the device was reset
  // or the process exits in the meantime.
  bool pass(Stream& stream, uint64_t bytes);

 private:
  std::atomic<uint64_t> speed_{0};
  std::mutex lock_;     // guards free_at_
  int64_t free_at_ = 0; // when the last byte that was sent so far has arrived; nanoseconds of the steady clock
};

// Speeds of all devices: KUNLUN_SIM_COPY_SPEED and KUNLUN_SIM_LINK_SPEED until they are set.
void setCopySpeed(std::optional<uint64_t> bytes_a_second);
void setLinkSpeed(std::optional<uint64_t> bytes_a_second);

} // namespace kunlun::sim
