// Aliases of quantised tensors: strided memory and a quantizer, which may hold tensors of its own.
#include <ATen/quantized/QTensorImpl.h>
#include <ATen/quantized/Quantizer.h>

#include "aten/boxed/Aliases.h"

namespace kunlun::aten {

namespace {

at::Tensor makeQuantized(c10::DispatchKey key, c10::Storage storage, const at::Tensor& like, at::QuantizerPtr by) {
  auto tensor = at::detail::make_tensor<at::QTensorImpl>(
      std::move(storage), c10::DispatchKeySet(key), like.dtype(), std::move(by));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return tensor;
}

// The same quantizer over other tensors; a per-tensor quantizer holds none.
template <class Convert>
at::QuantizerPtr convertQuantizer(const at::QuantizerPtr& quantizer, Convert convert) {
  const auto scheme = quantizer->qscheme();
  if (scheme != c10::kPerChannelAffine && scheme != c10::kPerChannelAffineFloatQParams) {
    return quantizer;
  }
  const auto* from = static_cast<const at::PerChannelAffineQuantizer*>(quantizer.get());
  const auto scales = convert(from->scales());
  const auto zero_points = convert(from->zero_points());
  if (scheme == c10::kPerChannelAffine) {
    return c10::make_intrusive<at::PerChannelAffineQuantizer>(from->scalar_type(), scales, zero_points, from->axis());
  }
  return c10::make_intrusive<at::PerChannelAffineFloatQParamsQuantizer>(
      from->scalar_type(), scales, zero_points, from->axis());
}

at::QuantizerPtr quantizerOf(const at::Tensor& tensor) {
  return at::get_qtensorimpl(tensor)->quantizer();
}

} // namespace

at::Tensor Aliases::hostQuantized(const at::Tensor& tensor, const char* op, Use use) {
  auto quantizer = convertQuantizer(quantizerOf(tensor), [&](const at::Tensor& parameter) {
    return parameter.is_cpu() ? parameter : hostTensor(parameter, op, use);
  });
  return makeQuantized(
      c10::DispatchKey::QuantizedCPU, hostStorage(tensor, use == Use::Out), tensor, std::move(quantizer));
}

at::Tensor Aliases::deviceQuantized(const at::Tensor& host) {
  auto quantizer =
      convertQuantizer(quantizerOf(host), [&](const at::Tensor& parameter) { return deviceTensor(parameter); });
  return makeQuantized(
      c10::DispatchKey::QuantizedPrivateUse1, deviceStorage(host.storage()), host, std::move(quantizer));
}

// Some operators choose the quantizer of their result anew.
void Aliases::writeBackQuantized(const at::Tensor& device, const at::Tensor& host) {
  writeBackStrided(device, host);
  auto quantizer =
      convertQuantizer(quantizerOf(host), [&](const at::Tensor& parameter) { return deviceTensor(parameter); });
  at::get_qtensorimpl(device)->set_quantizer_(std::move(quantizer));
}

} // namespace kunlun::aten
