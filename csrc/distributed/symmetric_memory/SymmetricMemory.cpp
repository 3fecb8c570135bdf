// Signals between the ranks of symmetric memory, and addresses for kernels.
#include "distributed/symmetric_memory/SymmetricMemory.h"

#include <cstdint>
#include <cstdio>

#include <ATen/ops/tensor.h>

#include "runtime/Error.h"
#include "runtime/Stream.h"
#include "runtime/chip/Loader.h"

namespace kunlun::distributed::symmetric_memory {

namespace {

template <class Number>
at::Tensor onDevice(const std::vector<Number>& numbers, c10::Device device) {
  return at::tensor(numbers).to(device);
}

at::Tensor onDevice(const std::vector<void*>& addresses, c10::Device device) {
  std::vector<int64_t> numbers;
  for (const void* address : addresses) {
    numbers.push_back(static_cast<int64_t>(reinterpret_cast<intptr_t>(address)));
  }
  return onDevice(numbers, device);
}

} // namespace

void** XCCLSymmetricMemory::get_buffer_ptrs_dev() {
  std::lock_guard lock(lock_);
  if (!buffers_on_device_.defined()) {
    buffers_on_device_ = onDevice(peers_->buffers(), get_device());
  }
  return static_cast<void**>(buffers_on_device_.mutable_data_ptr());
}

void** XCCLSymmetricMemory::get_signal_pad_ptrs_dev() {
  std::lock_guard lock(lock_);
  if (!pads_on_device_.defined()) {
    pads_on_device_ = onDevice(peers_->signalPads(), get_device());
  }
  return static_cast<void**>(pads_on_device_.mutable_data_ptr());
}

int* XCCLSymmetricMemory::get_rank_to_global_rank_dev() {
  std::lock_guard lock(lock_);
  if (!global_ranks_on_device_.defined()) {
    global_ranks_on_device_ = onDevice(peers_->globalRanks(), get_device());
  }
  return static_cast<int*>(global_ranks_on_device_.mutable_data_ptr());
}

void XCCLSymmetricMemory::checkChannel(int channel, const char* call) const {
  const auto channels = peers_->padBytes() / sizeof(uint32_t) / static_cast<size_t>(peers_->size());
  TORCH_CHECK(channel >= 0, call, ": channel must be at least 0, got ", channel);
  TORCH_CHECK(
      static_cast<size_t>(channel) < channels,
      call,
      ": the signal pad of ",
      peers_->padBytes(),
      " bytes has room for ",
      channels,
      " channels of ",
      peers_->size(),
      " ranks, got channel ",
      channel,
      "; torch.distributed._symmetric_memory.set_signal_pad_size makes it larger, before the allocation");
}

void XCCLSymmetricMemory::checkRank(int rank, const char* call) const {
  TORCH_CHECK(rank >= 0 && rank < peers_->size(), call, ": rank must be in [0, ", peers_->size(), "), got ", rank);
}

void XCCLSymmetricMemory::enqueueSignal(int rank, int channel, size_t timeout_ms, bool is_put, const char* call) {
  const int own = peers_->rank();
  const int source = is_put ? own : rank;
  const auto place = static_cast<size_t>(peers_->size() * channel + source);
  auto* pad = static_cast<uint32_t*>(peers_->signalPads()[static_cast<size_t>(is_put ? rank : own)]);
  // A signal can be put once the peer has taken the one before.
  char what[96];
  std::snprintf(
      what,
      sizeof(what),
      "%s on channel %d: rank %d waits %s rank %d",
      call,
      channel,
      own,
      is_put ? "to signal" : "for",
      rank);
  const ProcessId& writer = peers_->processes()[static_cast<size_t>(rank)];
  const kl_wait wait{
      .value = is_put ? 0u : 1u,
      .flags = KL_WAIT_REPLACE,
      .replacement = is_put ? 1u : 0u,
      .writer_pid = writer.pid,
      .writer_start = writer.start,
      .timeout_ms = timeout_ms,
      .what = what};
  check(
      chip::runtime().stream_wait_value32(currentStreamHandle(peers_->device()), pad + place, &wait),
      "stream_wait_value32");
}

void XCCLSymmetricMemory::barrier(int channel, size_t timeout_ms) {
  checkChannel(channel, "barrier");
  for (const bool is_put : {true, false}) {
    for (int step = 1; step < peers_->size(); ++step) {
      enqueueSignal((peers_->rank() + step) % peers_->size(), channel, timeout_ms, is_put, "barrier");
    }
  }
  afterLaunch(currentStreamHandle(peers_->device()));
}

void XCCLSymmetricMemory::put_signal(int dst_rank, int channel, size_t timeout_ms) {
  checkRank(dst_rank, "put_signal");
  checkChannel(channel, "put_signal");
  enqueueSignal(dst_rank, channel, timeout_ms, /*is_put=*/true, "put_signal");
  afterLaunch(currentStreamHandle(peers_->device()));
}

void XCCLSymmetricMemory::wait_signal(int src_rank, int channel, size_t timeout_ms) {
  checkRank(src_rank, "wait_signal");
  checkChannel(channel, "wait_signal");
  enqueueSignal(src_rank, channel, timeout_ms, /*is_put=*/false, "wait_signal");
  afterLaunch(currentStreamHandle(peers_->device()));
}

} // namespace kunlun::distributed::symmetric_memory
