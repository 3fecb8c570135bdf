// Life of a chip communicator.
#include "distributed/Communicator.h"

#include "runtime/Error.h"
#include "runtime/chip/Loader.h"

namespace kunlun::distributed {

const kl_collectives& collectives() {
  lazyInit();
  const auto* table = reinterpret_cast<const kl_collectives*>(chip::collectives());
  TORCH_CHECK_NOT_IMPLEMENTED(
      table != nullptr,
      "the chip driver ",
      chip::chipSource(),
      " has no collectives; use the process group gloo on CPU tensors, or a driver that has them");
  return *table;
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

Communicator::Communicator(
    c10::DeviceIndex device,
    int rank,
    int nranks,
    const kl_comm_id& id,
    std::chrono::milliseconds timeout,
    bool high_priority)
    : device_(device), rank_(rank), nranks_(nranks), high_priority_(high_priority), stream_(high_priority, device) {
  const auto init = require(collectives().comm_init, "communicators");
  check(init(device, rank, nranks, &id, static_cast<uint64_t>(timeout.count()), &handle_), "comm_init");
}

Communicator::~Communicator() {
  // In a forked child and after the shutdown there is no chip that knows it.
  if (checkUsable()) {
    collectives().comm_destroy(handle_);
  }
}

const Stream& Communicator::receiveStream() {
  if (!receive_stream_) {
    receive_stream_.emplace(high_priority_, device_);
  }
  return receive_stream_->get();
}

void Communicator::setPatience(std::chrono::nanoseconds patience) {
  if (const auto set = collectives().set_patience) {
    check(set(static_cast<uint64_t>(patience.count())), "set_patience");
  }
}

void Communicator::abort(const std::string& reason) noexcept {
  if (checkUsable() && collectives().comm_abort != nullptr) {
    collectives().comm_abort(handle_, reason.c_str());
  }
}

std::optional<std::string> Communicator::error() const {
  kl_error error{};
  if (!checkUsable() || collectives().comm_error == nullptr ||
      collectives().comm_error(handle_, &error) == KL_SUCCESS) {
    return std::nullopt;
  }
  return error.text;
}

std::vector<int> Communicator::missingRanks() const {
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

} // namespace kunlun::distributed
