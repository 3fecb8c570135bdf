// What a process group asks of a communicator, with the streams that it is used on.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "distributed/OwnStream.h"
#include "runtime/chip/collectives.h"

namespace kunlun::distributed {

// Counts and displacements in elements, one for each rank.
struct Layout {
  std::vector<uint64_t> counts;
  std::vector<uint64_t> displacements;

  void add(uint64_t count) {
    displacements.push_back(counts.empty() ? 0 : displacements.back() + counts.back());
    counts.push_back(count);
  }
};

// Operations are those of the chip's table (runtime/chip/collectives.h) and mean the same: they are enqueued on a
// stream of the device and happen in the order of the calls. For all but send and recv it must be the calling thread's
// current stream.
class Communicator {
 public:
  Communicator(c10::DeviceIndex device, int rank, int nranks, bool high_priority);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  c10::DeviceIndex device() const {
    return device_;
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

  virtual bool spansHosts() const = 0;
  virtual void abort(const std::string& reason) noexcept = 0;
  // What ended it, or nothing.
  virtual std::optional<std::string> error() const = 0;
  // Ranks that the collective which runs now waits for.
  virtual std::vector<int> missingRanks() const = 0;
  // Where the chip does not see it by itself: which ranks have died, in words; empty where none has.
  virtual std::string deaths() const {
    return {};
  }

  virtual void allReduce(
      const void* send,
      void* recv,
      uint64_t count,
      c10::ScalarType dtype,
      const kl_reduction& reduction,
      kl_stream stream) = 0;
  virtual void reduce(
      const void* send,
      void* recv,
      uint64_t count,
      c10::ScalarType dtype,
      const kl_reduction& reduction,
      int root,
      kl_stream stream) = 0;
  virtual void
  broadcast(const void* send, void* recv, uint64_t count, c10::ScalarType dtype, int root, kl_stream stream) = 0;
  virtual void allGather(const void* send, void* recv, uint64_t count, c10::ScalarType dtype, kl_stream stream) = 0;
  virtual void reduceScatter(
      const void* send,
      void* recv,
      uint64_t count,
      c10::ScalarType dtype,
      const kl_reduction& reduction,
      kl_stream stream) = 0;
  virtual void allToAll(
      const void* send,
      const Layout& sent,
      void* recv,
      const Layout& received,
      c10::ScalarType dtype,
      kl_stream stream) = 0;
  virtual void
  gather(const void* send, void* recv, uint64_t count, c10::ScalarType dtype, int root, kl_stream stream) = 0;
  virtual void
  scatter(const void* send, void* recv, uint64_t count, c10::ScalarType dtype, int root, kl_stream stream) = 0;
  virtual void barrier(kl_stream stream) = 0;
  virtual void send(const void* data, uint64_t count, c10::ScalarType dtype, int peer, kl_stream stream) = 0;
  virtual void recv(void* data, uint64_t count, c10::ScalarType dtype, int peer, kl_stream stream) = 0;
  // Whether a send of that peer waits for a recv that has not been called yet.
  virtual bool probe(int peer) = 0;

 protected:
  const c10::DeviceIndex device_;
  const int rank_;
  const int nranks_;

 private:
  const bool high_priority_;
  const OwnStream stream_;
  std::optional<OwnStream> receive_stream_;
};

} // namespace kunlun::distributed
