// Low-rank adapters, one for each token.
#include <ATen/ops/empty.h>

#include "aten/Empty.h"
#include "aten/Launch.h"
#include "aten/fused/Checks.h"
#include "aten/fused/Define.h"

namespace kunlun::aten::fused {

namespace {

OpHandle k_shrink{"kunlun::bgmv_shrink"};
OpHandle k_expand{"kunlun::bgmv_expand"};

void checkWeights(const char* op, const at::Tensor& weights, c10::ScalarType dtype) {
  checkDims(op, "weights", weights, 3);
  checkDtype(op, "weights", weights, dtype);
  checkCacheRows(op, "weights", weights);
}

void checkIndices(const char* op, const at::Tensor& indices, const c10::SymInt& tokens) {
  checkIndex(op, "indices", indices);
  checkShape(op, "indices", indices, {tokens});
}

void checkShrink(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& indices) {
  const char* op = "bgmv_shrink";
  checkFloat(op, "x", x);
  checkDims(op, "x", x, 2);
  checkWeights(op, weights, x.scalar_type());
  checkSize(op, "weights", weights, 2, x.sym_size(1));
  checkIndices(op, indices, x.sym_size(0));
}

at::Tensor shrink(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& indices, double scale) {
  checkShrink(x, weights, indices);
  auto out = empty({x.size(0), weights.size(1)}, at::kFloat, x.device());
  if (out.numel() != 0) {
    const std::array<const at::Tensor*, 1> outs{&out};
    launch(k_shrink, x.device(), outs, dense(x), weights, indices, scale);
  }
  return out;
}

at::Tensor shrinkMeta(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& indices, double) {
  checkShrink(x, weights, indices);
  return at::empty_symint({x.sym_size(0), weights.sym_size(1)}, x.options().dtype(at::kFloat));
}

void expandMeta(
    const at::Tensor& y,
    const at::Tensor& weights,
    at::Tensor& out,
    const at::Tensor& indices,
    int64_t offset,
    bool) {
  const char* op = "bgmv_expand";
  checkDtype(op, "y", y, at::kFloat);
  checkDims(op, "y", y, 2);
  checkFloat(op, "out", out);
  checkDims(op, "out", out, 2);
  checkWritable(op, "out", out);
  checkSize(op, "out", out, 0, y.sym_size(0));
  checkWeights(op, weights, out.scalar_type());
  checkSize(op, "weights", weights, 2, y.sym_size(1));
  TORCH_CHECK(
      offset >= 0 && out.sym_size(1) >= weights.sym_size(1) + offset,
      op,
      ": ",
      weights.sym_size(1),
      " columns from offset ",
      offset,
      " on do not fit into out, which has ",
      out.sym_size(1));
  checkIndices(op, indices, y.sym_size(0));
}

void expand(
    const at::Tensor& y,
    const at::Tensor& weights,
    at::Tensor& out,
    const at::Tensor& indices,
    int64_t offset,
    bool add) {
  expandMeta(y, weights, out, indices, offset, add);
  if (y.size(0) != 0 && weights.size(1) != 0) {
    const std::array<const at::Tensor*, 1> outs{&out};
    launch(k_expand, out.device(), outs, dense(y), weights, out, indices, offset, add);
  }
}

} // namespace

TORCH_LIBRARY_FRAGMENT(kunlun, m) {
  define<"bgmv_shrink", &shrink, &shrinkMeta>(
      m, "bgmv_shrink(Tensor x, Tensor weights, Tensor indices, float scale=1.0) -> Tensor");
  define<"bgmv_expand", &expand, &expandMeta>(
      m, "bgmv_expand(Tensor y, Tensor weights, Tensor(a!) out, Tensor indices, int offset=0, bool add=True) -> ()");
}

} // namespace kunlun::aten::fused
