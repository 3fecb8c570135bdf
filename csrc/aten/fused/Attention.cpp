// Attention over packed sequences and over caches of blocks.
#include <cmath>

#include <ATen/ops/empty.h>

#include "aten/Empty.h"
#include "aten/Launch.h"
#include "aten/fused/Checks.h"
#include "aten/fused/Define.h"

namespace kunlun::aten::fused {

namespace {

OpHandle k_prefill_attention{"kunlun::prefill_attention"};
OpHandle k_paged_attention{"kunlun::paged_attention"};
OpHandle k_fwd_kvcache_mla{"kunlun::fwd_kvcache_mla"};
OpHandle k_attention_merge_stage{"kunlun::attention_merge_stage"};

using OptionalTensor = std::optional<at::Tensor>;
using Attention = std::tuple<at::Tensor, at::Tensor>; // result and logarithm of the sum of exponentials

// query is [tokens, heads, size]; key and value have their heads in dimension 1 and their elements in the last.
void checkHeads(
    const char* op,
    const at::Tensor& query,
    const char* key_name,
    const at::Tensor& key,
    const char* value_name,
    const at::Tensor& value,
    int64_t key_dims,
    const OptionalTensor& sinks) {
  checkFloat(op, "query", query);
  checkDims(op, "query", query, 3);
  checkDims(op, key_name, key, key_dims);
  checkDims(op, value_name, value, key_dims);
  checkDtype(op, key_name, key, query.scalar_type());
  checkDtype(op, value_name, value, query.scalar_type());
  checkSize(op, key_name, key, -1, query.sym_size(2));
  for (int64_t d = 0; d + 1 < key_dims; ++d) {
    checkSize(op, value_name, value, d, key.sym_size(d));
  }
  TORCH_CHECK(
      key.sym_size(1) > 0 && query.sym_size(1) % key.sym_size(1) == 0,
      op,
      ": the heads of query (",
      query.sym_size(1),
      ") must be a multiple of those of ",
      key_name,
      " (",
      key.sym_size(1),
      ")");
  if (has(sinks)) {
    checkDtype(op, "sinks", *sinks, at::kFloat);
    checkShape(op, "sinks", *sinks, {query.sym_size(1)});
  }
}

void checkWindow(const char* op, const char* name, int64_t window) {
  TORCH_CHECK(window >= -1, op, ": ", name, " must be -1 for no limit, or a number of tokens, got ", window);
}

void checkBlockTable(const char* op, const at::Tensor& table, const c10::SymInt& sequences) {
  checkIndex(op, "block_table", table);
  checkDims(op, "block_table", table, 2);
  checkSize(op, "block_table", table, 0, sequences);
}

void checkOut(const char* op, const at::Tensor& query, const at::Tensor& value, const at::Tensor& out) {
  checkDtype(op, "out", out, query.scalar_type());
  checkShape(op, "out", out, {query.sym_size(0), query.sym_size(1), value.sym_size(-1)});
  checkWritable(op, "out", out);
}

double scaleOf(std::optional<double> scale, const at::Tensor& query) {
  return scale.has_value() ? *scale : 1.0 / std::sqrt(static_cast<double>(query.size(2)));
}

Attention emptyResults(const at::Tensor& query, const at::Tensor& value) {
  return {
      empty({query.size(0), query.size(1), value.size(-1)}, query.scalar_type(), query.device()),
      empty({query.size(1), query.size(0)}, at::kFloat, query.device())};
}

Attention metaResults(const at::Tensor& query, const at::Tensor& value) {
  return {
      at::empty_symint({query.sym_size(0), query.sym_size(1), value.sym_size(-1)}, query.options()),
      at::empty_symint({query.sym_size(1), query.sym_size(0)}, query.options().dtype(at::kFloat))};
}

// ---- prefill_attention ----

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

// ---- paged_attention ----

void checkPaged(
    const at::Tensor& query,
    const at::Tensor& key_cache,
    const at::Tensor& value_cache,
    const at::Tensor& block_table,
    const at::Tensor& context_lens,
    int64_t window_left,
    const OptionalTensor& sinks) {
  const char* op = "paged_attention";
  checkHeads(op, query, "key_cache", key_cache, "value_cache", value_cache, 4, sinks);
  checkCacheRows(op, "key_cache", key_cache);
  checkCacheRows(op, "value_cache", value_cache);
  checkBlockTable(op, block_table, query.sym_size(0));
  checkIndex(op, "context_lens", context_lens);
  checkShape(op, "context_lens", context_lens, {query.sym_size(0)});
  checkWindow(op, "window_left", window_left);
}

void runPaged(
    const at::Tensor& query,
    const at::Tensor& key_cache,
    const at::Tensor& value_cache,
    const at::Tensor& block_table,
    const at::Tensor& context_lens,
    std::optional<double> scale,
    int64_t window_left,
    const OptionalTensor& sinks,
    const at::Tensor& out,
    const at::Tensor& lse) {
  if (query.size(0) == 0 || query.size(1) == 0) {
    return;
  }
  const std::array<const at::Tensor*, 2> outs{&out, &lse};
  launch(
      k_paged_attention,
      query.device(),
      outs,
      dense(query),
      key_cache,
      value_cache,
      block_table,
      context_lens,
      scaleOf(scale, query),
      window_left,
      sinks);
}

Attention pagedAttention(
    const at::Tensor& query,
    const at::Tensor& key_cache,
    const at::Tensor& value_cache,
    const at::Tensor& block_table,
    const at::Tensor& context_lens,
    std::optional<double> scale,
    int64_t window_left,
    const OptionalTensor& sinks) {
  checkPaged(query, key_cache, value_cache, block_table, context_lens, window_left, sinks);
  auto results = emptyResults(query, value_cache);
  runPaged(
      query,
      key_cache,
      value_cache,
      block_table,
      context_lens,
      scale,
      window_left,
      sinks,
      std::get<0>(results),
      std::get<1>(results));
  return results;
}

Attention pagedAttentionMeta(
    const at::Tensor& query,
    const at::Tensor& key_cache,
    const at::Tensor& value_cache,
    const at::Tensor& block_table,
    const at::Tensor& context_lens,
    std::optional<double>,
    int64_t window_left,
    const OptionalTensor& sinks) {
  checkPaged(query, key_cache, value_cache, block_table, context_lens, window_left, sinks);
  return metaResults(query, value_cache);
}

void pagedAttentionOutMeta(
    const at::Tensor& query,
    const at::Tensor& key_cache,
    const at::Tensor& value_cache,
    const at::Tensor& block_table,
    const at::Tensor& context_lens,
    std::optional<double>,
    int64_t window_left,
    const OptionalTensor& sinks,
    at::Tensor& out) {
  checkPaged(query, key_cache, value_cache, block_table, context_lens, window_left, sinks);
  checkOut("paged_attention", query, value_cache, out);
}

void pagedAttentionOut(
    const at::Tensor& query,
    const at::Tensor& key_cache,
    const at::Tensor& value_cache,
    const at::Tensor& block_table,
    const at::Tensor& context_lens,
    std::optional<double> scale,
    int64_t window_left,
    const OptionalTensor& sinks,
    at::Tensor& out) {
  pagedAttentionOutMeta(query, key_cache, value_cache, block_table, context_lens, scale, window_left, sinks, out);
  runPaged(query, key_cache, value_cache, block_table, context_lens, scale, window_left, sinks, out, at::Tensor());
}

// ---- fwd_kvcache_mla ----

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

// ---- attention_merge_stage ----

void checkMerge(
    const at::Tensor& prefix_out,
    const at::Tensor& prefix_lse,
    const at::Tensor& suffix_out,
    const at::Tensor& suffix_lse) {
  const char* op = "attention_merge_stage";
  checkFloat(op, "prefix_out", prefix_out);
  checkDims(op, "prefix_out", prefix_out, 3);
  checkDtype(op, "suffix_out", suffix_out, prefix_out.scalar_type());
  checkShape(op, "suffix_out", suffix_out, prefix_out.sym_sizes());
  checkDtype(op, "prefix_lse", prefix_lse, at::kFloat);
  checkDtype(op, "suffix_lse", suffix_lse, at::kFloat);
  checkShape(op, "prefix_lse", prefix_lse, {prefix_out.sym_size(1), prefix_out.sym_size(0)});
  checkShape(op, "suffix_lse", suffix_lse, {prefix_out.sym_size(1), prefix_out.sym_size(0)});
}

Attention attentionMergeStage(
    const at::Tensor& prefix_out,
    const at::Tensor& prefix_lse,
    const at::Tensor& suffix_out,
    const at::Tensor& suffix_lse) {
  checkMerge(prefix_out, prefix_lse, suffix_out, suffix_lse);
  auto results = emptyResults(prefix_out, prefix_out);
  if (prefix_out.numel() != 0) {
    const std::array<const at::Tensor*, 2> outs{&std::get<0>(results), &std::get<1>(results)};
    launch(
        k_attention_merge_stage,
        prefix_out.device(),
        outs,
        dense(prefix_out),
        prefix_lse,
        dense(suffix_out),
        suffix_lse);
  }
  return results;
}

Attention attentionMergeStageMeta(
    const at::Tensor& prefix_out,
    const at::Tensor& prefix_lse,
    const at::Tensor& suffix_out,
    const at::Tensor& suffix_lse) {
  checkMerge(prefix_out, prefix_lse, suffix_out, suffix_lse);
  return metaResults(prefix_out, prefix_out);
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
  define<"paged_attention", &pagedAttention, &pagedAttentionMeta>(
      m,
      "paged_attention(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_table, Tensor context_lens, "
      "float? scale=None, int window_left=-1, Tensor? sinks=None) -> (Tensor, Tensor)");
  define<"paged_attention.out", &pagedAttentionOut, &pagedAttentionOutMeta>(
      m,
      "paged_attention.out(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_table, Tensor "
      "context_lens, float? scale=None, int window_left=-1, Tensor? sinks=None, *, Tensor(a!) out) -> ()");
  define<"fwd_kvcache_mla", &fwdKvcacheMla, &fwdKvcacheMlaMeta>(
      m,
      "fwd_kvcache_mla(Tensor query, Tensor kv_cache, Tensor block_table, Tensor context_lens, int head_size_v, float? "
      "scale=None) -> (Tensor, Tensor)");
  define<"attention_merge_stage", &attentionMergeStage, &attentionMergeStageMeta>(
      m,
      "attention_merge_stage(Tensor prefix_out, Tensor prefix_lse, Tensor suffix_out, Tensor suffix_lse) -> (Tensor, "
      "Tensor)");
}

} // namespace kunlun::aten::fused
