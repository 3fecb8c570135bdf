// The part of an event that several processes see.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "runtime/ipc/ProcessId.h"
#include "runtime/sim/Status.h"

namespace kunlun::sim {

// A page of memory that every process with the event maps. Each recording, in whichever process, takes the next
// generation; who has to wait, waits for the generation that was newest when the wait was asked for.
class SharedEvent {
 public:
  static std::shared_ptr<SharedEvent> create(int device);
  // From another process's handle, or from one of this process.
  static std::shared_ptr<SharedEvent> open(int device, const char handle[64]);
  ~SharedEvent();
  SharedEvent(const SharedEvent&) = delete;
  SharedEvent& operator=(const SharedEvent&) = delete;

  void exportHandle(int device, char handle[64]) const;

  // The newest generation, 0 if the event was never recorded.
  uint64_t newest() const;
  // Takes a generation for a recording of this process.
  uint64_t begin();
  // The recording has been passed; `failed` if the stream carried a failure.
  void finish(uint64_t generation, bool failed);

  bool isDone(uint64_t generation) const;
  // Sleeps until it is done, until `give_up`, which is asked every few milliseconds, says so (returns false), or until
  // the process that recorded it has ended. Hands the failure that whoever waited has to carry, if any, to `fault`.
  bool waitFor(uint64_t generation, const std::function<bool()>& give_up, int device, Fault* fault) const;

 private:
  struct Page;
  SharedEvent(int fd, Page* page) : fd_(fd), page_(page) {}
  static std::shared_ptr<SharedEvent> map(int device, int fd);

  const int fd_;
  Page* const page_;
};

} // namespace kunlun::sim
