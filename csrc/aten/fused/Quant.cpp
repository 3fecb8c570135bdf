// Weights and activations of few bits, and products with them.
#include <ATen/ops/empty.h>

#include "aten/Empty.h"
#include "aten/Launch.h"
#include "aten/fused/Checks.h"
#include "aten/fused/Define.h"

namespace kunlun::aten::fused {

namespace {

OpHandle k_quant2d{"kunlun::quant2d"};
OpHandle k_dynamic_scaled_int8_quant{"kunlun::dynamic_scaled_int8_quant"};
OpHandle k_gemm_int8{"kunlun::gemm_I8_I8_bf16_nt"};
OpHandle k_scaled_mm_int8{"kunlun::scaled_mm_int8"};
OpHandle k_awq_gemm{"kunlun::awq_gemm"};
OpHandle k_awq_dequantize{"kunlun::awq_dequantize"};
OpHandle k_gptq_gemm{"kunlun::gptq_gemm"};

using Quantized = std::tuple<at::Tensor, at::Tensor>; // int8, and a number for each row

// ---- quantising activations ----

c10::SymDimVector rowShape(const char* op, const at::Tensor& x) {
  checkFloat(op, "x", x);
  TORCH_CHECK(x.dim() >= 1, op, ": x must have at least one dimension");
  c10::SymDimVector shape(x.sym_sizes());
  shape.back() = 1;
  return shape;
}

Quantized quantize(const char* name, OpHandle& op, const at::Tensor& x) {
  const auto shape = rowShape(name, x);
  TORCH_CHECK(x.size(-1) > 0, name, ": the last dimension of x is empty");
  auto out = empty(x.sizes(), at::kChar, x.device());
  auto scales = empty(C10_AS_INTARRAYREF_SLOW(shape), at::kFloat, x.device());
  if (x.numel() != 0) {
    const std::array<const at::Tensor*, 2> outs{&out, &scales};
    launch(op, x.device(), outs, dense(x));
  }
  return {std::move(out), std::move(scales)};
}

Quantized quantizeMeta(const char* name, const at::Tensor& x) {
  return {
      at::empty_symint(x.sym_sizes(), x.options().dtype(at::kChar)),
      at::empty_symint(rowShape(name, x), x.options().dtype(at::kFloat))};
}

Quantized quant2d(const at::Tensor& x) {
  return quantize("quant2d", k_quant2d, x);
}
Quantized quant2dMeta(const at::Tensor& x) {
  return quantizeMeta("quant2d", x);
}
Quantized dynamicScaledInt8Quant(const at::Tensor& x) {
  return quantize("dynamic_scaled_int8_quant", k_dynamic_scaled_int8_quant, x);
}
Quantized dynamicScaledInt8QuantMeta(const at::Tensor& x) {
  return quantizeMeta("dynamic_scaled_int8_quant", x);
}

// ---- int8 products ----

// x [m, k] times weight [n, k], both int8.
void checkInt8(const char* op, const at::Tensor& x, const char* weight_name, const at::Tensor& weight, int64_t k_dim) {
  checkDims(op, "x", x, 2);
  checkDims(op, weight_name, weight, 2);
  checkDtype(op, "x", x, at::kChar);
  checkDtype(op, weight_name, weight, at::kChar);
  checkSize(op, weight_name, weight, k_dim, x.sym_size(1));
}

// One number for all rows, or one for each.
void checkScale(const char* op, const char* name, const at::Tensor& scale, const c10::SymInt& rows) {
  checkDtype(op, name, scale, at::kFloat);
  TORCH_CHECK(
      scale.sym_numel() == 1 || scale.sym_numel() == rows,
      op,
      ": ",
      name,
      " must hold one number or ",
      rows,
      ", got shape ",
      scale.sym_sizes());
}

void checkGemmInt8(
    const at::Tensor& x,
    const at::Tensor& x_max,
    const at::Tensor& weight,
    const at::Tensor& weight_max) {
  const char* op = "gemm_I8_I8_bf16_nt";
  checkInt8(op, x, "weight", weight, 1);
  checkScale(op, "x_max", x_max, x.sym_size(0));
  checkScale(op, "weight_max", weight_max, weight.sym_size(0));
}

at::Tensor
gemmInt8(const at::Tensor& x, const at::Tensor& x_max, const at::Tensor& weight, const at::Tensor& weight_max) {
  checkGemmInt8(x, x_max, weight, weight_max);
  auto out = empty({x.size(0), weight.size(0)}, at::kBFloat16, x.device());
  if (out.numel() != 0) {
    const std::array<const at::Tensor*, 1> outs{&out};
    launch(k_gemm_int8, x.device(), outs, dense(x), x_max.reshape({-1}), dense(weight), weight_max.reshape({-1}));
  }
  return out;
}

at::Tensor
gemmInt8Meta(const at::Tensor& x, const at::Tensor& x_max, const at::Tensor& weight, const at::Tensor& weight_max) {
  checkGemmInt8(x, x_max, weight, weight_max);
  return at::empty_symint({x.sym_size(0), weight.sym_size(0)}, x.options().dtype(at::kBFloat16));
}

void checkScaledMm(
    const at::Tensor& a,
    const at::Tensor& b,
    const at::Tensor& scale_a,
    const at::Tensor& scale_b,
    c10::ScalarType out_dtype,
    const std::optional<at::Tensor>& bias) {
  const char* op = "cutlass_scaled_mm";
  checkInt8(op, a, "b", b, 0);
  checkScale(op, "scale_a", scale_a, a.sym_size(0));
  checkScale(op, "scale_b", scale_b, b.sym_size(1));
  TORCH_CHECK(
      out_dtype == at::kFloat || out_dtype == at::kHalf || out_dtype == at::kBFloat16,
      op,
      ": out_dtype must be float32, float16 or bfloat16, got ",
      out_dtype);
  if (has(bias)) {
    checkDtype(op, "bias", *bias, out_dtype);
    checkShape(op, "bias", *bias, {b.sym_size(1)});
  }
}

at::Tensor scaledMm(
    const at::Tensor& a,
    const at::Tensor& b,
    const at::Tensor& scale_a,
    const at::Tensor& scale_b,
    c10::ScalarType out_dtype,
    const std::optional<at::Tensor>& bias) {
  checkScaledMm(a, b, scale_a, scale_b, out_dtype, bias);
  auto out = empty({a.size(0), b.size(1)}, out_dtype, a.device());
  if (out.numel() != 0) {
    const std::array<const at::Tensor*, 1> outs{&out};
    launch(
        k_scaled_mm_int8,
        a.device(),
        outs,
        dense(a),
        dense(b.t()),
        scale_a.reshape({-1}),
        scale_b.reshape({-1}),
        dense(bias));
  }
  return out;
}

at::Tensor scaledMmMeta(
    const at::Tensor& a,
    const at::Tensor& b,
    const at::Tensor& scale_a,
    const at::Tensor& scale_b,
    c10::ScalarType out_dtype,
    const std::optional<at::Tensor>& bias) {
  checkScaledMm(a, b, scale_a, scale_b, out_dtype, bias);
  return at::empty_symint({a.sym_size(0), b.sym_size(1)}, a.options().dtype(out_dtype));
}

// ---- weights of four bits ----

// Scales are [groups, columns], zero points the same with eight columns in an int32.
void checkGroups(
    const char* op,
    const at::Tensor& qweight,
    const at::Tensor& scales,
    const at::Tensor& qzeros,
    const c10::SymInt& depth,
    bool even_groups) {
  checkFloat(op, "scales", scales);
  for (const auto& [name, tensor] : {std::pair("qweight", qweight), std::pair("qzeros", qzeros)}) {
    checkDtype(op, name, tensor, at::kInt);
    checkDims(op, name, tensor, 2);
  }
  checkDims(op, "scales", scales, 2);
  TORCH_CHECK(
      scales.sym_size(1) % 8 == 0, op, ": the number of columns must be a multiple of 8, got ", scales.sym_size(1));
  TORCH_CHECK(
      scales.sym_size(0) > 0 && (!even_groups || depth % scales.sym_size(0) == 0),
      op,
      ": ",
      depth,
      " rows do not split into ",
      scales.sym_size(0),
      " groups");
  checkShape(op, "qzeros", qzeros, {scales.sym_size(0), scales.sym_size(1) / 8});
}

void checkAwq(const char* op, const at::Tensor& qweight, const at::Tensor& scales, const at::Tensor& qzeros) {
  checkDims(op, "qweight", qweight, 2);
  checkGroups(op, qweight, scales, qzeros, qweight.sym_size(0), true);
  checkSize(op, "qweight", qweight, 1, scales.sym_size(1) / 8);
}

void checkInput(const char* op, const at::Tensor& x, const at::Tensor& scales, const c10::SymInt& depth) {
  checkDims(op, "x", x, 2);
  checkDtype(op, "x", x, scales.scalar_type());
  checkSize(op, "x", x, 1, depth);
}

at::Tensor awqDequantize(const at::Tensor& qweight, const at::Tensor& scales, const at::Tensor& qzeros) {
  checkAwq("awq_dequantize", qweight, scales, qzeros);
  auto out = empty({qweight.size(0), scales.size(1)}, scales.scalar_type(), qweight.device());
  if (out.numel() != 0) {
    const std::array<const at::Tensor*, 1> outs{&out};
    launch(k_awq_dequantize, qweight.device(), outs, qweight, scales, qzeros);
  }
  return out;
}

at::Tensor awqDequantizeMeta(const at::Tensor& qweight, const at::Tensor& scales, const at::Tensor& qzeros) {
  checkAwq("awq_dequantize", qweight, scales, qzeros);
  return at::empty_symint({qweight.sym_size(0), scales.sym_size(1)}, scales.options());
}

at::Tensor
awqGemmMeta(const at::Tensor& x, const at::Tensor& qweight, const at::Tensor& scales, const at::Tensor& qzeros) {
  checkAwq("awq_gemm", qweight, scales, qzeros);
  checkInput("awq_gemm", x, scales, qweight.sym_size(0));
  return at::empty_symint({x.sym_size(0), scales.sym_size(1)}, x.options());
}

at::Tensor awqGemm(const at::Tensor& x, const at::Tensor& qweight, const at::Tensor& scales, const at::Tensor& qzeros) {
  checkAwq("awq_gemm", qweight, scales, qzeros);
  checkInput("awq_gemm", x, scales, qweight.sym_size(0));
  auto out = empty({x.size(0), scales.size(1)}, x.scalar_type(), x.device());
  if (out.numel() != 0) {
    const std::array<const at::Tensor*, 1> outs{&out};
    launch(k_awq_gemm, x.device(), outs, dense(x), qweight, scales, qzeros);
  }
  return out;
}

void checkGptq(
    const at::Tensor& x,
    const at::Tensor& qweight,
    const at::Tensor& qzeros,
    const at::Tensor& scales,
    const std::optional<at::Tensor>& g_idx) {
  const char* op = "gptq_gemm";
  checkDims(op, "qweight", qweight, 2);
  const auto depth = qweight.sym_size(0) * 8;
  checkGroups(op, qweight, scales, qzeros, depth, !has(g_idx));
  checkSize(op, "qweight", qweight, 1, scales.sym_size(1));
  checkInput(op, x, scales, depth);
  if (has(g_idx)) {
    checkIndex(op, "g_idx", *g_idx);
    checkShape(op, "g_idx", *g_idx, {depth});
  }
}

at::Tensor gptqGemm(
    const at::Tensor& x,
    const at::Tensor& qweight,
    const at::Tensor& qzeros,
    const at::Tensor& scales,
    const std::optional<at::Tensor>& g_idx) {
  checkGptq(x, qweight, qzeros, scales, g_idx);
  auto out = empty({x.size(0), scales.size(1)}, x.scalar_type(), x.device());
  if (out.numel() != 0) {
    const std::array<const at::Tensor*, 1> outs{&out};
    launch(k_gptq_gemm, x.device(), outs, dense(x), qweight, qzeros, scales, g_idx);
  }
  return out;
}

at::Tensor gptqGemmMeta(
    const at::Tensor& x,
    const at::Tensor& qweight,
    const at::Tensor& qzeros,
    const at::Tensor& scales,
    const std::optional<at::Tensor>& g_idx) {
  checkGptq(x, qweight, qzeros, scales, g_idx);
  return at::empty_symint({x.sym_size(0), scales.sym_size(1)}, x.options());
}

} // namespace

TORCH_LIBRARY_FRAGMENT(kunlun, m) {
  define<"quant2d", &quant2d, &quant2dMeta>(m, "quant2d(Tensor x) -> (Tensor, Tensor)");
  define<"dynamic_scaled_int8_quant", &dynamicScaledInt8Quant, &dynamicScaledInt8QuantMeta>(
      m, "dynamic_scaled_int8_quant(Tensor x) -> (Tensor, Tensor)");
  define<"gemm_I8_I8_bf16_nt", &gemmInt8, &gemmInt8Meta>(
      m, "gemm_I8_I8_bf16_nt(Tensor x, Tensor x_max, Tensor weight, Tensor weight_max) -> Tensor");
  define<"cutlass_scaled_mm", &scaledMm, &scaledMmMeta>(
      m,
      "cutlass_scaled_mm(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, ScalarType out_dtype, Tensor? bias=None) "
      "-> Tensor");
  define<"awq_dequantize", &awqDequantize, &awqDequantizeMeta>(
      m, "awq_dequantize(Tensor qweight, Tensor scales, Tensor qzeros) -> Tensor");
  define<"awq_gemm", &awqGemm, &awqGemmMeta>(
      m, "awq_gemm(Tensor x, Tensor qweight, Tensor scales, Tensor qzeros) -> Tensor");
  define<"gptq_gemm", &gptqGemm, &gptqGemmMeta>(
      m, "gptq_gemm(Tensor x, Tensor qweight, Tensor qzeros, Tensor scales, Tensor? g_idx=None) -> Tensor");
}

} // namespace kunlun::aten::fused
