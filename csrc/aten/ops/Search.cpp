// Searching in sorted values, and histograms.
#include <ATen/core/Tensor.h>
#include <ATen/native/BucketizationUtils.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/histc.h>
#include <torch/library.h>

#include "aten/Alike.h"
#include "aten/Empty.h"
#include "aten/Launch.h"

namespace kunlun::aten {

namespace {

using at::Tensor;
using Side = std::optional<std::string_view>;
using OptionalTensor = std::optional<Tensor>;

OpHandle k_searchsorted{"aten::searchsorted.Tensor_out"};
OpHandle k_bucketize{"aten::bucketize.Tensor_out"};
OpHandle k_histc{"aten::histc.out"};

at::ScalarType indexType(bool out_int32) {
  return out_int32 ? at::kInt : at::kLong;
}

// A number that lies on the host goes to the device, as with every operator of two tensors.
Tensor onDevice(const Tensor& values, const Tensor& sorted) {
  return values.dim() == 0 && values.device().is_cpu() ? values.to(sorted.device()) : values;
}

// Contiguous and of one dtype, as torch's kernels want them.
struct Operands {
  Operands(const Tensor& raw_values, const Tensor& raw_sorted, const Tensor& raw_sorter)
      : values(raw_values), sorted(raw_sorted), sorter(raw_sorter) {
    Tensor new_values;
    Tensor new_sorted;
    Tensor new_sorter;
    at::native::searchsorted_maybe_trim_input_tensors(
        new_values, new_sorted, new_sorter, raw_values, raw_sorted, raw_sorter);
    values = new_values.defined() ? new_values : values;
    sorted = new_sorted.defined() ? new_sorted : sorted;
    sorter = new_sorter.defined() ? new_sorter : sorter;
  }

  Tensor values;
  Tensor sorted;
  Tensor sorter;
};

Tensor& searchsortedOut(
    const Tensor& sorted,
    const Tensor& values,
    bool out_int32,
    bool right,
    Side side,
    const OptionalTensor& sorter,
    Tensor& out) {
  const Tensor self = onDevice(values, sorted);
  const Tensor order = sorter.value_or(Tensor());
  at::native::searchsorted_pre_check(sorted, self, out, out_int32, right, side, order);
  at::native::resize_output(out, self.sizes());
  // Here and not in the kernel, so that the caller gets the warnings.
  const Operands from(self, sorted, order);
  launchInto(
      k_searchsorted,
      out,
      from.sorted,
      from.values,
      out_int32,
      right,
      side,
      order.defined() ? OptionalTensor(from.sorter) : std::nullopt);
  return out;
}

Tensor searchsorted(
    const Tensor& sorted,
    const Tensor& self,
    bool out_int32,
    bool right,
    Side side,
    const OptionalTensor& sorter) {
  auto out = empty({0}, indexType(out_int32), deviceOf(sorted, self));
  return searchsortedOut(sorted, self, out_int32, right, side, sorter, out);
}

Tensor& bucketizeOut(const Tensor& values, const Tensor& boundaries, bool out_int32, bool right, Tensor& out) {
  const Tensor self = onDevice(values, boundaries);
  TORCH_CHECK(boundaries.dim() == 1, "boundaries tensor must be 1 dimension, but got dim(", boundaries.dim(), ")");
  at::native::searchsorted_pre_check(boundaries, self, out, out_int32, right, std::nullopt, Tensor());
  at::native::resize_output(out, self.sizes());
  const Operands from(self, boundaries, Tensor());
  launchInto(k_bucketize, out, from.values, from.sorted, out_int32, right);
  return out;
}

Tensor bucketize(const Tensor& self, const Tensor& boundaries, bool out_int32, bool right) {
  auto out = empty({0}, indexType(out_int32), deviceOf(self, boundaries));
  return bucketizeOut(self, boundaries, out_int32, right, out);
}

Tensor& histcOut(const Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max, Tensor& out) {
  if (at::isIntegralType(self.scalar_type(), /*includeBool=*/false)) {
    // The CPU has no such kernel; models that count the tokens of experts ask devices for it.
    TORCH_CHECK(
        self.scalar_type() == out.scalar_type(),
        "torch.histogram: input tensor and hist tensor should have the same dtype, but got input ",
        self.scalar_type(),
        " and hist ",
        out.scalar_type());
    const auto counts = at::histc(self.to(at::kDouble), bins, min, max);
    at::native::resize_output(out, counts.sizes());
    out.copy_(counts);
    return out;
  }
  TORCH_CHECK(bins > 0, "bins must be > 0, but got ", bins, " for dimension 0");
  at::native::resize_output(out, {bins});
  launchInto(k_histc, out, self, bins, min, max);
  return out;
}

Tensor histc(const Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max) {
  auto out = empty({0}, self.scalar_type(), self.device());
  return histcOut(self, bins, min, max, out);
}

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("searchsorted.Tensor", TORCH_FN(searchsorted));
  m.impl("searchsorted.Tensor_out", TORCH_FN(searchsortedOut));
  m.impl("bucketize.Tensor", TORCH_FN(bucketize));
  m.impl("bucketize.Tensor_out", TORCH_FN(bucketizeOut));
  m.impl("histc", TORCH_FN(histc));
  m.impl("histc.out", TORCH_FN(histcOut));
}

} // namespace kunlun::aten
