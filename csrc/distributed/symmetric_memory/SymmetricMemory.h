// torch's handle to symmetric memory, for kunlun.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include "distributed/symmetric_memory/Peers.h"

namespace kunlun::distributed::symmetric_memory {

// Signals are those of torch's memory for CUDA: the word [channel][source] of the destination's signal pad is 0, or 1
// while a signal is under way.
class XCCLSymmetricMemory final : public c10d::symmetric_memory::SymmetricMemory {
 public:
  // `offset`: bytes from the start of the buffer to the storage that was asked for.
  XCCLSymmetricMemory(std::shared_ptr<Peers> peers, size_t offset) : peers_(std::move(peers)), offset_(offset) {}

  std::vector<void*> get_buffer_ptrs() override {
    return peers_->buffers();
  }
  std::vector<void*> get_signal_pad_ptrs() override {
    return peers_->signalPads();
  }
  void** get_buffer_ptrs_dev() override;
  void** get_signal_pad_ptrs_dev() override;
  size_t get_buffer_size() override {
    return peers_->bytes();
  }
  size_t get_offset() override {
    return offset_;
  }

  bool has_multicast_support() override {
    return false;
  }
  void* get_multicast_ptr() override {
    return nullptr;
  }

  // On the current stream of the memory's device. The time begins when the stream gets there; 0 is no limit. When it is
  // over, or the peer's process has ended, the stream fails, and signals of this channel may be left behind.
  void barrier(int channel, size_t timeout_ms) override;
  void put_signal(int dst_rank, int channel, size_t timeout_ms) override;
  void wait_signal(int src_rank, int channel, size_t timeout_ms) override;

  int get_rank() override {
    return peers_->rank();
  }
  int get_world_size() override {
    return peers_->size();
  }
  c10::Device get_device() override {
    return {c10::DeviceType::PrivateUse1, peers_->device()};
  }
  const std::vector<int>& get_rank_to_global_rank() override {
    return peers_->globalRanks();
  }
  int* get_rank_to_global_rank_dev() override;
  bool world_within_direct_access() override {
    return true; // others are refused at the rendezvous
  }

 private:
  void checkChannel(int channel, const char* call) const;
  void checkRank(int rank, const char* call) const;
  void enqueueSignal(int rank, int channel, size_t timeout_ms, bool is_put, const char* call);

  const std::shared_ptr<Peers> peers_;
  const size_t offset_;
  std::mutex lock_; // guards the three below, which are made when first asked for
  at::Tensor buffers_on_device_;
  at::Tensor pads_on_device_;
  at::Tensor global_ranks_on_device_;
};

} // namespace kunlun::distributed::symmetric_memory
