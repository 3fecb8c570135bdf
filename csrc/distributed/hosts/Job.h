// Work between hosts as items of a stream: device memory is staged in host memory, and the chip's thread talks to the
// other hosts when the item's turn comes.
#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "distributed/hosts/Agreement.h"
#include "runtime/chip/chip.h"

namespace kunlun::distributed::hosts {

// Bytes of host memory that stay until the stream has passed everything enqueued before release().
class Staging {
 public:
  explicit Staging(kl_stream stream) : stream_(stream) {}
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  // Gives the memory back once the stream has come here.
  ~Staging();

  // uint8
  at::Tensor make(at::IntArrayRef sizes);
  // Enqueue copies between device memory and a part of what make() gave.
  void toHost(const at::Tensor& host, const void* device);
  void toDevice(void* device, const at::Tensor& host);

 private:
  const kl_stream stream_;
  std::vector<at::Tensor> memory_;
};

// Enqueues `body`. It is given this rank's call, which says so if the stream carries a failure, and must share it with
// the other hosts in any case. What it raises becomes the stream's failure.
void enqueue(kl_stream stream, const Call& call, std::function<void(const Call& call)> body);

} // namespace kunlun::distributed::hosts
