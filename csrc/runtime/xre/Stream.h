// Streams and events over the vendor's runtime.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "runtime/chip/chip.h"
#include "runtime/xre/Library.h"

namespace kunlun::xre {

// Makes the device current for the calling thread. The vendor's libraries may have changed it at any time.
void useDevice(int device);

NativeStream createStream(int device);
void destroyStream(NativeStream stream);
// Raises for a stream that is not ours.
int deviceOfStream(NativeStream stream);
bool isIdle(NativeStream stream);
// Both raise what Event::failPending has left there, once.
void waitForStream(NativeStream stream);
void waitForDevice(int device);
// Grows with each call: operators of the vendor's libraries enqueue without telling us, so that anything may have been
// enqueued in between.
uint64_t nextSequence(NativeStream stream);

// One recording of an event. Streams that wait for it hold it, so that recording the event again or destroying it while
// somebody waits changes nothing for them.
class Recording;

class Event {
 public:
  explicit Event(int device) : device_(device) {}

  void record(NativeStream stream);
  void makeWait(NativeStream stream);
  bool query() const;
  void synchronize() const;
  // Takes over the recording of another one.
  void share(const Event& other);
  // Unless its recording has been passed: what the stream does before it has failed, though the vendor's runtime does
  // not know of it. The next wait for the stream, or for one that waits for it now, raises the error.
  void failPending(const kl_error& error) const;

 private:
  std::shared_ptr<Recording> current() const;

  const int device_;
  mutable std::mutex lock_; // guards recording_
  std::shared_ptr<Recording> recording_;
};

} // namespace kunlun::xre
