// Sends, receives, batches of them, and barriers of ProcessGroupXCCL.
#include "distributed/ProcessGroupXCCL.h"

#include <algorithm>
#include <thread>
#include <tuple>
#include <utility>

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>

#include "distributed/ChipCommunicator.h"
#include "runtime/Error.h"

namespace kunlun::distributed {

namespace {

constexpr std::chrono::milliseconds kBarrierPatience{50};

using Tensors = std::vector<at::Tensor>;

// As torch's analyser reads it: "xccl:send 0->1" or "xccl:recv 1<-0".
std::string recordedName(bool is_send, int rank, int peer) {
  return (is_send ? "xccl:send " : "xccl:recv ") + std::to_string(rank) + (is_send ? "->" : "<-") +
      std::to_string(peer);
}

// Enqueues one transfer between the two ranks of a pair's communicator.
void enqueue(Communicator& pair, bool is_send, const at::Tensor& tensor, kl_stream stream) {
  const int other = pair.size() == 1 ? 0 : 1 - pair.rank();
  void* data = tensor.mutable_data_ptr();
  if (is_send) {
    pair.send(data, static_cast<uint64_t>(tensor.numel()), tensor.scalar_type(), other, stream);
  } else {
    pair.recv(data, static_cast<uint64_t>(tensor.numel()), tensor.scalar_type(), other, stream);
  }
}

} // namespace

c10::intrusive_ptr<c10d::Work> ProcessGroupXCCL::transfer(const Transfer& what) {
  checkOpen();
  checkTensor(what.tensor);
  TORCH_CHECK_VALUE(what.peer >= 0 && what.peer < size_, "invalid peer rank: ", what.peer);
  const char* name = what.is_send ? "xccl:send" : "xccl:recv";
  if (checks_nan_ && what.is_send) [[unlikely]] {
    checkForNan({what.tensor}, name);
  }
  if (batch_) {
    batch_->transfers.push_back(what);
    return nullptr; // endCoalescing answers for all
  }
  TORCH_CHECK_VALUE(what.peer != rank_, "a rank can send to itself only within a batch (batch_isend_irecv)");
  const c10::DeviceGuard device_guard(what.tensor.device());
  if (what.is_send) {
    announce(what.peer);
  }
  const auto pair = pairCommunicator(what.tensor.device().index(), what.peer);
  const Stream& stream = what.is_send ? pair->stream() : pair->receiveStream();
  const auto work = begin(
      {what.is_send ? c10d::OpType::SEND : c10d::OpType::RECV, name, {}, {}, options_->timeout, true}, pair, stream);
  work->sequence_ = ++transfers_;
  record(recordedName(what.is_send, rank_, what.peer), {what.tensor}, {what.tensor}, *work, true);
  work->stash_.push_back(what.tensor);
  work->outputs_.push_back(what.tensor);
  try {
    enqueue(*pair, what.is_send, what.tensor, stream.handle());
  } catch (...) {
    abandon(work);
    throw;
  }
  if (!what.is_send) {
    work->source_rank_ = what.peer;
  }
  finish(work);
  return work;
}

// A receive from any source looks for ranks that want to be connected.
void ProcessGroupXCCL::announce(int peer) {
  if (announced_.insert(peer).second) {
    store_->set("xccl/sends/" + std::to_string(rank_) + ":" + std::to_string(peer), "yes");
  }
}

c10::intrusive_ptr<c10d::Work> ProcessGroupXCCL::send(Tensors& tensors, int peer, int) {
  const BatchGuard guard(*this);
  return transfer({true, checkSingle(tensors), peer});
}

c10::intrusive_ptr<c10d::Work> ProcessGroupXCCL::recv(Tensors& tensors, int peer, int) {
  const BatchGuard guard(*this);
  return transfer({false, checkSingle(tensors), peer});
}

// Whoever sends first is the source. The wait is the host's: until the source is known there is nothing to enqueue.
c10::intrusive_ptr<c10d::Work> ProcessGroupXCCL::recvAnysource(Tensors& tensors, int) {
  const BatchGuard guard(*this);
  checkOpen();
  const at::Tensor& tensor = checkSingle(tensors);
  const c10::DeviceIndex device = tensor.device().index();
  const auto deadline = Completion::Clock::now() + options_->timeout;
  require(collectives().probe, "receive from any source"); // before the wait for ranks that may not come
  for (std::chrono::microseconds pause{20};; pause = std::min(pause * 2, std::chrono::microseconds{2000})) {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) {
        continue;
      }
      // The lower rank of a pair announces the communicator in the store; the higher one asks for it.
      const std::string pair = std::to_string(std::min(rank_, peer)) + ":" + std::to_string(std::max(rank_, peer));
      bool is_connected;
      {
        std::lock_guard lock(lock_);
        is_connected = communicators_.count("pair " + pair) != 0;
      }
      if (!is_connected && !store_->check({"xccl/sends/" + std::to_string(peer) + ":" + std::to_string(rank_)})) {
        continue;
      }
      if (pairCommunicator(device, peer)->probe(peer < rank_ ? 0 : 1)) {
        return transfer({false, tensor, peer});
      }
    }
    TORCH_CHECK_WITH(
        DistBackendError,
        Completion::Clock::now() < deadline,
        "no rank has sent anything within ",
        options_->timeout.count(),
        " ms (receive from any source)");
    std::this_thread::sleep_for(pause);
  }
}

void ProcessGroupXCCL::startCoalescing() {
  checkOpen();
  if (batch_.has_value()) {
    // torch does not end a batch in which something raises that is no call of this group.
    const size_t dropped = batch_->transfers.size();
    dropBatch();
    if (dropped != 0) {
      TORCH_WARN(
          "a batch of this process group that something has raised in was still open; its ",
          dropped,
          " sends and receives are dropped and have not taken place");
    }
  }
  batch_.emplace();
}

c10::intrusive_ptr<c10d::Work> ProcessGroupXCCL::endCoalescing() {
  TORCH_CHECK(
      batch_.has_value(),
      "endCoalescing without startCoalescing: batches do not nest, and a call that raises ends the batch it is in");
  Batch batch = *std::exchange(batch_, std::nullopt); // closed, whatever comes
  c10::intrusive_ptr<Work> work = std::move(batch.work);
  try {
    if (!batch.transfers.empty()) {
      enqueueTransfers(batch.transfers, work);
    }
  } catch (...) {
    if (work != nullptr) {
      abandon(work);
    }
    throw;
  }
  if (work != nullptr) {
    finish(work);
  }
  return work;
}

void ProcessGroupXCCL::enqueueTransfers(std::vector<Transfer>& transfers, c10::intrusive_ptr<Work>& work) {
  const c10::DeviceIndex device = transfers.front().tensor.device().index();
  const c10::DeviceGuard device_guard(transfers.front().tensor.device());
  // Every rank connects its pairs in the order of their ranks, so none waits in a circle.
  std::vector<int> peers;
  for (const Transfer& transfer : transfers) {
    TORCH_CHECK_VALUE(transfer.tensor.device().index() == device, "the tensors of a batch must be on the same device");
    peers.push_back(transfer.peer);
  }
  std::sort(peers.begin(), peers.end(), [&](int a, int b) {
    return std::pair(std::min(a, rank_), std::max(a, rank_)) < std::pair(std::min(b, rank_), std::max(b, rank_));
  });
  for (const Transfer& transfer : transfers) {
    if (transfer.is_send) {
      announce(transfer.peer);
    }
  }
  for (const int peer : peers) {
    pairCommunicator(device, peer);
  }
  const auto orderOf = [&](const Transfer& transfer) {
    const bool spans = pairCommunicator(device, transfer.peer)->spansHosts();
    const bool from_lower = transfer.is_send == (rank_ < transfer.peer);
    return spans ? std::tuple(1, std::min(rank_, transfer.peer), std::max(rank_, transfer.peer), !from_lower)
                 : std::tuple(0, 0, 0, false);
  };
  // Those between hosts come last and one by one, so all ranks must take them in the same order: pair by pair, and
  // of a pair first what the lower rank sends.
  std::stable_sort(transfers.begin(), transfers.end(), [&](const Transfer& a, const Transfer& b) {
    return orderOf(a) < orderOf(b);
  });
  if (work == nullptr) {
    if (!batch_stream_ || batch_stream_->get().device_index() != device) {
      batch_stream_.emplace(options_->is_high_priority_stream, device);
    }
    work = begin(
        {c10d::OpType::COALESCED, "xccl:coalesced", {}, {}, options_->timeout, true}, nullptr, batch_stream_->get());
    work->sequence_ = ++transfers_;
  }
  enqueueGroup(transfers, device, *work);
}

void ProcessGroupXCCL::enqueueGroup(const std::vector<Transfer>& transfers, c10::DeviceIndex device, Work& work) {
  const auto group_end = require(collectives().group_end, "groups of transfers");
  check(require(collectives().group_start, "groups of transfers")());
  bool is_open = true;
  const auto close = [&] {
    is_open = false;
    check(group_end());
  };
  try {
    for (const Transfer& transfer : transfers) {
      const auto pair = pairCommunicator(device, transfer.peer);
      if (is_open && pair->spansHosts()) {
        close();
      }
      record(recordedName(transfer.is_send, rank_, transfer.peer), {transfer.tensor}, {transfer.tensor}, work, true);
      work.communicators_.push_back(pair);
      work.stash_.push_back(transfer.tensor);
      if (!transfer.is_send) {
        work.outputs_.push_back(transfer.tensor);
      }
      enqueue(*pair, transfer.is_send, transfer.tensor, work.stream_.handle());
    }
    if (is_open) {
      close();
    }
  } catch (...) {
    if (is_open) {
      // Otherwise the thread's next transfer would join it. The failure in flight says more than this one could.
      collectives().group_cancel != nullptr ? collectives().group_cancel() : group_end();
    }
    throw;
  }
}

// ---- barriers -------------------------------------------------------------

c10::DeviceIndex ProcessGroupXCCL::deviceForBarrier(const c10d::BarrierOptions& opts) const {
  if (opts.device.has_value() && opts.device->type() == c10::DeviceType::PrivateUse1) {
    return resolveDevice(opts.device->index());
  }
  if (!opts.device_ids.empty()) {
    return resolveDevice(static_cast<c10::DeviceIndex>(opts.device_ids.front()));
  }
  if (bound_device_id_.has_value()) {
    return bound_device_id_->index();
  }
  return used_device_.value_or(currentDevice());
}

c10::intrusive_ptr<c10d::Work> ProcessGroupXCCL::barrier(const c10d::BarrierOptions& opts) {
  const BatchGuard guard(*this);
  checkOpen();
  const c10::DeviceIndex device = deviceForBarrier(opts);
  const c10::DeviceGuard device_guard(c10::Device(c10::DeviceType::PrivateUse1, device));
  const auto group = communicator(device);
  const auto work =
      begin({c10d::OpType::BARRIER, "xccl:barrier", {}, {}, timeoutOr(opts.timeout), true}, group, group->stream());
  work->sequence_ = ++collectives_;
  work->is_barrier_ = true;
  record("xccl:barrier", {}, {}, *work, false);
  // The caller waits in any case, unless it has asked for the handle. Not for ever, because here it cannot be
  // interrupted.
  Communicator::setPatience(opts.asyncOp ? std::chrono::milliseconds{0} : kBarrierPatience);
  const c10::StreamGuard stream_guard(group->stream().unwrap());
  try {
    group->barrier(group->stream().handle());
  } catch (...) {
    abandon(work);
    throw;
  }
  finish(work);
  return work;
}

// Through the store and not through the chip: a rank that does not come leaves the group as it is.
void ProcessGroupXCCL::monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) {
  checkOpen();
  const auto timeout = timeoutOr(opts.timeout);
  const auto deadline = Completion::Clock::now() + timeout;
  const std::string prefix = "xccl/monitored_barrier/" + std::to_string(monitored_barriers_++) + "/";
  const std::string verdict_key = prefix + "verdict";
  const auto remaining = [&] {
    return std::max(
        std::chrono::milliseconds{1},
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Completion::Clock::now()));
  };
  std::string verdict;
  if (rank_ == 0) {
    std::string missing;
    for (int rank = 1; rank < size_; ++rank) {
      try {
        store_->wait({prefix + std::to_string(rank)}, remaining());
      } catch (const c10::Error&) {
        missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
        if (!wait_all_ranks) {
          break;
        }
      }
    }
    verdict = missing.empty()
        ? "ok"
        : c10::str("Ranks ", missing, " failed to pass monitoredBarrier in ", timeout.count(), " ms");
    store_->set(verdict_key, verdict);
  } else {
    store_->set(prefix + std::to_string(rank_), "here");
    // Rank 0 answers at the latest when its own time is over.
    store_->wait({verdict_key}, remaining() + timeout);
    verdict = store_->get_to_str(verdict_key);
  }
  TORCH_CHECK(verdict == "ok", "[Rank ", rank_, "]: ", verdict);
}

} // namespace kunlun::distributed
