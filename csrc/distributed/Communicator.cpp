// What all communicators share.
#include "distributed/Communicator.h"

#include <chrono>

#include "distributed/ChipCommunicator.h"
#include "runtime/Error.h"

namespace kunlun::distributed {

Communicator::Communicator(c10::DeviceIndex device, int rank, int nranks, bool high_priority)
    : device_(device), rank_(rank), nranks_(nranks), high_priority_(high_priority), stream_(high_priority, device) {}

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

} // namespace kunlun::distributed
