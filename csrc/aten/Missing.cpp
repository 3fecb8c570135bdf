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

// Whole storages travel, so offsets, strides and overlaps stay what they are.
void runOnCopies(const kl_frame* original) {
  const auto& runtime = chip::runtime();
  auto copy = copyFrame(original);
  auto* frame = reinterpret_cast<kl_frame*>(copy.data());
  struct Storage {
    void* device;
    std::unique_ptr<char[]> host;
    uint64_t bytes;
  };
  std::map<uint64_t, Storage> storages;
  visitTensors(frame, const_cast<kl_value*>(kl_frame_args(frame)), frame->nargs + frame->nouts, [&](kl_tensor& t) {
    if (t.storage_id == 0) {
      return;
    }
    auto& storage = storages[t.storage_id];
    if (storage.host == nullptr) {
      storage = {t.data, std::make_unique<char[]>(t.storage_bytes + 1), t.storage_bytes};
      if (t.storage_bytes != 0) {
        check(
            runtime.memcpy_async(storage.host.get(), t.data, t.storage_bytes, KL_COPY_DEVICE_TO_HOST, 0, frame->stream),
            frame->schema);
      }
    }
    t.data = storage.host.get();
  });
  runHostKernel(frame);
  for (const auto& [id, storage] : storages) {
    if (storage.bytes != 0) {
      check(
          runtime.memcpy_async(
              storage.device, storage.host.get(), storage.bytes, KL_COPY_HOST_TO_DEVICE, 0, frame->stream),
          frame->schema);
    }
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
