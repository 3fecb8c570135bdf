// Calls of the chip's collectives table.
#include "distributed/ChipCommunicator.h"

#include <cstdio>
#include <utility>

#include "runtime/Env.h"
#include "runtime/Error.h"
#include "runtime/chip/Loader.h"
#include "runtime/frame/DTypes.h"

namespace kunlun::distributed {

using frame::toChipDtype;

namespace {

const kl_collectives& tableOrRaise() {
  const auto* table = reinterpret_cast<const kl_collectives*>(chip::collectives());
  TORCH_CHECK_NOT_IMPLEMENTED(
      table != nullptr,
      "the chip driver ",
      chip::chipSource(),
      " has no collectives; use the process group gloo on CPU tensors, or a driver that has them");
  return *table;
}

} // namespace

const kl_collectives& collectives() {
  lazyInit();
  return tableOrRaise();
}

bool arePeersUnseen() {
  return (collectives().flags & KL_COLLECTIVES_PEERS_UNSEEN) != 0;
}

void checkCollectivesAvailable() {
  if (const auto available = tableOrRaise().available) {
    check(available(), "available");
  }
}

void refuseOperation(const char* operation) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false,
      "the chip driver ",
      chip::chipSource(),
      " has no ",
      operation,
      " (the entry of its collectives table is NULL)");
}

ChipCommunicator::ChipCommunicator(
    c10::DeviceIndex device,
    int rank,
    int nranks,
    const kl_comm_id& id,
    std::chrono::milliseconds timeout,
    bool high_priority,
    std::function<std::string()> deaths)
    : Communicator(device, rank, nranks, high_priority), deaths_(std::move(deaths)) {
  const auto init = require(collectives().comm_init, "communicators");
  check(init(device, rank, nranks, &id, static_cast<uint64_t>(timeout.count()), &handle_), "comm_init");
}

ChipCommunicator::~ChipCommunicator() {
  // In a forked child and after the shutdown there is no chip that knows it.
  if (checkUsable()) {
    collectives().comm_destroy(handle_);
  }
}

void ChipCommunicator::abort(const std::string& reason) noexcept {
  if (!checkUsable() || collectives().comm_abort == nullptr ||
      collectives().comm_abort(handle_, reason.c_str()) == KL_SUCCESS) {
    return;
  }
  kl_error error{};
  if (env().log_level >= LogLevel::Warn && chip::runtime().last_error(&error) == KL_SUCCESS) {
    std::fprintf(stderr, "kunlun: a communicator could not be aborted: %s\n", error.text);
  }
}

std::optional<std::string> ChipCommunicator::error() const {
  kl_error error{};
  if (!checkUsable() || collectives().comm_error == nullptr ||
      collectives().comm_error(handle_, &error) == KL_SUCCESS) {
    return std::nullopt;
  }
  return error.text;
}

std::vector<int> ChipCommunicator::missingRanks() const {
  std::vector<int> ranks;
  std::vector<uint64_t> bits((static_cast<size_t>(nranks_) + 63) / 64);
  uint64_t sequence = 0;
  if (!checkUsable() || collectives().comm_progress == nullptr) {
    return ranks;
  }
  check(
      collectives().comm_progress(handle_, &sequence, bits.data(), static_cast<uint32_t>(bits.size())),
      "comm_progress");
  for (int rank = 0; rank < nranks_; ++rank) {
    if ((bits[static_cast<size_t>(rank) / 64] >> (rank % 64) & 1) != 0) {
      ranks.push_back(rank);
    }
  }
  return ranks;
}

std::string ChipCommunicator::deaths() const {
  return arePeersUnseen() ? deaths_() : std::string();
}

void ChipCommunicator::allReduce(
    const void* send,
    void* recv,
    uint64_t count,
    c10::ScalarType dtype,
    const kl_reduction& reduction,
    kl_stream stream) {
  check(require(collectives().all_reduce, "all_reduce")(
      handle_, send, recv, count, toChipDtype(dtype), &reduction, stream));
}

void ChipCommunicator::reduce(
    const void* send,
    void* recv,
    uint64_t count,
    c10::ScalarType dtype,
    const kl_reduction& reduction,
    int root,
    kl_stream stream) {
  check(require(collectives().reduce, "reduce")(
      handle_, send, recv, count, toChipDtype(dtype), &reduction, root, stream));
}

void ChipCommunicator::broadcast(
    const void* send,
    void* recv,
    uint64_t count,
    c10::ScalarType dtype,
    int root,
    kl_stream stream) {
  check(require(collectives().broadcast, "broadcast")(handle_, send, recv, count, toChipDtype(dtype), root, stream));
}

void ChipCommunicator::allGather(
    const void* send,
    void* recv,
    uint64_t count,
    c10::ScalarType dtype,
    kl_stream stream) {
  check(require(collectives().all_gather, "all_gather")(handle_, send, recv, count, toChipDtype(dtype), stream));
}

void ChipCommunicator::reduceScatter(
    const void* send,
    void* recv,
    uint64_t count,
    c10::ScalarType dtype,
    const kl_reduction& reduction,
    kl_stream stream) {
  check(require(collectives().reduce_scatter, "reduce_scatter")(
      handle_, send, recv, count, toChipDtype(dtype), &reduction, stream));
}

void ChipCommunicator::allToAll(
    const void* send,
    const Layout& sent,
    void* recv,
    const Layout& received,
    c10::ScalarType dtype,
    kl_stream stream) {
  check(require(collectives().all_to_all_v, "all_to_all_v")(
      handle_,
      send,
      sent.counts.data(),
      sent.displacements.data(),
      recv,
      received.counts.data(),
      received.displacements.data(),
      toChipDtype(dtype),
      stream));
}

void ChipCommunicator::gather(
    const void* send,
    void* recv,
    uint64_t count,
    c10::ScalarType dtype,
    int root,
    kl_stream stream) {
  check(require(collectives().gather, "gather")(handle_, send, recv, count, toChipDtype(dtype), root, stream));
}

void ChipCommunicator::scatter(
    const void* send,
    void* recv,
    uint64_t count,
    c10::ScalarType dtype,
    int root,
    kl_stream stream) {
  check(require(collectives().scatter, "scatter")(handle_, send, recv, count, toChipDtype(dtype), root, stream));
}

void ChipCommunicator::barrier(kl_stream stream) {
  check(require(collectives().barrier, "barrier")(handle_, stream));
}

void ChipCommunicator::send(const void* data, uint64_t count, c10::ScalarType dtype, int peer, kl_stream stream) {
  check(require(collectives().send, "send")(handle_, data, count, toChipDtype(dtype), peer, stream));
}

void ChipCommunicator::recv(void* data, uint64_t count, c10::ScalarType dtype, int peer, kl_stream stream) {
  check(require(collectives().recv, "recv")(handle_, data, count, toChipDtype(dtype), peer, stream));
}

bool ChipCommunicator::probe(int peer) {
  int32_t is_waiting = 0;
  check(require(collectives().probe, "receive from any source")(handle_, peer, &is_waiting));
  return is_waiting != 0;
}

} // namespace kunlun::distributed
