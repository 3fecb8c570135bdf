// A communicator of the chip.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "distributed/Communicator.h"

namespace kunlun::distributed {

// The chip's collectives, or an error that names the driver and what to do.
const kl_collectives& collectives();

// Whether the chip leaves it to us to see that a rank has died.
bool arePeersUnseen();

// Raises if the chip has none, or lacks a library for them. Starts no device.
void checkCollectivesAvailable();

[[noreturn]] void refuseOperation(const char* operation);

// An entry of the table; a driver without it gets an error that names the operation.
template <class Function>
Function* require(Function* entry, const char* operation) {
  if (entry == nullptr) [[unlikely]] {
    refuseOperation(operation);
  }
  return entry;
}

class ChipCommunicator final : public Communicator {
 public:
  // Waits for all ranks. `deaths` says which of them have died, empty for none.
  ChipCommunicator(
      c10::DeviceIndex device,
      int rank,
      int nranks,
      const kl_comm_id& id,
      std::chrono::milliseconds timeout,
      bool high_priority,
      std::function<std::string()> deaths);
  ~ChipCommunicator() override;

  bool spansHosts() const override {
    return false;
  }
  void abort(const std::string& reason) noexcept override;
  std::optional<std::string> error() const override;
  std::vector<int> missingRanks() const override;
  std::string deaths() const override;

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
  const std::function<std::string()> deaths_;
  kl_comm handle_ = nullptr;
};

} // namespace kunlun::distributed
