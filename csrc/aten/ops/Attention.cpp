// Scaled dot product attention through torch's overrideable hook.
#include <ATen/core/Tensor.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <torch/library.h>

#include "aten/Empty.h"
#include "aten/Launch.h"

namespace kunlun::aten {

namespace {

OpHandle k_attention{"aten::_scaled_dot_product_fused_attention_overrideable"};
OpHandle k_attention_backward{"aten::_scaled_dot_product_fused_attention_overrideable_backward"};

// Where the CPU would use its flash kernel, the chip's fused attention is used;
// where the CPU would compose attention from matrix products, so does the chip:
// the numbers are the same on both.
int64_t choose(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const std::optional<at::Tensor>& mask,
    double dropout_p,
    bool is_causal,
    std::optional<double> scale,
    bool enable_gqa) {
  const auto on_cpu =
      at::native::_fused_sdp_choice_cpp(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa);
  const bool fused = on_cpu == static_cast<int64_t>(sdp::SDPBackend::flash_attention);
  return static_cast<int64_t>(fused ? sdp::SDPBackend::overrideable : sdp::SDPBackend::math);
}

using Forward = std::
    tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor, at::Tensor, at::Tensor>;

Forward attention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const std::optional<at::Tensor>& attn_bias,
    double dropout_p,
    bool is_causal,
    bool return_debug_mask,
    std::optional<double> scale) {
  TORCH_CHECK(
      query.dim() == 4 && key.dim() == 4 && value.dim() == 4,
      "scaled_dot_product_attention: Accept only 4 dims inputs shape of {(B), H, T, K}");
  TORCH_CHECK(dropout_p == 0.0, "scaled_dot_product_attention: fused attention on kunlun does not support dropout > 0");
  TORCH_CHECK(!return_debug_mask, "scaled_dot_product_attention: fused attention on kunlun has no debug mask");
  const auto device = query.device();
  TORCH_CHECK(
      query.size(3) == key.size(3) && query.size(3) == value.size(3),
      "scaled_dot_product_attention: fused attention needs query, key and value of one head size");
  const auto statistics = query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  auto out = emptyLike(query);
  auto logsumexp = empty({query.size(0), query.size(1), query.size(2)}, statistics, device);
  const std::array<const at::Tensor*, 2> outs{&out, &logsumexp};
  launch(k_attention, device, outs, query, key, value, attn_bias, dropout_p, is_causal, return_debug_mask, scale);
  return {
      std::move(out),
      std::move(logsumexp),
      at::Tensor(),
      at::Tensor(),
      query.size(2),
      key.size(2),
      // No dropout, so no seed and no offset; but torch's shape function, which compilers go by, has tensors here. So
      // has it the strides of all results, here and in the backward pass.
      empty({}, at::kLong, device),
      empty({}, at::kLong, device),
      at::Tensor()};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> attentionBackward(
    const at::Tensor& grad_out,
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const at::Tensor& attn_bias,
    std::array<bool, 4> grad_input_mask,
    const at::Tensor& out,
    const at::Tensor& logsumexp,
    const at::Tensor& cum_seq_q,
    const at::Tensor& cum_seq_k,
    int64_t max_q,
    int64_t max_k,
    double dropout_p,
    bool is_causal,
    const at::Tensor& philox_seed,
    const at::Tensor& philox_offset,
    std::optional<double> scale) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !grad_input_mask[3],
      "scaled_dot_product_attention: fused attention on kunlun has no gradient for the mask; use "
      "torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)");
  const auto device = query.device();
  auto grad_query = emptyLike(query);
  auto grad_key = emptyLike(key);
  auto grad_value = emptyLike(value);
  const std::array<const at::Tensor*, 3> outs{&grad_query, &grad_key, &grad_value};
  launch(
      k_attention_backward,
      device,
      outs,
      grad_out,
      query,
      key,
      value,
      attn_bias,
      at::ArrayRef<bool>(grad_input_mask),
      out,
      logsumexp,
      cum_seq_q,
      cum_seq_k,
      max_q,
      max_k,
      dropout_p,
      is_causal,
      philox_seed,
      philox_offset,
      scale);
  return {std::move(grad_query), std::move(grad_key), std::move(grad_value), at::Tensor()};
}

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fused_sdp_choice", TORCH_FN(choose));
  m.impl("_scaled_dot_product_fused_attention_overrideable", TORCH_FN(attention));
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward", TORCH_FN(attentionBackward));
}

} // namespace kunlun::aten

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &kunlun::aten::choose)
} // namespace at::native
