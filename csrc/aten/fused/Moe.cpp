// Mixtures of experts: routing and experts.
#include <ATen/ops/empty.h>

#include "aten/Empty.h"
#include "aten/Launch.h"
#include "aten/fused/Checks.h"
#include "aten/fused/Define.h"

namespace kunlun::aten::fused {

namespace {

OpHandle k_softmax_topk{"kunlun::moe_softmax_topk"};
OpHandle k_softmax_topk_norm{"kunlun::moe_softmax_topk_norm"};
OpHandle k_sigmoid_group_topk_norm{"kunlun::moe_sigmoid_group_topk_norm"};
OpHandle k_moe_fc{"kunlun::moe_fc"};
OpHandle k_moe_ffn_block{"kunlun::moe_ffn_block"};

using Routing = std::tuple<at::Tensor, at::Tensor>; // weights and experts

// ---- routing ----

void checkLogits(const char* op, const at::Tensor& logits, int64_t k) {
  checkFloat(op, "logits", logits);
  checkDims(op, "logits", logits, 2);
  TORCH_CHECK(
      k > 0 && logits.sym_size(1) >= k,
      op,
      ": k must be from 1 to the number of experts (",
      logits.sym_size(1),
      "), got ",
      k);
}

Routing emptyRouting(const at::Tensor& logits, int64_t k) {
  return {
      empty({logits.size(0), k}, at::kFloat, logits.device()), empty({logits.size(0), k}, at::kInt, logits.device())};
}

Routing metaRouting(const at::Tensor& logits, int64_t k) {
  return {
      at::empty_symint({logits.sym_size(0), k}, logits.options().dtype(at::kFloat)),
      at::empty_symint({logits.sym_size(0), k}, logits.options().dtype(at::kInt))};
}

template <class... Args>
Routing route(OpHandle& op, const at::Tensor& logits, int64_t k, const Args&... args) {
  auto routing = emptyRouting(logits, k);
  if (logits.size(0) != 0) {
    const std::array<const at::Tensor*, 2> outs{&std::get<0>(routing), &std::get<1>(routing)};
    launch(op, logits.device(), outs, dense(logits), args...);
  }
  return routing;
}

Routing softmaxTopk(const at::Tensor& logits, int64_t k) {
  checkLogits("moe_softmax_topk", logits, k);
  return route(k_softmax_topk, logits, k, k);
}

Routing softmaxTopkMeta(const at::Tensor& logits, int64_t k) {
  checkLogits("moe_softmax_topk", logits, k);
  return metaRouting(logits, k);
}

Routing softmaxTopkNorm(const at::Tensor& logits, int64_t k) {
  checkLogits("moe_softmax_topk_norm", logits, k);
  return route(k_softmax_topk_norm, logits, k, k);
}

Routing softmaxTopkNormMeta(const at::Tensor& logits, int64_t k) {
  checkLogits("moe_softmax_topk_norm", logits, k);
  return metaRouting(logits, k);
}

void checkGroups(
    const at::Tensor& logits,
    const std::optional<at::Tensor>& bias,
    int64_t k,
    int64_t n_group,
    int64_t topk_group) {
  const char* op = "moe_sigmoid_group_topk_norm";
  checkLogits(op, logits, k);
  const auto experts = logits.sym_size(1);
  TORCH_CHECK(
      n_group > 0 && experts % n_group == 0,
      op,
      ": n_group (",
      n_group,
      ") must divide the number of experts (",
      experts,
      ")");
  TORCH_CHECK(
      topk_group > 0 && topk_group <= n_group && experts / n_group * topk_group >= k,
      op,
      ": topk_group must be from 1 to n_group (",
      n_group,
      "), and its groups must hold k (",
      k,
      ") experts, got ",
      topk_group);
  if (has(bias)) {
    checkDtype(op, "bias", *bias, at::kFloat);
    checkShape(op, "bias", *bias, {experts});
  }
}

Routing sigmoidGroupTopkNorm(
    const at::Tensor& logits,
    const std::optional<at::Tensor>& bias,
    int64_t k,
    int64_t n_group,
    int64_t topk_group,
    double scale) {
  checkGroups(logits, bias, k, n_group, topk_group);
  return route(k_sigmoid_group_topk_norm, logits, k, bias, k, n_group, topk_group, scale);
}

Routing sigmoidGroupTopkNormMeta(
    const at::Tensor& logits,
    const std::optional<at::Tensor>& bias,
    int64_t k,
    int64_t n_group,
    int64_t topk_group,
    double) {
  checkGroups(logits, bias, k, n_group, topk_group);
  return metaRouting(logits, k);
}

// ---- experts ----

// weight is [experts, out, in].
void checkWeight(const char* op, const char* name, const at::Tensor& weight, const at::Tensor& x) {
  checkDims(op, name, weight, 3);
  checkDtype(op, name, weight, x.scalar_type());
  checkCacheRows(op, name, weight);
}

void checkIds(const char* op, const at::Tensor& ids, const at::Tensor& x) {
  checkIndex(op, "ids", ids);
  checkDims(op, "ids", ids, 2);
  checkSize(op, "ids", ids, 0, x.sym_size(0));
}

void checkFc(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& ids) {
  const char* op = "moe_fc";
  checkFloat(op, "x", x);
  TORCH_CHECK(x.dim() == 2 || x.dim() == 3, op, ": x must be [tokens, in] or [tokens, k, in], got ", x.sym_sizes());
  checkWeight(op, "weight", weight, x);
  checkSize(op, "weight", weight, 2, x.sym_size(-1));
  checkIds(op, ids, x);
  if (x.dim() == 3) {
    checkSize(op, "ids", ids, 1, x.sym_size(1));
  }
}

at::Tensor moeFc(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& ids) {
  checkFc(x, weight, ids);
  auto out = empty({x.size(0), ids.size(1), weight.size(1)}, x.scalar_type(), x.device());
  if (out.numel() != 0) {
    const std::array<const at::Tensor*, 1> outs{&out};
    launch(k_moe_fc, x.device(), outs, dense(x), weight, ids);
  }
  return out;
}

at::Tensor moeFcMeta(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& ids) {
  checkFc(x, weight, ids);
  return at::empty_symint({x.sym_size(0), ids.sym_size(1), weight.sym_size(1)}, x.options());
}

void checkFfn(
    const at::Tensor& x,
    const at::Tensor& w13,
    const at::Tensor& w2,
    const at::Tensor& weights,
    const at::Tensor& ids) {
  const char* op = "moe_ffn_block";
  checkFloat(op, "x", x);
  checkDims(op, "x", x, 2);
  checkWeight(op, "w13", w13, x);
  checkWeight(op, "w2", w2, x);
  checkSize(op, "w13", w13, 2, x.sym_size(1));
  checkSize(op, "w2", w2, 0, w13.sym_size(0));
  checkSize(op, "w2", w2, 1, x.sym_size(1));
  checkSize(op, "w13", w13, 1, 2 * w2.sym_size(2));
  checkIds(op, ids, x);
  checkDtype(op, "weights", weights, at::kFloat);
  checkShape(op, "weights", weights, ids.sym_sizes());
}

at::Tensor moeFfnBlock(
    const at::Tensor& x,
    const at::Tensor& w13,
    const at::Tensor& w2,
    const at::Tensor& weights,
    const at::Tensor& ids) {
  checkFfn(x, w13, w2, weights, ids);
  auto out = empty(x.sizes(), x.scalar_type(), x.device());
  if (out.numel() != 0) {
    const std::array<const at::Tensor*, 1> outs{&out};
    launch(k_moe_ffn_block, x.device(), outs, dense(x), w13, w2, weights, ids);
  }
  return out;
}

at::Tensor moeFfnBlockMeta(
    const at::Tensor& x,
    const at::Tensor& w13,
    const at::Tensor& w2,
    const at::Tensor& weights,
    const at::Tensor& ids) {
  checkFfn(x, w13, w2, weights, ids);
  return at::empty_symint(x.sym_sizes(), x.options());
}

} // namespace

TORCH_LIBRARY_FRAGMENT(kunlun, m) {
  define<"moe_softmax_topk", &softmaxTopk, &softmaxTopkMeta>(
      m, "moe_softmax_topk(Tensor logits, int k) -> (Tensor, Tensor)");
  define<"moe_softmax_topk_norm", &softmaxTopkNorm, &softmaxTopkNormMeta>(
      m, "moe_softmax_topk_norm(Tensor logits, int k) -> (Tensor, Tensor)");
  define<"moe_sigmoid_group_topk_norm", &sigmoidGroupTopkNorm, &sigmoidGroupTopkNormMeta>(
      m,
      "moe_sigmoid_group_topk_norm(Tensor logits, Tensor? bias, int k, int n_group, int topk_group, float scale=1.0) "
      "-> "
      "(Tensor, Tensor)");
  define<"moe_fc", &moeFc, &moeFcMeta>(m, "moe_fc(Tensor x, Tensor weight, Tensor ids) -> Tensor");
  define<"moe_ffn_block", &moeFfnBlock, &moeFfnBlockMeta>(
      m, "moe_ffn_block(Tensor x, Tensor w13, Tensor w2, Tensor weights, Tensor ids) -> Tensor");
}

} // namespace kunlun::aten::fused
