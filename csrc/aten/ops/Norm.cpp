// Layer normalisation.
#include <ATen/core/Tensor.h>
#include <ATen/native/layer_norm.h>
#include <torch/library.h>

#include "aten/Empty.h"
#include "aten/Launch.h"

namespace kunlun::aten {

namespace {

OpHandle k_layer_norm{"aten::native_layer_norm"};
OpHandle k_layer_norm_backward{"aten::native_layer_norm_backward"};

// Statistics are kept in the parameters' dtype, so that half inputs with float
// parameters keep float statistics, as on the CPU.
c10::ScalarType statisticsDtype(const at::Tensor& input, const std::optional<at::Tensor>& weight) {
  return weight.has_value() && weight->defined() ? weight->scalar_type() : input.scalar_type();
}

void checkParameterDtype(const at::Tensor& input, const std::optional<at::Tensor>& parameter, const char* name) {
  if (!parameter.has_value() || !parameter->defined() || parameter->scalar_type() == input.scalar_type()) {
    return;
  }
  TORCH_CHECK(
      c10::isReducedFloatingType(input.scalar_type()) && parameter->scalar_type() == at::kFloat,
      "layer_norm: expected ",
      name,
      " to have the dtype of the input (or float for half and bfloat16 inputs), but got ",
      parameter->scalar_type(),
      " for an input of ",
      input.scalar_type());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> layerNorm(
    const at::Tensor& input,
    at::IntArrayRef normalized_shape,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias,
    double eps) {
  at::native::_check_layer_norm_inputs(
      input, normalized_shape, weight.value_or(at::Tensor()), bias.value_or(at::Tensor()));
  checkParameterDtype(input, weight, "weight");
  checkParameterDtype(input, bias, "bias");
  const auto outer = input.dim() - static_cast<int64_t>(normalized_shape.size());
  at::DimVector statistics(input.sizes().slice(0, outer));
  statistics.resize(input.dim(), 1);
  auto out = empty(input.sizes(), input.scalar_type(), input.device());
  auto mean = empty(statistics, statisticsDtype(input, weight), input.device());
  auto rstd = empty(statistics, statisticsDtype(input, weight), input.device());
  const std::array<const at::Tensor*, 3> outs{&out, &mean, &rstd};
  launch(k_layer_norm, input.device(), outs, input, normalized_shape, weight, bias, eps);
  return {std::move(out), std::move(mean), std::move(rstd)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> layerNormBackward(
    const at::Tensor& grad,
    const at::Tensor& input,
    at::IntArrayRef normalized_shape,
    const at::Tensor& mean,
    const at::Tensor& rstd,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias,
    std::array<bool, 3> mask) {
  const auto parameter_dtype = statisticsDtype(input, weight);
  at::Tensor grad_input;
  at::Tensor grad_weight;
  at::Tensor grad_bias;
  if (mask[0]) {
    grad_input = empty(input.sizes(), input.scalar_type(), input.device());
  }
  if (mask[1]) {
    grad_weight = empty(normalized_shape, parameter_dtype, input.device());
  }
  if (mask[2]) {
    grad_bias = empty(normalized_shape, parameter_dtype, input.device());
  }
  const std::array<const at::Tensor*, 3> outs{&grad_input, &grad_weight, &grad_bias};
  launch(
      k_layer_norm_backward,
      input.device(),
      outs,
      grad,
      input,
      normalized_shape,
      mean,
      rstd,
      weight,
      bias,
      at::ArrayRef<bool>(mask));
  return {std::move(grad_input), std::move(grad_weight), std::move(grad_bias)};
}

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("native_layer_norm", TORCH_FN(layerNorm));
  m.impl("native_layer_norm_backward", TORCH_FN(layerNormBackward));
}

} // namespace kunlun::aten
