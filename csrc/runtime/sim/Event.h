// Events and what they record.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "runtime/sim/Progress.h"
#include "runtime/sim/SharedEvent.h"
#include "runtime/sim/Status.h"

namespace kunlun::sim {

class Stream;

// One recording of an event on a stream. Whoever waits holds the record that was current when the wait was asked for,
// so recording the event again while somebody waits changes nothing for them.
struct EventRecord {
  Progress done; // 1 when the stream has passed it
  std::shared_ptr<Stream> stream;
  // Written by the stream's thread before `done`.
  Fault fault;
  int64_t nanoseconds = 0; // 0 without timing

  bool timing = false;
  // What other processes see of it; NULL for an event of this process alone. A recording that another process has made
  // has no stream here, and only this part tells when it is done.
  std::shared_ptr<SharedEvent> shared;
  uint64_t generation = 0;

  bool isForeign() const {
    return stream == nullptr;
  }
  bool isDone() const {
    return isForeign() ? shared->isDone(generation) : done.get() != 0;
  }
};

class Event {
 public:
  Event(int device, bool timing) : device_(device), timing_(timing) {}
  Event(int device, std::shared_ptr<SharedEvent> shared)
      : device_(device), timing_(false), shared_(std::move(shared)) {}

  int device() const {
    return device_;
  }

  void record(Stream& stream);
  // The bytes from which another process opens it.
  void exportHandle(char handle[64]) const;
  // NULL when never recorded, in whichever process.
  std::shared_ptr<EventRecord> current() const;

  bool query() const;
  // Returns the failure to report, if this is the first to learn of it.
  kl_result synchronize() const;
  // KL_NOT_READY when one of the two has not happened yet.
  static kl_result elapsed(const Event& start, const Event& end, double* milliseconds);

 private:
  const int device_;
  const bool timing_;
  const std::shared_ptr<SharedEvent> shared_; // NULL for an event of this process alone
  mutable std::mutex lock_;                   // guards record_
  std::shared_ptr<EventRecord> record_;
};

} // namespace kunlun::sim
