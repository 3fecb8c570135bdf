// Buffers that peers cannot reach, brought into this device's memory for the time of an operation.
#pragma once

#include <cstdint>
#include <cstring>

#include "runtime/sim/Device.h"

namespace kunlun::sim {

// Peers see this device's memory and nothing else. A buffer that lies elsewhere (imported from another process, another
// device's, another allocator's) is copied in before the operation and out after it.
class Staging {
 public:
  Staging(Device& device, const void* send, uint64_t send_bytes, void* recv, uint64_t recv_bytes)
      : arena_(device.arena()),
        send_(static_cast<const char*>(send)),
        recv_(static_cast<char*>(recv)),
        user_recv_(static_cast<char*>(recv)),
        send_bytes_(send_bytes),
        recv_bytes_(recv_bytes) {}
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  ~Staging() {
    for (void* memory : {staged_send_, staged_recv_}) {
      if (memory != nullptr) {
        arena_.free(memory);
      }
    }
  }

  // With `is_inline`, peers do not reach for what is sent.
  void begin(bool is_inline) {
    if (recv_bytes_ != 0 && !arena_.contains(recv_, recv_bytes_)) {
      staged_recv_ = arena_.allocate(recv_bytes_);
      recv_ = static_cast<char*>(staged_recv_);
    }
    if (!is_inline && send_bytes_ != 0 && !arena_.contains(send_, send_bytes_)) {
      staged_send_ = arena_.allocate(send_bytes_);
      std::memcpy(staged_send_, send_, send_bytes_);
      send_ = static_cast<const char*>(staged_send_);
    }
  }

  const char* send() const {
    return send_;
  }
  char* recv() const {
    return recv_;
  }

  void finish() {
    if (staged_recv_ != nullptr) {
      std::memcpy(user_recv_, staged_recv_, recv_bytes_);
    }
  }

 private:
  Arena& arena_;
  const char* send_;
  char* recv_;
  char* const user_recv_;
  const uint64_t send_bytes_;
  const uint64_t recv_bytes_;
  void* staged_send_ = nullptr;
  void* staged_recv_ = nullptr;
};

} // namespace kunlun::sim
