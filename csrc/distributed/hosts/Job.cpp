// Host calls that talk to other hosts.
#include "distributed/hosts/Job.h"

#include <memory>
#include <utility>

#include <ATen/ops/empty.h>

#include "runtime/Error.h"
#include "runtime/chip/Loader.h"
#include "runtime/frame/CpuCall.h"

namespace kunlun::distributed::hosts {

namespace {

struct Job {
  Call call;
  std::function<void(const Call&)> body;

  static kl_result run(void* arg, const kl_error* failure, kl_error* result) {
    const std::unique_ptr<Job> job(static_cast<Job*>(arg));
    try {
      if (failure != nullptr) {
        job->call.fail(*failure);
      }
      job->body(job->call);
      return KL_SUCCESS;
    } catch (...) {
      // A stream that carries a failure keeps its first one.
      return failure != nullptr ? KL_SUCCESS : frame::describeException(result);
    }
  }
};

using Memory = std::vector<at::Tensor>;

kl_result forget(void* arg, const kl_error*, kl_error*) {
  delete static_cast<Memory*>(arg);
  return KL_SUCCESS;
}

} // namespace

Staging::~Staging() {
  if (memory_.empty()) {
    return;
  }
  // Where it is refused, because the device is broken, what was enqueued may still run: the memory is given up.
  chip::runtime().launch_host(stream_, "staging memory of a collective", forget, new Memory(std::move(memory_)));
}

at::Tensor Staging::make(at::IntArrayRef sizes) {
  return memory_.emplace_back(at::empty(sizes, at::kByte));
}

void Staging::toHost(const at::Tensor& host, const void* device) {
  if (host.numel() != 0) {
    check(
        chip::runtime().memcpy_async(
            host.mutable_data_ptr(), device, host.nbytes(), KL_COPY_DEVICE_TO_HOST, KL_COPY_ASYNC, stream_),
        "memcpy_async");
  }
}

void Staging::toDevice(void* device, const at::Tensor& host) {
  if (host.numel() != 0) {
    check(
        chip::runtime().memcpy_async(
            device, host.const_data_ptr(), host.nbytes(), KL_COPY_HOST_TO_DEVICE, KL_COPY_ASYNC, stream_),
        "memcpy_async");
  }
}

void enqueue(kl_stream stream, const Call& call, std::function<void(const Call& call)> body) {
  auto job = std::make_unique<Job>(Job{call, std::move(body)});
  check(chip::runtime().launch_host(stream, "collective between hosts", Job::run, job.get()), "launch_host");
  job.release(); // its own from here on
}

} // namespace kunlun::distributed::hosts
