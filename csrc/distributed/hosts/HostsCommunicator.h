// A communicator whose ranks are on several hosts, on a chip whose own communicators stay within one.
#pragma once

#include <atomic>
#include <exception>
#include <future>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "distributed/Communicator.h"
#include "distributed/hosts/Links.h"
#include "runtime/Event.h"

namespace kunlun::distributed::hosts {

// Where each rank of the communicator is.
struct Places {
  std::vector<int> host_of;            // for each rank
  std::vector<std::vector<int>> ranks; // of each host, ascending
};
Places placesOf(std::vector<int> host_of_rank);

// Within a host the chip's communicator carries the data, between hosts torch's gloo does, over TCP. The first rank of
// each host is its leader, who brings data to the other hosts, except that in all_to_all, send and recv every rank
// does.
//
// First all ranks agree about the call, so all get the same error where they disagree, before anything is read. Leaders
// tell each other whether their hosts' part went well before they exchange data.
//
// Reductions are carried out in the order of ranks within each host, then in that of hosts, wide and rounded once: the
// same to the last bit on every rank and in every run, though not the same as on one host.
class HostsCommunicator final : public Communicator {
 public:
  HostsCommunicator(c10::DeviceIndex device, int rank, Places places, std::shared_ptr<Links> links, bool high_priority);

  bool spansHosts() const override {
    return true;
  }
  void abort(const std::string& reason) noexcept override;
  std::optional<std::string> error() const override;
  std::vector<int> missingRanks() const override;

  void allReduce(
      const void* send,
      void* recv,
      uint64_t count,
      c10::ScalarType dtype,
      const kl_reduction& reduction,
      kl_stream stream) override;
  void reduce(
      const void* send,
      void* recv,
      uint64_t count,
      c10::ScalarType dtype,
      const kl_reduction& reduction,
      int root,
      kl_stream stream) override;
  void broadcast(const void* send, void* recv, uint64_t count, c10::ScalarType dtype, int root, kl_stream stream)
      override;
  void allGather(const void* send, void* recv, uint64_t count, c10::ScalarType dtype, kl_stream stream) override;
  void reduceScatter(
      const void* send,
      void* recv,
      uint64_t count,
      c10::ScalarType dtype,
      const kl_reduction& reduction,
      kl_stream stream) override;
  void allToAll(
      const void* send,
      const Layout& sent,
      void* recv,
      const Layout& received,
      c10::ScalarType dtype,
      kl_stream stream) override;
  void gather(const void* send, void* recv, uint64_t count, c10::ScalarType dtype, int root, kl_stream stream) override;
  void scatter(const void* send, void* recv, uint64_t count, c10::ScalarType dtype, int root, kl_stream stream)
      override;
  void barrier(kl_stream stream) override;
  void send(const void* data, uint64_t count, c10::ScalarType dtype, int peer, kl_stream stream) override;
  void recv(void* data, uint64_t count, c10::ScalarType dtype, int peer, kl_stream stream) override;
  bool probe(int peer) override;

 private:
  // One collective while it is enqueued. Those on different streams happen in the order of their calls: each waits for
  // the one before. None of its work begins before all of it is enqueued, because a failure of its first part would be
  // reported to a later part of the same call, and this rank would leave the others waiting. A dtype that the chip
  // lacks is refused before; a call that fails halfway for another reason ends the communicator.
  class Turn {
   public:
    Turn(HostsCommunicator& group, c10::ScalarType dtype);
    ~Turn() noexcept(false);
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    HostsCommunicator& group_;
    const Stream stream_;
    const int exceptions_ = std::uncaught_exceptions();
    std::promise<void> is_enqueued_;
  };

  bool isLeader() const {
    return links_->leaders() != nullptr;
  }
  int hosts() const {
    return static_cast<int>(places_.ranks.size());
  }
  int indexOnItsHost(int rank) const;
  at::Tensor view(const void* data, uint64_t count, c10::ScalarType dtype) const;
  at::Tensor make(uint64_t count, c10::ScalarType dtype) const;
  // Enqueues the agreement of all ranks.
  Call agreed(const Call& call, kl_stream stream) const;
  // The parts of collectives. None of them takes a turn.
  void reduceToAll(
      const char* name,
      const void* send,
      void* recv,
      uint64_t count,
      c10::ScalarType dtype,
      const kl_reduction& reduction,
      int root,
      kl_stream stream);
  void gatherToAll(
      const char* name,
      const void* send,
      void* recv,
      uint64_t count,
      c10::ScalarType dtype,
      int root,
      kl_stream stream);
  void bringToAll(
      const char* name,
      const void* send,
      void* recv,
      uint64_t count,
      c10::ScalarType dtype,
      int root,
      kl_stream stream);

  const Places places_;
  const int host_;
  const std::shared_ptr<Links> links_;
  Communicator& local_;              // of this host
  std::atomic<int64_t> received_{0}; // how many times recv has been called
  Event last_;
};

} // namespace kunlun::distributed::hosts
