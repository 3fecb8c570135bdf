// The simulated chip's fused attention: the CPU's flash kernel.
#include <ATen/core/Tensor.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward_cpu_dispatch.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_cpu_dispatch.h>

#include "runtime/frame/Unpack.h"
#include "runtime/sim/ops/Kernels.h"

namespace kunlun::sim {

namespace {

std::optional<at::Tensor> maybe(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
}

// What the checks of torch's operator come down to where its kernel can write straight into the result.
bool writesInPlace(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const std::optional<at::Tensor>& bias,
    double dropout_p,
    const at::Tensor& out) {
  const auto dtype = query.scalar_type();
  const auto size = query.size(3);
  const auto dense = [&](const at::Tensor& tensor) {
    return tensor.scalar_type() == dtype && tensor.size(3) == size && tensor.stride(3) == 1;
  };
  return dropout_p == 0.0 && (dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf) && dense(query) &&
      dense(key) && dense(value) && out.stride(3) == 1 && out.numel() != 0 && key.numel() != 0 &&
      (!bias.has_value() || (bias->dim() == 4 && bias->scalar_type() == dtype));
}

// The kernel takes its results as [batch, time, head, ...].
void swapHeadsAndTime(at::Tensor& tensor) {
  at::DimVector sizes(tensor.sizes());
  at::DimVector strides(tensor.strides());
  std::swap(sizes[1], sizes[2]);
  std::swap(strides[1], strides[2]);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
}

void forward(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const std::optional<at::Tensor>& bias,
    double dropout_p,
    bool is_causal,
    bool /*return_debug_mask*/,
    std::optional<double> scale,
    at::Tensor& out,
    at::Tensor& logsumexp) {
  if (writesInPlace(query, key, value, bias, dropout_p, out)) {
    swapHeadsAndTime(out);
    swapHeadsAndTime(logsumexp);
    at::native::flash_attention_kernel(at::kCPU, out, logsumexp, query, key, value, dropout_p, is_causal, bias, scale);
    return;
  }
  const auto [result, statistics] =
      at::cpu::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout_p, is_causal, bias, scale);
  out.copy_(result);
  logsumexp.copy_(statistics);
}

void backward(
    const at::Tensor& grad_out,
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const std::optional<at::Tensor>& bias,
    const at::Tensor& out,
    const at::Tensor& logsumexp,
    double dropout_p,
    bool is_causal,
    std::optional<double> scale,
    at::Tensor& grad_query,
    at::Tensor& grad_key,
    at::Tensor& grad_value) {
  const auto [q, k, v] = at::cpu::_scaled_dot_product_flash_attention_for_cpu_backward(
      grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, bias, scale);
  grad_query.copy_(q);
  grad_key.copy_(k);
  grad_value.copy_(v);
}

// By position: the schema has arguments that the CPU's kernel has no use for.
void runBackward(const kl_frame* frame) {
  frame::FrameReader r(frame);
  const auto scale = r.arg(16).tag == KL_TAG_ABSENT ? std::nullopt : std::optional<double>(r.arg(16).v.d[0]);
  auto grad_query = r.tensor(r.out(0));
  auto grad_key = r.tensor(r.out(1));
  auto grad_value = r.tensor(r.out(2));
  backward(
      r.tensor(r.arg(0)),
      r.tensor(r.arg(1)),
      r.tensor(r.arg(2)),
      r.tensor(r.arg(3)),
      maybe(r.tensor(r.arg(4))),
      r.tensor(r.arg(6)),
      r.tensor(r.arg(7)),
      r.arg(12).v.d[0],
      r.arg(13).v.i != 0,
      scale,
      grad_query,
      grad_key,
      grad_value);
}

constexpr Kernel kKernels[] = {
    {"aten::_scaled_dot_product_fused_attention_overrideable",
     [](const kl_frame* frame) { frame::callWithFrame(&forward, frame); }},
    {"aten::_scaled_dot_product_fused_attention_overrideable_backward", &runBackward},
};

} // namespace

c10::ArrayRef<Kernel> attentionKernels() {
  return kKernels;
}

} // namespace kunlun::sim
