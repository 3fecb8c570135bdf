// Copies: within a device, between devices, between host and device.
#include <ATen/Context.h>
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_local_scalar_dense_ops.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/real.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "aten/Empty.h"
#include "aten/Launch.h"
#include "aten/Structured.h"
#include "runtime/CachingAllocator.h"
#include "runtime/Error.h"
#include "runtime/Event.h"
#include "runtime/SyncDebug.h"
#include "runtime/chip/Loader.h"

namespace kunlun::aten {

namespace {

OpHandle k_copy{"aten::copy_"};

bool sameLayout(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && a.strides() == b.strides() &&
      a.is_non_overlapping_and_dense() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

bool isPinned(const at::Tensor& host) {
  return at::globalContext().isPinnedPtr(host.storage().data(), c10::DeviceType::PrivateUse1);
}

// One transfer of a dense block; sides have the same layout. A pinned host side
// of a non-blocking copy is kept from reuse until the stream has passed the copy.
void transfer(const at::Tensor& device, const at::Tensor& host, bool to_device, bool non_blocking) {
  const auto bytes = device.numel() * device.element_size();
  const auto index = device.device().index();
  const auto stream = currentStreamHandle(index);
  const bool async = non_blocking && isPinned(host);
  if (!async) {
    noteSynchronization(to_device ? "a copy to the device" : "a copy to the host");
  }
  CachingAllocator::checkAwake(device.storage().data());
  void* const device_data = const_cast<void*>(device.const_data_ptr());
  void* const host_data = const_cast<void*>(host.const_data_ptr());
  check(
      chip::runtime().memcpy_async(
          to_device ? device_data : host_data,
          to_device ? host_data : device_data,
          bytes,
          to_device ? KL_COPY_HOST_TO_DEVICE : KL_COPY_DEVICE_TO_HOST,
          async ? KL_COPY_ASYNC : 0,
          stream),
      "aten::copy_");
  if (async) {
    at::getHostAllocator(c10::DeviceType::PrivateUse1)
        ->record_event(host_data, host.storage().data_ptr().get_context(), getCurrentStream(index).unwrap());
  }
  afterLaunch(stream);
}

// The chip's kernel could warn only on its own thread, so the caller warns and
// hands it the real part.
at::Tensor realPart(const at::Tensor& src) {
  TORCH_WARN_ONCE("Casting complex values to real discards the imaginary part");
  return at::real(src.resolve_neg());
}

void copyWithinDevice(const at::Tensor& dst, const at::Tensor& src, bool non_blocking) {
  if (dst.is_neg() != src.is_neg() && dst.scalar_type() != src.scalar_type()) {
    // torch's kernel forgets the negation where it converts a single element, and between float16 and float32.
    const auto value = src.resolve_neg();
    return dst.is_neg() ? copyWithinDevice(at::_neg_view(dst), value.neg(), non_blocking)
                        : copyWithinDevice(dst, value, non_blocking);
  }
  const bool discards = src.is_complex() && !dst.is_complex() && dst.scalar_type() != at::kBool;
  launch(k_copy, dst.device(), {}, dst, discards ? realPart(src) : src, non_blocking);
}

void copyHostToDevice(const at::Tensor& dst, const at::Tensor& src, bool non_blocking) {
  if (sameLayout(dst, src)) {
    transfer(dst, src, /*to_device=*/true, non_blocking);
    return;
  }
  // The host arranges and converts, so that one dense block crosses.
  const auto arranged = dst.is_non_overlapping_and_dense()
      ? at::empty_strided(dst.sizes(), dst.strides(), dst.scalar_type(), c10::kStrided, at::kCPU, false)
      : at::empty(dst.sizes(), dst.scalar_type(), c10::kStrided, at::kCPU, false, std::nullopt);
  arranged.copy_(src.resolve_neg());
  if (sameLayout(dst, arranged)) {
    transfer(dst, arranged, /*to_device=*/true, /*non_blocking=*/false);
    return;
  }
  // Here too where only a pending bit of the destination stands in the way, so in the order that was arranged.
  const auto staged = emptyStrided(arranged.sizes(), arranged.strides(), dst.scalar_type(), dst.device());
  transfer(staged, arranged, /*to_device=*/true, /*non_blocking=*/false);
  copyWithinDevice(dst, staged, non_blocking);
}

void copyDeviceToHost(const at::Tensor& dst, const at::Tensor& src, bool non_blocking) {
  if (sameLayout(dst, src)) {
    transfer(src, dst, /*to_device=*/false, non_blocking);
    return;
  }
  const auto arranged = dst.is_non_overlapping_and_dense()
      ? emptyStrided(dst.sizes(), dst.strides(), dst.scalar_type(), src.device())
      : empty(dst.sizes(), dst.scalar_type(), src.device());
  copyWithinDevice(arranged, src, non_blocking);
  if (sameLayout(dst, arranged)) {
    transfer(arranged, dst, /*to_device=*/false, non_blocking);
    return;
  }
  const auto staged =
      at::empty_strided(arranged.sizes(), arranged.strides(), dst.scalar_type(), c10::kStrided, at::kCPU, false);
  transfer(arranged, staged, /*to_device=*/false, /*non_blocking=*/false);
  dst.copy_(staged);
}

// Runs on the source's current stream, after what the destination's current
// stream has been given so far; later work of the destination waits for it.
void copyBetweenDevices(const at::Tensor& dst, const at::Tensor& src) {
  CachingAllocator::checkAwake(dst.storage().data());
  CachingAllocator::checkAwake(src.storage().data());
  const auto src_stream = getCurrentStream(src.device().index());
  const auto dst_stream = getCurrentStream(dst.device().index());
  Event dst_ready;
  dst_ready.record(dst_stream);
  dst_ready.block(src_stream);
  at::Tensor arranged = src;
  if (!sameLayout(dst, src)) {
    arranged = dst.is_non_overlapping_and_dense()
        ? emptyStrided(dst.sizes(), dst.strides(), dst.scalar_type(), src.device())
        : empty(dst.sizes(), dst.scalar_type(), src.device());
    copyWithinDevice(arranged, src, true);
  }
  const bool direct = sameLayout(dst, arranged);
  const auto target =
      direct ? dst : emptyStrided(arranged.sizes(), arranged.strides(), dst.scalar_type(), dst.device());
  check(
      chip::runtime().memcpy_async(
          const_cast<void*>(target.const_data_ptr()),
          arranged.const_data_ptr(),
          target.numel() * target.element_size(),
          KL_COPY_DEVICE_TO_DEVICE,
          0,
          src_stream.handle()),
      "aten::copy_");
  Event copied;
  copied.record(src_stream);
  copied.block(dst_stream);
  if (!direct) {
    copyWithinDevice(dst, target, true);
  }
  afterLaunch(src_stream.handle());
}

void checkCopy(const at::Tensor& self, const at::Tensor& src) {
  TORCH_CHECK(self.defined(), "self is undefined");
  TORCH_CHECK(src.defined(), "src is undefined");
  TORCH_CHECK(
      !self._is_zerotensor(),
      "ZeroTensors are immutable. Please materialize the tensor using `.clone()`, if you want a mutable zero tensor.");
  TORCH_CHECK(
      at::is_expandable_to(src.sizes(), self.sizes()),
      "output with shape ",
      self.sizes(),
      " doesn't match the broadcast shape ",
      src.sizes());
  TORCH_CHECK(!src.device().is_meta(), "Cannot copy out of meta tensor; no data!");
}

// A copy onto itself does nothing, on expanded tensors too.
bool sameData(const at::Tensor& a, const at::Tensor& b) {
  return a.is_same(b) ||
      (a.is_alias_of(b) && a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() &&
       a.strides() == b.strides() && a.scalar_type() == b.scalar_type() && a.is_conj() == b.is_conj() &&
       a.is_neg() == b.is_neg());
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& src, bool non_blocking) {
  checkCopy(self, src);
  if (self.numel() == 0 || self.device().is_meta() || sameData(self, src)) {
    return self;
  }
  at::assert_no_internal_overlap(self);
  if (src._is_zerotensor()) {
    return self.zero_();
  }
  const auto to = self.device().type();
  const auto from = src.device().type();
  const auto expanded = src.sizes() == self.sizes() ? src : src.expand(self.sizes());
  if (to == from) {
    if (self.device() == src.device()) {
      copyWithinDevice(self, expanded, non_blocking);
    } else {
      copyBetweenDevices(self, expanded);
    }
  } else if (from == c10::DeviceType::CPU) {
    copyHostToDevice(self, expanded, non_blocking);
  } else if (to == c10::DeviceType::CPU) {
    copyDeviceToHost(self, expanded, non_blocking);
  } else {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "cannot copy from ", src.device(), " to ", self.device());
  }
  return self;
}

at::Tensor copyFrom(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  at::Tensor target = dst;
  copy_(target, self, non_blocking);
  return dst;
}

at::Tensor copyFromAndResize(const at::Tensor& self, const at::Tensor& dst) {
  if (dst.sizes() != self.sizes()) {
    dst.resize_(self.sizes());
  }
  return copyFrom(self, dst, false);
}

at::Scalar localScalarDense(const at::Tensor& self) {
  const auto host = at::empty({}, self.scalar_type(), c10::kStrided, at::kCPU, false, std::nullopt);
  transfer(self, host, /*to_device=*/false, /*non_blocking=*/false);
  return at::_ops::_local_scalar_dense::call(host);
}

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("copy_", TORCH_FN(copy_));
  m.impl("_copy_from", TORCH_FN(copyFrom));
  m.impl("_copy_from_and_resize", TORCH_FN(copyFromAndResize));
  m.impl("_local_scalar_dense", TORCH_FN(localScalarDense));
}

// The kernel reads conjugate and negative bits itself; the default fallbacks
// would clone, which copies, which would come here again.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

} // namespace kunlun::aten
