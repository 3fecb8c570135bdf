// Kernels of the simulated chip that call ATen's CPU implementation directly:
// unstructured operators on the hot path of language models.
#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/layer_norm.h>
#include <ATen/ops/_index_put_impl_cpu_dispatch.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/arange_cpu_dispatch.h>
#include <ATen/ops/conj_physical_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/fill_cpu_dispatch.h>
#include <ATen/ops/index_select_cpu_dispatch.h>
#include <ATen/ops/linalg_lu_solve_cpu_dispatch.h>
#include <ATen/ops/masked_fill_cpu_dispatch.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <ATen/ops/mse_loss_cpu_dispatch.h>
#include <ATen/ops/smooth_l1_loss_cpu_dispatch.h>
#include <ATen/ops/where_cpu_dispatch.h>
#include <ATen/ops/zero_cpu_dispatch.h>
#include <c10/util/accumulate.h>

#include "runtime/frame/Unpack.h"
#include "runtime/sim/ops/Kernels.h"

namespace kunlun::sim {

namespace {

// linear over a contiguous input: what at::linear comes to on the CPU.
void linear(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias, at::Tensor& out) {
  const auto features = weight.size(0);
  const auto flat = input.view({-1, weight.size(1)});
  auto flat_out = out.view({-1, features});
  if (bias.has_value()) {
    at::cpu::addmm_outf(*bias, flat, weight.t(), 1, 1, flat_out);
  } else {
    at::cpu::mm_outf(flat, weight.t(), flat_out);
  }
}

// The CPU's kernel may leave the conjugation of what it has written pending, which a tensor that ends here would lose.
void luSolve(
    const at::Tensor& lu,
    const at::Tensor& pivots,
    const at::Tensor& b,
    bool left,
    bool adjoint,
    at::Tensor& out) {
  at::cpu::linalg_lu_solve_outf(lu, pivots, b, left, adjoint, out);
  if (out.is_conj()) {
    out._set_conj(false);
    at::native::conj_physical_(out);
  }
}

void layerNorm(
    const at::Tensor& input,
    at::IntArrayRef normalized_shape,
    const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias,
    double eps,
    at::Tensor& out,
    at::Tensor& mean,
    at::Tensor& rstd) {
  const auto n = c10::multiply_integers(normalized_shape);
  const auto m = mean.numel();
  if (m == 0 || n == 0) {
    return;
  }
  at::native::LayerNormKernel(
      at::kCPU,
      input.contiguous(),
      weight.has_value() ? weight->contiguous() : at::Tensor(),
      bias.has_value() ? bias->contiguous() : at::Tensor(),
      m,
      n,
      eps,
      &out,
      &mean,
      &rstd);
}

// The CPU's out variants grow a reduced output to the inputs' shape first, and
// warn of it; their functional variants know their own output.
void mseLoss(const at::Tensor& self, const at::Tensor& target, int64_t reduction, at::Tensor& out) {
  if (reduction == at::Reduction::None) {
    at::cpu::mse_loss_outf(self, target, reduction, out);
  } else {
    out.copy_(at::cpu::mse_loss(self, target, reduction));
  }
}

void smoothL1Loss(const at::Tensor& self, const at::Tensor& target, int64_t reduction, double beta, at::Tensor& out) {
  if (reduction == at::Reduction::None) {
    at::cpu::smooth_l1_loss_outf(self, target, reduction, beta, out);
  } else {
    out.copy_(at::cpu::smooth_l1_loss(self, target, reduction, beta));
  }
}

template <auto Function>
void call(const kl_frame* frame) {
  frame::callWithFrame(Function, frame);
}

using at::Scalar;
using at::Tensor;

constexpr Kernel kKernels[] = {
    {"aten::copy_", &call<static_cast<Tensor& (*)(Tensor&, const Tensor&, bool)>(&at::native::copy_)>},
    {"aten::fill_.Scalar", &call<static_cast<Tensor& (*)(Tensor&, const Scalar&)>(&at::cpu::fill_)>},
    {"aten::fill_.Tensor", &call<static_cast<Tensor& (*)(Tensor&, const Tensor&)>(&at::cpu::fill_)>},
    {"aten::zero_", &call<static_cast<Tensor& (*)(Tensor&)>(&at::cpu::zero_)>},
    {"aten::masked_fill_.Scalar",
     &call<static_cast<Tensor& (*)(Tensor&, const Tensor&, const Scalar&)>(&at::cpu::masked_fill_)>},
    {"aten::masked_fill_.Tensor",
     &call<static_cast<Tensor& (*)(Tensor&, const Tensor&, const Tensor&)>(&at::cpu::masked_fill_)>},
    {"aten::index_select.out",
     &call<static_cast<Tensor& (*)(const Tensor&, int64_t, const Tensor&, Tensor&)>(&at::cpu::index_select_outf)>},
    {"aten::where.self_out",
     &call<static_cast<Tensor& (*)(const Tensor&, const Tensor&, const Tensor&, Tensor&)>(&at::cpu::where_outf)>},
    {"aten::arange.start_out",
     &call<static_cast<Tensor& (*)(const Scalar&, const Scalar&, const Scalar&, Tensor&)>(&at::cpu::arange_outf)>},
    {"aten::_index_put_impl_",
     &call<static_cast<Tensor& (*)(Tensor&, const c10::List<std::optional<Tensor>>&, const Tensor&, bool, bool)>(
         &at::cpu::_index_put_impl_)>},
    {"aten::linear", &call<&linear>},
    {"aten::linalg_lu_solve.out", &call<&luSolve>},
    {"aten::native_layer_norm", &call<&layerNorm>},
    {"aten::mse_loss.out", &call<&mseLoss>},
    {"aten::smooth_l1_loss.out", &call<&smoothL1Loss>},
};

} // namespace

c10::ArrayRef<Kernel> directKernels() {
  return kKernels;
}

} // namespace kunlun::sim
