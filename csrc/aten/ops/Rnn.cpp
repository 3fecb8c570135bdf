// Fused cells of LSTM and GRU, which torch's recurrent layers ask of a device.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <torch/library.h>

namespace kunlun::aten {

namespace {

using OptionalTensor = std::optional<at::Tensor>;

bool given(const OptionalTensor& tensor) {
  return tensor.has_value() && tensor->defined();
}

at::Tensor withBias(const at::Tensor& gates, const OptionalTensor& bias) {
  return given(bias) ? gates + *bias : gates;
}

at::Tensor bias(const at::Tensor& gates_grad, bool has_bias) {
  return has_bias ? gates_grad.sum(0) : at::Tensor();
}

// workspace: the four activated gates, side by side.
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstmCell(
    const at::Tensor& input_gates,
    const at::Tensor& hidden_gates,
    const at::Tensor& cx,
    const OptionalTensor& input_bias,
    const OptionalTensor& hidden_bias) {
  const auto gates = withBias(hidden_gates, hidden_bias).add(withBias(input_gates, input_bias));
  const auto chunks = gates.unsafe_chunk(4, 1);
  const auto in = at::sigmoid(chunks[0]);
  const auto forget = at::sigmoid(chunks[1]);
  const auto cell = at::tanh(chunks[2]);
  const auto out = at::sigmoid(chunks[3]);
  auto cy = forget * cx;
  cy.add_(in * cell);
  auto hy = out * at::tanh(cy);
  return {std::move(hy), std::move(cy), at::cat({in, forget, cell, out}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstmCellBackward(
    const OptionalTensor& grad_hy,
    const OptionalTensor& grad_cy,
    const at::Tensor& cx,
    const at::Tensor& cy,
    const at::Tensor& workspace,
    bool has_bias) {
  if (!given(grad_hy) && !given(grad_cy)) {
    return {};
  }
  const auto gates = workspace.unsafe_chunk(4, 1);
  const auto& in = gates[0];
  const auto& forget = gates[1];
  const auto& cell = gates[2];
  const auto& out = gates[3];
  const auto tanh_cy = at::tanh(cy);
  at::Tensor through_cy = given(grad_cy) ? *grad_cy : at::Tensor();
  at::Tensor grad_out;
  if (given(grad_hy)) {
    const auto from_hy = *grad_hy * out * (1 - tanh_cy * tanh_cy);
    through_cy = through_cy.defined() ? through_cy + from_hy : from_hy;
    grad_out = *grad_hy * tanh_cy * out * (1 - out);
  } else {
    grad_out = out * 0;
  }
  const auto grad_in = through_cy * cell * in * (1 - in);
  const auto grad_forget = through_cy * cx * forget * (1 - forget);
  const auto grad_cell = through_cy * in * (1 - cell * cell);
  auto grad_gates = at::cat({grad_in, grad_forget, grad_cell, grad_out}, 1);
  auto grad_bias = bias(grad_gates, has_bias);
  return {std::move(grad_gates), through_cy * forget, std::move(grad_bias)};
}

// workspace: reset, update and new gate, the old state, the hidden part of the new gate.
std::tuple<at::Tensor, at::Tensor> gruCell(
    const at::Tensor& input_gates,
    const at::Tensor& hidden_gates,
    const at::Tensor& hx,
    const OptionalTensor& input_bias,
    const OptionalTensor& hidden_bias) {
  const auto input = withBias(input_gates, input_bias).unsafe_chunk(3, 1);
  const auto hidden = withBias(hidden_gates, hidden_bias).unsafe_chunk(3, 1);
  const auto reset = at::sigmoid(hidden[0] + input[0]);
  const auto update = at::sigmoid(hidden[1] + input[1]);
  const auto fresh = at::tanh(input[2] + hidden[2] * reset);
  auto hy = (hx - fresh) * update + fresh;
  return {std::move(hy), at::cat({reset, update, fresh, hx, hidden[2]}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>
gruCellBackward(const at::Tensor& grad_hy, const at::Tensor& workspace, bool has_bias) {
  const auto saved = workspace.unsafe_chunk(5, 1);
  const auto& reset = saved[0];
  const auto& update = saved[1];
  const auto& fresh = saved[2];
  const auto& hx = saved[3];
  const auto& hidden_fresh = saved[4];
  const auto grad_fresh = grad_hy * (1 - update) * (1 - fresh * fresh);
  const auto grad_update = grad_hy * (hx - fresh) * update * (1 - update);
  const auto grad_reset = grad_fresh * hidden_fresh * reset * (1 - reset);
  auto grad_input = at::cat({grad_reset, grad_update, grad_fresh}, 1);
  auto grad_hidden = at::cat({grad_reset, grad_update, grad_fresh * reset}, 1);
  auto grad_input_bias = bias(grad_input, has_bias);
  auto grad_hidden_bias = bias(grad_hidden, has_bias);
  return {
      std::move(grad_input),
      std::move(grad_hidden),
      grad_hy * update,
      std::move(grad_input_bias),
      std::move(grad_hidden_bias)};
}

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", TORCH_FN(lstmCell));
  m.impl("_thnn_fused_lstm_cell_backward_impl", TORCH_FN(lstmCellBackward));
  m.impl("_thnn_fused_gru_cell", TORCH_FN(gruCell));
  m.impl("_thnn_fused_gru_cell_backward", TORCH_FN(gruCellBackward));
}

} // namespace kunlun::aten
