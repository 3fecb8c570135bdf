// Attention over packed sequences of several tokens each.
#include "aten/fused/Attention.h"

#include "aten/Launch.h"
#include "aten/fused/Define.h"

namespace kunlun::aten::fused {

namespace {

OpHandle k_prefill_attention{"kunlun::prefill_attention"};

void checkPrefill(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const at::Tensor& cu_seqlens_q,
    const at::Tensor& cu_seqlens_k,
    int64_t window_left,
    int64_t window_right,
    const OptionalTensor& sinks,
    const OptionalTensor& block_table) {
  const char* op = "prefill_attention";
  checkHeads(op, query, "key", key, "value", value, has(block_table) ? 4 : 3, sinks);
  checkIndex(op, "cu_seqlens_q", cu_seqlens_q);
  checkIndex(op, "cu_seqlens_k", cu_seqlens_k);
  checkDims(op, "cu_seqlens_q", cu_seqlens_q, 1);
  TORCH_CHECK(
      cu_seqlens_q.sym_size(0) >= 1,
      op,
      ": cu_seqlens_q must have one element more than there are sequences, got none");
  checkShape(op, "cu_seqlens_k", cu_seqlens_k, cu_seqlens_q.sym_sizes());
  checkWindow(op, "window_left", window_left);
  checkWindow(op, "window_right", window_right);
  if (has(block_table)) {
    checkBlockTable(op, *block_table, cu_seqlens_q.sym_size(0) - 1);
    checkCacheRows(op, "key", key);
    checkCacheRows(op, "value", value);
  }
}

void runPrefill(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const at::Tensor& cu_seqlens_q,
    const at::Tensor& cu_seqlens_k,
    std::optional<double> scale,
    bool is_causal,
    int64_t window_left,
    int64_t window_right,
    const OptionalTensor& sinks,
    const OptionalTensor& block_table,
    const at::Tensor& out,
    const at::Tensor& lse) {
  if (query.size(0) == 0 || query.size(1) == 0) {
    return;
  }
  const bool paged = has(block_table);
  const std::array<const at::Tensor*, 2> outs{&out, &lse};
  launch(
      k_prefill_attention,
      query.device(),
      outs,
      dense(query),
      paged ? key : dense(key),
      paged ? value : dense(value),
      cu_seqlens_q,
      cu_seqlens_k,
      scaleOf(scale, query),
      is_causal,
      window_left,
      window_right,
      sinks,
      block_table);
}

Attention prefillAttention(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const at::Tensor& cu_seqlens_q,
    const at::Tensor& cu_seqlens_k,
    std::optional<double> scale,
    bool is_causal,
    int64_t window_left,
    int64_t window_right,
    const OptionalTensor& sinks,
    const OptionalTensor& block_table) {
  checkPrefill(query, key, value, cu_seqlens_q, cu_seqlens_k, window_left, window_right, sinks, block_table);
  auto results = emptyResults(query, value);
  runPrefill(
      query,
      key,
      value,
      cu_seqlens_q,
      cu_seqlens_k,
      scale,
      is_causal,
      window_left,
      window_right,
      sinks,
      block_table,
      std::get<0>(results),
      std::get<1>(results));
  return results;
}

Attention prefillAttentionMeta(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const at::Tensor& cu_seqlens_q,
    const at::Tensor& cu_seqlens_k,
    std::optional<double>,
    bool,
    int64_t window_left,
    int64_t window_right,
    const OptionalTensor& sinks,
    const OptionalTensor& block_table) {
  checkPrefill(query, key, value, cu_seqlens_q, cu_seqlens_k, window_left, window_right, sinks, block_table);
  return metaResults(query, value);
}

void prefillAttentionOutMeta(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const at::Tensor& cu_seqlens_q,
    const at::Tensor& cu_seqlens_k,
    std::optional<double>,
    bool,
    int64_t window_left,
    int64_t window_right,
    const OptionalTensor& sinks,
    const OptionalTensor& block_table,
    at::Tensor& out) {
  checkPrefill(query, key, value, cu_seqlens_q, cu_seqlens_k, window_left, window_right, sinks, block_table);
  checkOut("prefill_attention", query, value, out);
}

void prefillAttentionOut(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const at::Tensor& cu_seqlens_q,
    const at::Tensor& cu_seqlens_k,
    std::optional<double> scale,
    bool is_causal,
    int64_t window_left,
    int64_t window_right,
    const OptionalTensor& sinks,
    const OptionalTensor& block_table,
    at::Tensor& out) {
  checkPrefill(query, key, value, cu_seqlens_q, cu_seqlens_k, window_left, window_right, sinks, block_table);
  checkOut("prefill_attention", query, value, out);
  runPrefill(
      query,
      key,
      value,
      cu_seqlens_q,
      cu_seqlens_k,
      scale,
      is_causal,
      window_left,
      window_right,
      sinks,
      block_table,
      out,
      at::Tensor());
}

} // namespace

TORCH_LIBRARY_FRAGMENT(kunlun, m) {
  define<"prefill_attention", &prefillAttention, &prefillAttentionMeta>(
      m,
      "prefill_attention(Tensor query, Tensor key, Tensor value, Tensor cu_seqlens_q, Tensor cu_seqlens_k, float? "
      "scale=None, bool is_causal=True, int window_left=-1, int window_right=-1, Tensor? sinks=None, Tensor? "
      "block_table=None) -> (Tensor, Tensor)");
  define<"prefill_attention.out", &prefillAttentionOut, &prefillAttentionOutMeta>(
      m,
      "prefill_attention.out(Tensor query, Tensor key, Tensor value, Tensor cu_seqlens_q, Tensor cu_seqlens_k, float? "
      "scale=None, bool is_causal=True, int window_left=-1, int window_right=-1, Tensor? sinks=None, Tensor? "
      "block_table=None, *, Tensor(a!) out) -> ()");
}

} // namespace kunlun::aten::fused
