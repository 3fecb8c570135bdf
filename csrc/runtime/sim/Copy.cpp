// Copies and fills: always done by the stream's thread, the only one that may touch device memory.
#include "runtime/sim/Copy.h"

#include <cstring>

#include "runtime/sim/Device.h"
#include "runtime/sim/Stream.h"

namespace kunlun::sim {
namespace {

// Host data up to this size travels in the queue, so that the caller need not wait for the stream.
constexpr uint64_t kInlineBytes = uint64_t{32} << 10;

struct Job {
  void* dst;
  const void* src; // unused where the data lie behind the job
  uint64_t bytes;
  int32_t byte;
  bool claimed; // the caller waits, and may give up
  Link* link;   // on the way; NULL when it has no limit
};

// False when the copy is not to be made any more.
bool arrive(const Job& job) {
  Stream& stream = *Stream::current();
  return (job.link == nullptr || job.link->pass(stream, job.bytes)) && (!job.claimed || stream.claim());
}

kl_result runCopy(void*, void* payload, kl_error*) {
  const auto* job = static_cast<const Job*>(payload);
  if (arrive(*job)) {
    std::memmove(job->dst, job->src, job->bytes);
  }
  return KL_SUCCESS;
}

kl_result runInlineCopy(void*, void* payload, kl_error*) {
  const auto* job = static_cast<const Job*>(payload);
  if (arrive(*job)) {
    std::memcpy(job->dst, job + 1, job->bytes);
  }
  return KL_SUCCESS;
}

kl_result runFill(void*, void* payload, kl_error*) {
  const auto* job = static_cast<const Job*>(payload);
  std::memset(job->dst, job->byte, job->bytes);
  return KL_SUCCESS;
}

Device& checkOnDevice(const char* role, const void* ptr, uint64_t bytes) {
  Device* const holder = deviceHolding(ptr, bytes);
  if (holder == nullptr) {
    raise(
        KL_ERROR_VALUE,
        -1,
        "%s %p with %llu bytes does not lie in the memory of a kunlun device",
        role,
        ptr,
        static_cast<unsigned long long>(bytes));
  }
  return *holder;
}

void checkOnHost(const char* role, const void* ptr) {
  if (ptr == nullptr) {
    raise(KL_ERROR_VALUE, -1, "%s is NULL", role);
  }
  if (const Device* holder = deviceHolding(ptr, 1)) {
    raise(
        KL_ERROR_VALUE,
        holder->index(),
        "%s %p is said to be host memory but lies in the memory of device %d",
        role,
        ptr,
        holder->index());
  }
}

// What data from one device to another, or to or from the host (NULL), have to pass; NULL when nothing limits them.
Link* linkBetween(Device* from, Device* to) {
  if (from == to) {
    return nullptr;
  }
  Link& link = from == nullptr ? to->hostLink() : to == nullptr ? from->hostLink() : from->peerLink();
  return link.isLimited() ? &link : nullptr;
}

} // namespace

kl_result copy(void* dst, const void* src, uint64_t bytes, int32_t kind, uint32_t flags, Stream& stream) {
  if (kind != KL_COPY_HOST_TO_DEVICE && kind != KL_COPY_DEVICE_TO_HOST && kind != KL_COPY_DEVICE_TO_DEVICE) {
    raise(KL_ERROR_VALUE, -1, "%d is not a kind of copy", kind);
  }
  if (const kl_result failure = stream.report(); failure != KL_SUCCESS) {
    return failure;
  }
  if (bytes == 0) {
    return KL_SUCCESS;
  }
  const char* name = kind == KL_COPY_HOST_TO_DEVICE ? "memcpy_host_to_device"
      : kind == KL_COPY_DEVICE_TO_HOST              ? "memcpy_device_to_host"
                                                    : "memcpy_device_to_device";
  Device* to = nullptr;
  Device* from = nullptr;
  if (kind == KL_COPY_DEVICE_TO_HOST) {
    checkOnHost("destination", dst);
  } else {
    to = &checkOnDevice("destination", dst, bytes);
  }
  if (kind == KL_COPY_HOST_TO_DEVICE) {
    checkOnHost("source", src);
  } else {
    from = &checkOnDevice("source", src, bytes);
  }

  Job job{dst, src, bytes, 0, false, linkBetween(from, to)};
  if (kind == KL_COPY_DEVICE_TO_DEVICE || (flags & KL_COPY_ASYNC) != 0) {
    stream.work(name, runCopy, nullptr, &job, sizeof(job));
    return KL_SUCCESS;
  }
  if (kind == KL_COPY_HOST_TO_DEVICE && bytes <= kInlineBytes) {
    stream.work(name, runInlineCopy, nullptr, &job, sizeof(job), src, bytes);
    return KL_SUCCESS;
  }
  stream.refuseOwnThread(name);
  job.claimed = true;
  stream.waitForClaimed(stream.work(name, runCopy, nullptr, &job, sizeof(job)));
  return usable() ? stream.report() : refuseUnusable(name);
}

kl_result fill(void* dst, int32_t byte, uint64_t bytes, Stream& stream) {
  if (const kl_result failure = stream.report(); failure != KL_SUCCESS) {
    return failure;
  }
  if (bytes == 0) {
    return KL_SUCCESS;
  }
  checkOnDevice("destination", dst, bytes);
  const Job job{dst, nullptr, bytes, byte, false, nullptr};
  stream.work("memset", runFill, nullptr, &job, sizeof(job));
  return KL_SUCCESS;
}

} // namespace kunlun::sim
