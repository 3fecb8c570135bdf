// The short way through a pointwise launcher.
//
// Where all operands are contiguous floating-point tensors of one shape and dtype, or numbers, the result's shape,
// strides and dtype are known without an iterator, which costs more than the launch: allocate, pack, enqueue.
// Everything else, wrong arguments included, goes through the structured launcher. Which operators have this way:
// tools/codegen/alike.py.
#pragma once

#include <array>
#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include "aten/Empty.h"
#include "aten/Launch.h"

namespace kunlun::aten {

namespace detail {

// Contiguous, floating point, on the chip, and nothing but numbers. An empty tensor, contiguous whatever its strides
// are, hands some of them on to the result.
inline bool plain(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return false;
  }
  const auto* impl = tensor.unsafeGetTensorImpl();
  const auto dtype = tensor.scalar_type();
  const bool floating = dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf || dtype == at::kDouble;
  return floating && impl->device_type() == c10::DeviceType::PrivateUse1 && tensor.layout() == c10::kStrided &&
      impl->is_contiguous() && impl->numel() != 0 && !tensor.is_neg() && !tensor._is_zerotensor();
}

// A Python number that does not change the dtype of a floating-point tensor.
inline bool plainNumber(const at::Tensor& tensor) {
  const auto* impl = tensor.unsafeGetTensorImpl();
  return impl->device_type() == c10::DeviceType::CPU && impl->is_wrapped_number() && !tensor.is_complex();
}

inline bool fits(const at::Tensor& first, const at::Tensor& other) {
  return (plain(other) && first.scalar_type() == other.scalar_type() && first.device() == other.device() &&
          first.sizes() == other.sizes()) ||
      (other.defined() && plainNumber(other));
}
inline bool fits(const at::Tensor&, const at::Scalar& number) {
  return !number.isComplex() && !number.isBoolean();
}
inline bool fits(const at::Tensor& first, const std::optional<at::Scalar>& number) {
  return !number.has_value() || fits(first, *number);
}
inline bool fits(const at::Tensor& first, const std::optional<at::Tensor>& other) {
  return !other.has_value() || fits(first, *other);
}
template <class Other>
bool fits(const at::Tensor&, const Other&) {
  return true; // a flag, a name: nothing that shapes the result
}

} // namespace detail

template <class... Others>
bool alike(const at::Tensor& first, const Others&... others) {
  return detail::plain(first) && (detail::fits(first, others) && ...);
}

namespace detail {

inline bool apart(const at::Tensor& out, const at::Tensor& operand) {
  return out.is_same(operand) || !out.is_alias_of(operand);
}
inline bool apart(const at::Tensor& out, const std::optional<at::Tensor>& operand) {
  return !operand.has_value() || apart(out, *operand);
}
template <class Other>
bool apart(const at::Tensor&, const Other&) {
  return true;
}

} // namespace detail

// Whether the output is one of the operands or shares no memory with them: whoever finds out more refuses more.
template <class... Operands>
bool apart(const at::Tensor& out, const Operands&... operands) {
  return (detail::apart(out, operands) && ...);
}

template <class... Others>
at::Tensor launchLike(OpHandle& op, c10::ScalarType dtype, const at::Tensor& first, const Others&... others) {
  const auto device = first.device();
  const auto stream = currentStreamHandle(device.index());
  auto out = emptyOnStream(first.sizes(), dtype, device, stream);
  const std::array<const at::Tensor*, 1> outs{&out};
  launchOn(stream, op, device, outs, first, others...);
  return out;
}

// Into a tensor that is there.
template <class... Args>
void launchInto(OpHandle& op, const at::Tensor& out, const Args&... args) {
  const std::array<const at::Tensor*, 1> outs{&out};
  launch(op, out.device(), outs, args...);
}

} // namespace kunlun::aten
