// Gated and ungated activations.
#include <ATen/ops/empty.h>

#include "aten/Empty.h"
#include "aten/Launch.h"
#include "aten/fused/Checks.h"
#include "aten/fused/Define.h"

namespace kunlun::aten::fused {

namespace {

OpHandle k_silu_and_mul{"kunlun::silu_and_mul"};
OpHandle k_swiglu{"kunlun::swiglu"};
OpHandle k_swigluoai{"kunlun::swigluoai_and_mul"};
OpHandle k_quick_gelu{"kunlun::quick_gelu"};

// The shape of x with half its last dimension.
c10::SymDimVector halved(const char* op, const at::Tensor& x) {
  checkFloat(op, "x", x);
  TORCH_CHECK(x.dim() >= 1, op, ": x must have at least one dimension");
  c10::SymDimVector shape(x.sym_sizes());
  TORCH_CHECK(shape.back() % 2 == 0, op, ": the last dimension of x must be even, got shape ", x.sym_sizes());
  shape.back() = shape.back() / 2;
  return shape;
}

void checkOut(const char* op, const at::Tensor& x, c10::SymIntArrayRef shape, const at::Tensor& out) {
  checkDtype(op, "out", out, x.scalar_type());
  checkShape(op, "out", out, shape);
  checkWritable(op, "out", out);
}

at::Tensor emptyOf(const at::Tensor& x, c10::SymIntArrayRef shape) {
  return empty(C10_AS_INTARRAYREF_SLOW(shape), x.scalar_type(), x.device());
}

template <class... Rest>
void run(OpHandle& op, const at::Tensor& x, const at::Tensor& out, const Rest&... rest) {
  if (out.numel() != 0) {
    const std::array<const at::Tensor*, 1> outs{&out};
    launch(op, x.device(), outs, dense(x), rest...);
  }
}

// ---- silu_and_mul ----

at::Tensor siluAndMul(const at::Tensor& x) {
  auto out = emptyOf(x, halved("silu_and_mul", x));
  run(k_silu_and_mul, x, out);
  return out;
}

at::Tensor siluAndMulMeta(const at::Tensor& x) {
  return at::empty_symint(halved("silu_and_mul", x), x.options());
}

void siluAndMulOutMeta(const at::Tensor& x, at::Tensor& out) {
  checkOut("silu_and_mul", x, halved("silu_and_mul", x), out);
}

void siluAndMulOut(const at::Tensor& x, at::Tensor& out) {
  siluAndMulOutMeta(x, out);
  run(k_silu_and_mul, x, out);
}

// ---- swiglu: the same with the gate and the other factor in two tensors ----

c10::SymDimVector swigluShape(const at::Tensor& x, const std::optional<at::Tensor>& y) {
  if (!has(y)) {
    return halved("swiglu", x);
  }
  checkFloat("swiglu", "x", x);
  TORCH_CHECK(x.dim() >= 1, "swiglu: x must have at least one dimension");
  checkDtype("swiglu", "y", *y, x.scalar_type());
  checkShape("swiglu", "y", *y, x.sym_sizes());
  return c10::SymDimVector(x.sym_sizes());
}

at::Tensor swiglu(const at::Tensor& x, const std::optional<at::Tensor>& y) {
  auto out = emptyOf(x, swigluShape(x, y));
  run(k_swiglu, x, out, dense(y));
  return out;
}

at::Tensor swigluMeta(const at::Tensor& x, const std::optional<at::Tensor>& y) {
  return at::empty_symint(swigluShape(x, y), x.options());
}

// ---- swigluoai_and_mul ----

at::Tensor swigluOai(const at::Tensor& x, double alpha, double limit) {
  auto out = emptyOf(x, halved("swigluoai_and_mul", x));
  run(k_swigluoai, x, out, alpha, limit);
  return out;
}

at::Tensor swigluOaiMeta(const at::Tensor& x, double, double) {
  return at::empty_symint(halved("swigluoai_and_mul", x), x.options());
}

// ---- quick_gelu ----

void checkQuickGelu(const at::Tensor& x) {
  checkFloat("quick_gelu", "x", x);
  TORCH_CHECK(x.dim() >= 1, "quick_gelu: x must have at least one dimension");
}

at::Tensor quickGelu(const at::Tensor& x) {
  checkQuickGelu(x);
  auto out = empty(x.sizes(), x.scalar_type(), x.device());
  run(k_quick_gelu, x, out);
  return out;
}

at::Tensor quickGeluMeta(const at::Tensor& x) {
  checkQuickGelu(x);
  return at::empty_symint(x.sym_sizes(), x.options());
}

void quickGeluOutMeta(const at::Tensor& x, at::Tensor& out) {
  checkQuickGelu(x);
  checkOut("quick_gelu", x, x.sym_sizes(), out);
}

void quickGeluOut(const at::Tensor& x, at::Tensor& out) {
  quickGeluOutMeta(x, out);
  run(k_quick_gelu, x, out);
}

} // namespace

TORCH_LIBRARY_FRAGMENT(kunlun, m) {
  define<"silu_and_mul", &siluAndMul, &siluAndMulMeta>(m, "silu_and_mul(Tensor x) -> Tensor");
  define<"silu_and_mul.out", &siluAndMulOut, &siluAndMulOutMeta>(
      m, "silu_and_mul.out(Tensor x, *, Tensor(a!) out) -> ()");
  define<"swiglu", &swiglu, &swigluMeta>(m, "swiglu(Tensor x, Tensor? y=None) -> Tensor");
  define<"swigluoai_and_mul", &swigluOai, &swigluOaiMeta>(
      m, "swigluoai_and_mul(Tensor x, float alpha=1.702, float limit=7.0) -> Tensor");
  define<"quick_gelu", &quickGelu, &quickGeluMeta>(m, "quick_gelu(Tensor x) -> Tensor");
  define<"quick_gelu.out", &quickGeluOut, &quickGeluOutMeta>(m, "quick_gelu.out(Tensor x, *, Tensor(a!) out) -> ()");
}

} // namespace kunlun::aten::fused
