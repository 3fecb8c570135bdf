// A communicator of the vendor's library, and what the adapter adds to it: order between streams, a latched failure,
// an end that waits for nobody.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <vector>

#include "runtime/xre/Status.h"
#include "runtime/xre/Stream.h"
#include "runtime/xre/collectives/Trial.h"
#include "runtime/xre/collectives/Types.h"

namespace kunlun::xre {

// Device memory of the adapter's own, freed with it.
class DeviceBlock {
 public:
  DeviceBlock(int device, uint64_t bytes);
  ~DeviceBlock();
  DeviceBlock(const DeviceBlock&) = delete;
  DeviceBlock& operator=(const DeviceBlock&) = delete;

  char* data() const {
    return static_cast<char*>(data_);
  }

 private:
  const int device_;
  void* const data_;
};

class Comm {
 public:
  // Waits for all ranks, for at most `timeout_ms`.
  Comm(int device, int rank, int nranks, const kl_comm_id& id, uint64_t timeout_ms);
  ~Comm();
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  int device() const {
    return device_;
  }
  int rank() const {
    return rank_;
  }
  int nranks() const {
    return nranks_;
  }
  NativeComm native() const {
    return native_;
  }
  void checkRank(int rank, const char* what) const;

  // As which of the vendor's types elements travel. Only those that came out right when they were tried.
  Carried carriedForMove(int32_t dtype) const;
  Reduced carriedForReduction(int32_t dtype, const kl_reduction& reduction) const;

  // Operations happen in the order of the calls, whatever their streams. What is refused before `body` calls the
  // library changes nothing. Any failure from there on ends the communicator: the peers have made the same call or
  // will, and this rank's next one would meet the wrong one of theirs.
  template <class Body>
  void enqueue(NativeStream stream, Body&& body);
  // Its parts, for several communicators at once; with lock() held.
  void checkReady(NativeStream stream) const;
  void begin(NativeStream stream);
  void end(NativeStream stream);
  void fail(NativeStream stream, const kl_error& error) noexcept;
  std::mutex& lock() {
    return lock_;
  }
  void checkCall(int result, const char* call) const {
    checkBkcl(result, call, device_);
  }

  // Device memory with the counts and displacements that an operation on `stream` reads, and their return behind it.
  // With lock() held.
  const size_t* lend(const std::vector<uint64_t>& values, NativeStream stream);
  void giveBack(const size_t* lent, NativeStream stream);
  // One element that barriers reduce.
  void* barrierElement() const {
    return scratch_.data();
  }

  void abort(const char* reason);
  std::optional<kl_error> error() const;
  // Whether everything that was enqueued has passed.
  bool isIdle() const;

 private:
  struct Loan;

  const int device_;
  const int rank_;
  const int nranks_;
  const DeviceBlock scratch_;
  NativeComm native_ = nullptr;
  std::optional<Trial> trial_;

  std::mutex lock_; // guards the three below, and the order of calls
  NativeStream last_stream_ = nullptr;
  Event last_;
  std::vector<std::unique_ptr<Loan>> loans_;

  mutable std::mutex state_lock_; // guards what follows; never held during a collective call
  std::optional<kl_error> error_;
  bool is_aborted_ = false;
  std::map<NativeStream, Event> marks_; // behind the newest operation of each stream
};

// Held shared by single calls and alone by groups: whether an open group of the library belongs to a thread or to the
// process is not documented.
std::shared_mutex& groupLock();

template <class Body>
void Comm::enqueue(NativeStream stream, Body&& body) {
  const std::shared_lock no_group(groupLock());
  const std::lock_guard guard(lock_);
  checkReady(stream);
  try {
    begin(stream);
    body();
    end(stream);
  } catch (...) {
    fail(stream, errorInFlight());
    throw;
  }
}

} // namespace kunlun::xre
