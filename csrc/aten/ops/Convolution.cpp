// Convolution: torch leaves it to the device through its overrideable hooks.
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "aten/boxed/Boxed.h"

namespace kunlun::aten {

namespace {

// The boxed tier, because the layout of the result is the kernel's choice.
torch::jit::Stack call(const char* name, torch::jit::Stack stack) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
  boxedTier(op, &stack);
  return stack;
}

at::Tensor convolution(
    const at::Tensor& input,
    const at::Tensor& weight,
    const std::optional<at::Tensor>& bias,
    at::IntArrayRef stride,
    at::IntArrayRef padding,
    at::IntArrayRef dilation,
    bool transposed,
    at::IntArrayRef output_padding,
    int64_t groups) {
  return call("aten::convolution", {input, weight, bias, stride, padding, dilation, transposed, output_padding, groups})
      .back()
      .toTensor();
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolutionBackward(
    const at::Tensor& grad,
    const at::Tensor& input,
    const at::Tensor& weight,
    at::IntArrayRef stride,
    at::IntArrayRef padding,
    at::IntArrayRef dilation,
    bool transposed,
    at::IntArrayRef output_padding,
    int64_t groups,
    std::array<bool, 3> mask) {
  const std::vector<int64_t> bias_sizes{grad.size(1)};
  const auto results = call(
      "aten::convolution_backward",
      {grad,
       input,
       weight,
       mask[2] ? c10::IValue(bias_sizes) : c10::IValue(),
       stride,
       padding,
       dilation,
       transposed,
       output_padding,
       groups,
       c10::List<bool>({mask[0], mask[1], mask[2]})});
  return {results[0].toTensor(), results[1].toTensor(), results[2].toTensor()};
}

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("convolution_overrideable", TORCH_FN(convolution));
  m.impl("convolution_backward_overrideable", TORCH_FN(convolutionBackward));
}

} // namespace kunlun::aten
