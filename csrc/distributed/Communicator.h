// A communicator of the chip with the streams that a process group uses it on.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "distributed/OwnStream.h"
#include "runtime/chip/collectives.h"

namespace kunlun::distributed {

// The chip's collectives, or an error that names the driver and what to do.
const kl_collectives& collectives();

[[noreturn]] void refuseOperation(const char* operation);

// An entry of the table; a driver without it gets an error that names the operation.
template <class Function>
Function* require(Function* entry, const char* operation) {
  if (entry == nullptr) [[unlikely]] {
    refuseOperation(operation);
  }
  return entry;
}

class Communicator {
 public:
  // Waits for all ranks.
  Communicator(
      c10::DeviceIndex device,
      int rank,
      int nranks,
      const kl_comm_id& id,
      std::chrono::milliseconds timeout,
      bool high_priority);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator();

  kl_comm handle() const {
    return handle_;
  }
  int rank() const {
    return rank_;
  }
  int size() const {
    return nranks_;
  }
  // Where asynchronous operations run. Sends and receives have one each, so that neither waits for the other.
  // They are its own: where two communicators shared one, ranks that use them in another order would wait in a circle.
  const Stream& stream() const {
    return stream_.get();
  }
  const Stream& receiveStream();

  // For how long the calling thread's next collectives may wait for peers before the call returns.
  static void setPatience(std::chrono::nanoseconds patience);

  void abort(const std::string& reason) noexcept;
  // What ended it, or nothing.
  std::optional<std::string> error() const;
  // Ranks that the collective which runs now waits for.
  std::vector<int> missingRanks() const;

 private:
  const c10::DeviceIndex device_;
  const int rank_;
  const int nranks_;
  const bool high_priority_;
  const OwnStream stream_;
  std::optional<OwnStream> receive_stream_;
  kl_comm handle_ = nullptr;
};

} // namespace kunlun::distributed
