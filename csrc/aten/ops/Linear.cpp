// linear as one launch where no gradient is recorded.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear_native.h>
#include <c10/core/DispatchKeySet.h>
#include <torch/library.h>

#include "aten/Empty.h"
#include "aten/Launch.h"
#include "aten/Shortcut.h"

namespace kunlun::aten {

namespace {

OpHandle k_linear{"aten::linear"};

bool plain(const at::Tensor& tensor, const at::Tensor& input) {
  return tensor.device() == input.device() && tensor.scalar_type() == input.scalar_type() && !tensor.is_conj() &&
      !tensor.is_neg() && !tensor._is_zerotensor() && tensor.layout() == c10::kStrided;
}

// Everything else, wrong arguments included, takes torch's own path.
bool oneLaunch(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  return input.device().is_privateuseone() && plain(input, input) && plain(weight, input) && input.dim() >= 2 &&
      weight.dim() == 2 && input.is_contiguous() && input.size(-1) == weight.size(1) && input.numel() != 0 &&
      weight.numel() != 0 &&
      (!bias.has_value() ||
       (bias->defined() && bias->dim() == 1 && bias->size(0) == weight.size(0) && plain(*bias, input)));
}

at::Tensor launchLinear(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  at::DimVector shape(input.sizes());
  shape.back() = weight.size(0);
  auto out = empty(shape, input.scalar_type(), input.device());
  const std::array<const at::Tensor*, 1> outs{&out};
  launch(k_linear, input.device(), outs, input, weight, bias);
  return out;
}

at::Tensor linear(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  return oneLaunch(input, weight, bias) ? launchLinear(input, weight, bias) : at::native::linear(input, weight, bias);
}

bool needsGradient(const at::Tensor& tensor) {
  return tensor.defined() && tensor.requires_grad();
}

// A backend kernel of a composite operator would hide its derivative, which
// torch knows through the operators it is made of.
at::Tensor linearAutograd(
    c10::DispatchKeySet keys,
    const at::Tensor& input,
    const at::Tensor& weight,
    const std::optional<at::Tensor>& bias) {
  const bool forward_gradient =
      input._fw_grad(0).defined() || weight._fw_grad(0).defined() || (bias.has_value() && bias->_fw_grad(0).defined());
  // torch's own path must run above autograd: it folds a batch into one matrix product where the weight can require a
  // gradient, and below autograd no tensor does (it would take a batched product over copies of the weight).
  if (forward_gradient || !onlyChipBelowAutograd(keys) || !oneLaunch(input, weight, bias) ||
      (at::GradMode::is_enabled() &&
       (needsGradient(input) || needsGradient(weight) || (bias.has_value() && needsGradient(*bias))))) {
    return at::native::linear(input, weight, bias);
  }
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  return launchLinear(input, weight, bias);
}

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("linear", TORCH_FN(linear));
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("linear", TORCH_FN(linearAutograd));
}

} // namespace kunlun::aten
