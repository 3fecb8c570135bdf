// Attention over a cache of latent vectors.
#include "aten/fused/Attention.h"

#include "aten/Launch.h"
#include "aten/fused/Define.h"

namespace kunlun::aten::fused {

namespace {

OpHandle k_fwd_kvcache_mla{"kunlun::fwd_kvcache_mla"};

void checkMla(
    const at::Tensor& query,
    const at::Tensor& kv_cache,
    const at::Tensor& block_table,
    const at::Tensor& context_lens,
    int64_t head_size_v) {
  const char* op = "fwd_kvcache_mla";
  checkFloat(op, "query", query);
  checkDims(op, "query", query, 3);
  checkDims(op, "kv_cache", kv_cache, 3);
  checkDtype(op, "kv_cache", kv_cache, query.scalar_type());
  checkSize(op, "kv_cache", kv_cache, 2, query.sym_size(2));
  checkCacheRows(op, "kv_cache", kv_cache);
  checkBlockTable(op, block_table, query.sym_size(0));
  checkIndex(op, "context_lens", context_lens);
  checkShape(op, "context_lens", context_lens, {query.sym_size(0)});
  TORCH_CHECK(
      head_size_v > 0 && query.sym_size(2) >= head_size_v,
      op,
      ": head_size_v must be from 1 to the size of a row of kv_cache (",
      query.sym_size(2),
      "), got ",
      head_size_v);
}

Attention fwdKvcacheMla(
    const at::Tensor& query,
    const at::Tensor& kv_cache,
    const at::Tensor& block_table,
    const at::Tensor& context_lens,
    int64_t head_size_v,
    std::optional<double> scale) {
  checkMla(query, kv_cache, block_table, context_lens, head_size_v);
  auto out = empty({query.size(0), query.size(1), head_size_v}, query.scalar_type(), query.device());
  auto lse = empty({query.size(1), query.size(0)}, at::kFloat, query.device());
  if (out.numel() != 0) {
    const std::array<const at::Tensor*, 2> outs{&out, &lse};
    launch(
        k_fwd_kvcache_mla,
        query.device(),
        outs,
        dense(query),
        kv_cache,
        block_table,
        context_lens,
        scaleOf(scale, query));
  }
  return {std::move(out), std::move(lse)};
}

Attention fwdKvcacheMlaMeta(
    const at::Tensor& query,
    const at::Tensor& kv_cache,
    const at::Tensor& block_table,
    const at::Tensor& context_lens,
    int64_t head_size_v,
    std::optional<double>) {
  checkMla(query, kv_cache, block_table, context_lens, head_size_v);
  return {
      at::empty_symint({query.sym_size(0), query.sym_size(1), head_size_v}, query.options()),
      at::empty_symint({query.sym_size(1), query.sym_size(0)}, query.options().dtype(at::kFloat))};
}

} // namespace

TORCH_LIBRARY_FRAGMENT(kunlun, m) {
  define<"fwd_kvcache_mla", &fwdKvcacheMla, &fwdKvcacheMlaMeta>(
      m,
      "fwd_kvcache_mla(Tensor query, Tensor kv_cache, Tensor block_table, Tensor context_lens, int head_size_v, float? "
      "scale=None) -> (Tensor, Tensor)");
}

} // namespace kunlun::aten::fused
