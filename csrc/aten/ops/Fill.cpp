// Fills and sequences.
#include <ATen/Dispatch.h>
#include <ATen/Dispatch_v2.h>
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/RangeUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/library.h>

#include "aten/Alike.h"
#include "aten/Launch.h"

namespace kunlun::aten {

namespace {

OpHandle k_fill_scalar{"aten::fill_.Scalar"};
OpHandle k_fill_tensor{"aten::fill_.Tensor"};
OpHandle k_zero{"aten::zero_"};
OpHandle k_arange{"aten::arange.start_out"};
OpHandle k_linspace{"aten::linspace.out"};
OpHandle k_logspace{"aten::logspace.out"};
OpHandle k_eye{"aten::eye.m_out"};
OpHandle k_masked_fill_scalar{"aten::masked_fill_.Scalar"};
OpHandle k_masked_fill_tensor{"aten::masked_fill_.Tensor"};

// A number that no int64 holds crosses the chip interface as a tensor: the frame's integers are signed.
void fillUnsigned(const at::Tensor& self, const at::Scalar& value) {
  AT_DISPATCH_V2(
      self.scalar_type(),
      "fill_out",
      AT_WRAP([&] { value.to<scalar_t>(); }), // raises where it does not fit
      AT_EXPAND(AT_ALL_TYPES_AND_COMPLEX),
      AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES),
      AT_EXPAND(AT_FLOAT8_TYPES),
      at::kBool,
      at::kHalf,
      at::kBFloat16,
      at::kComplexHalf);
  launch(k_fill_tensor, self.device(), {}, self, at::scalar_tensor(value, at::kUInt64));
}

// Elements that share memory are no hindrance: all get the same value.
at::Tensor& fillScalar(at::Tensor& self, const at::Scalar& value) {
  TORCH_CHECK(
      self.is_complex() || !value.isComplex(),
      "value cannot be converted to type ",
      self.scalar_type(),
      " without overflow");
  if (C10_UNLIKELY(value.type() == at::kUInt64)) {
    fillUnsigned(self, value);
  } else {
    launch(k_fill_scalar, self.device(), {}, self, value);
  }
  return self;
}

at::Tensor& fillTensor(at::Tensor& self, const at::Tensor& value) {
  TORCH_CHECK(
      value.dim() == 0,
      "fill_ only supports 0-dimension value tensor but got tensor with ",
      value.dim(),
      " dimensions.");
  if (self.device() != value.device() && !value.device().is_cpu()) {
    return self.fill_(value.item());
  }
  at::assert_no_internal_overlap(self); // torch makes this one a copy
  launch(k_fill_tensor, self.device(), {}, self, value);
  return self;
}

at::Tensor& zero_(at::Tensor& self) {
  launch(k_zero, self.device(), {}, self);
  return self;
}

at::Tensor& arangeOut(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step, at::Tensor& out) {
  const auto size = out.scalar_type() == at::kLong ? at::native::compute_arange_size<int64_t>(start, end, step)
                                                   : at::native::compute_arange_size<double>(start, end, step);
  if (out.numel() != size) {
    if (out.numel() != 0) {
      TORCH_WARN(
          "The number of elements in the out tensor of shape ",
          out.sizes(),
          " is ",
          out.numel(),
          " which does not match the computed number of elements ",
          size,
          ". Note that this may occur as a result of rounding error. The out tensor will be resized to a tensor of "
          "shape (",
          size,
          ",).");
    }
    out.resize_(at::IntArrayRef(size));
  }
  const std::array<const at::Tensor*, 1> outs{&out};
  launch(k_arange, out.device(), outs, start, end, step);
  return out;
}

// The output of `steps` numbers, of whatever shape where it has that many already.
void prepareSteps(at::Tensor& out, int64_t steps) {
  TORCH_CHECK(steps >= 0, "number of steps must be non-negative");
  if (out.numel() != steps) {
    out.resize_({steps});
  }
}

at::Tensor& linspaceOut(const at::Scalar& start, const at::Scalar& end, int64_t steps, at::Tensor& out) {
  prepareSteps(out, steps);
  launchInto(k_linspace, out, start, end, steps);
  return out;
}

at::Tensor& logspaceOut(const at::Scalar& start, const at::Scalar& end, int64_t steps, double base, at::Tensor& out) {
  prepareSteps(out, steps);
  launchInto(k_logspace, out, start, end, steps, base);
  return out;
}

at::Tensor& eyeMOut(int64_t n, int64_t m, at::Tensor& out) {
  TORCH_CHECK(n >= 0, "n must be greater or equal to 0, got ", n);
  TORCH_CHECK(m >= 0, "m must be greater or equal to 0, got ", m);
  out.resize_({n, m});
  launchInto(k_eye, out, n, m);
  return out;
}

at::Tensor& eyeOut(int64_t n, at::Tensor& out) {
  return eyeMOut(n, n, out);
}

void checkMaskedFill(const at::Tensor& self, const at::Tensor& mask) {
  TORCH_CHECK(
      mask.scalar_type() == at::kBool,
      "masked_fill_ only supports boolean masks, but got mask with dtype ",
      mask.scalar_type());
  at::infer_size(self.sizes(), mask.sizes());
  TORCH_CHECK(
      at::is_expandable_to(mask.sizes(), self.sizes()),
      "output with shape ",
      self.sizes(),
      " doesn't match the broadcast shape ",
      at::infer_size(self.sizes(), mask.sizes()));
  if (at::has_internal_overlap(self) == at::MemOverlap::Yes) {
    TORCH_WARN(
        "Use of masked_fill_ on expanded tensors is deprecated. Please clone() the tensor before performing this "
        "operation. This also applies to advanced indexing e.g. tensor[mask] = scalar");
  }
  at::assert_no_partial_overlap(self, mask);
}

at::Tensor& maskedFillScalar(at::Tensor& self, const at::Tensor& mask, const at::Scalar& value) {
  checkMaskedFill(self, mask);
  launch(k_masked_fill_scalar, self.device(), {}, self, mask, value);
  return self;
}

at::Tensor& maskedFillTensor(at::Tensor& self, const at::Tensor& mask, const at::Tensor& value) {
  checkMaskedFill(self, mask);
  TORCH_CHECK(
      value.dim() == 0,
      "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with ",
      value.dim(),
      " dimension(s).");
  launch(k_masked_fill_tensor, self.device(), {}, self, mask, value);
  return self;
}

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("fill_.Scalar", TORCH_FN(fillScalar));
  m.impl("fill_.Tensor", TORCH_FN(fillTensor));
  m.impl("zero_", TORCH_FN(zero_));
  m.impl("arange.start_out", TORCH_FN(arangeOut));
  m.impl("linspace.out", TORCH_FN(linspaceOut));
  m.impl("logspace.out", TORCH_FN(logspaceOut));
  m.impl("eye.out", TORCH_FN(eyeOut));
  m.impl("eye.m_out", TORCH_FN(eyeMOut));
  m.impl("masked_fill_.Scalar", TORCH_FN(maskedFillScalar));
  m.impl("masked_fill_.Tensor", TORCH_FN(maskedFillTensor));
}

} // namespace kunlun::aten
