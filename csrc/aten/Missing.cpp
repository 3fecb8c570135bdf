// Frames that the driver has no kernel for, executed by the host's kernels.
#include "aten/Missing.h"

#include <cstring>
#include <map>
#include <memory>
#include <sstream>
#include <vector>

#include "aten/Fallback.h"
#include "aten/Statistics.h"
#include "runtime/Device.h"
#include "runtime/Error.h"
#include "runtime/chip/Loader.h"
#include "runtime/frame/CpuCall.h"
#include "runtime/frame/DTypes.h"
#include "runtime/frame/Threads.h"
#include "runtime/sim/ops/HostKernels.h"

namespace kunlun::aten {

namespace {

using FrameCopy = std::vector<uint64_t>; // aligned as a frame needs

FrameCopy copyFrame(const kl_frame* frame) {
  FrameCopy copy((frame->bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t));
  std::memcpy(copy.data(), frame, frame->bytes);
  return copy;
}

kl_result runOwnedFrame(void* arg, const kl_error* error, kl_error* result) {
  const std::unique_ptr<FrameCopy> copy(static_cast<FrameCopy*>(arg));
  if (error != nullptr) {
    return KL_SUCCESS; // the stream carries an earlier failure: skipped like any kernel
  }
  const auto* frame = reinterpret_cast<const kl_frame*>(copy->data());
  try {
    frame::TeamScope team(frame::workOf(frame));
    runHostKernel(frame);
    return KL_SUCCESS;
  } catch (...) {
    return frame::describeException(result);
  }
}

template <class Visit>
void visitTensors(kl_frame* frame, kl_value* values, uint32_t count, const Visit& visit) {
  for (uint32_t i = 0; i < count; ++i) {
    auto& value = values[i];
    if (value.tag == KL_TAG_TENSOR) {
      visit(value.v.t);
    } else if (value.tag == KL_TAG_TENSOR_LIST) {
      auto* elements = reinterpret_cast<kl_value*>(reinterpret_cast<char*>(frame) + value.v.tail);
      visitTensors(frame, elements, value.count, visit);
    }
  }
}

std::string describe(kl_frame* frame) {
  std::ostringstream out;
  visitTensors(frame, const_cast<kl_value*>(kl_frame_args(frame)), frame->nargs, [&](const kl_tensor& t) {
    out << (out.tellp() == std::streampos(0) ? "" : ", ") << frame::fromChipDtype(t.dtype)
        << at::IntArrayRef(kl_tensor_sizes(frame, &t), t.ndim);
  });
  return out.str();
}

// Host copies of the storages of a frame. Each has the size of the whole storage, so that offsets, strides and overlaps
// stay what they are, but only what the tensors cover travels.
class FrameCopies {
 public:
  explicit FrameCopies(kl_frame* frame) : frame_(frame) {}

  void fetch(kl_tensor& t) {
    if (t.storage_id == 0) {
      return;
    }
    auto& storage = storages_[t.storage_id];
    if (storage.host == nullptr) {
      // Memory that is never touched costs nothing: it is not initialised.
      storage = {static_cast<char*>(t.data), std::unique_ptr<char[]>(new char[t.storage_bytes + 1])};
    }
    t.data = storage.host.get();
    transfer(storage, t, KL_COPY_DEVICE_TO_HOST);
  }

  void deliver(kl_tensor& t) {
    if (t.storage_id != 0) {
      transfer(storages_.at(t.storage_id), t, KL_COPY_HOST_TO_DEVICE);
    }
  }

 private:
  struct Storage {
    char* device = nullptr;
    std::unique_ptr<char[]> host;
  };

  void transfer(const Storage& storage, const kl_tensor& t, kl_copy_kind kind) {
    const auto* sizes = kl_tensor_sizes(frame_, &t);
    const auto* strides = kl_tensor_strides(frame_, &t);
    int64_t last = t.offset;
    for (uint32_t dim = 0; dim < t.ndim; ++dim) {
      if (sizes[dim] == 0) {
        return;
      }
      last += (sizes[dim] - 1) * strides[dim];
    }
    const auto element = c10::elementSize(frame::fromChipDtype(t.dtype));
    const auto begin = static_cast<size_t>(t.offset) * element;
    const auto bytes = static_cast<size_t>(last + 1 - t.offset) * element;
    char* const host = storage.host.get() + begin;
    char* const device = storage.device + begin;
    const bool back = kind == KL_COPY_HOST_TO_DEVICE;
    check(
        chip::runtime().memcpy_async(back ? device : host, back ? host : device, bytes, kind, 0, frame_->stream),
        frame_->schema);
  }

  kl_frame* frame_;
  std::map<uint64_t, Storage> storages_;
};

void runOnCopies(const kl_frame* original) {
  auto copy = copyFrame(original);
  auto* frame = reinterpret_cast<kl_frame*>(copy.data());
  FrameCopies copies(frame);
  auto* const args = const_cast<kl_value*>(kl_frame_args(frame));
  auto* const outs = args + frame->nargs;
  visitTensors(frame, args, frame->nargs + frame->nouts, [&](kl_tensor& t) { copies.fetch(t); });
  runHostKernel(frame);
  const auto deliver = [&](kl_tensor& t) { copies.deliver(t); };
  if (frame->nouts != 0) {
    visitTensors(frame, outs, frame->nouts, deliver);
  } else {
    visitTensors(frame, args, 1, deliver); // an in-place operator writes what it is a method of
  }
}

} // namespace

void launchMissing(const kl_frame* frame, c10::Device device) {
  if (hasCapability(device.index(), KL_CAP_HOST_ADDRESSABLE)) {
    count(Tier::HostCall, frame->schema);
    auto copy = std::make_unique<FrameCopy>(copyFrame(frame));
    check(chip::runtime().launch_host(frame->stream, frame->schema, &runOwnedFrame, copy.get()), frame->schema);
    copy.release(); // the host call owns it
    return;
  }
  auto copy = copyFrame(frame);
  permitFallback(frame->schema, device, describe(reinterpret_cast<kl_frame*>(copy.data())));
  runOnCopies(frame);
}

} // namespace kunlun::aten
