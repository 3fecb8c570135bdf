// Attention of one token of each sequence over caches of blocks, and the merging of partial results.
#include "aten/fused/Attention.h"

#include "aten/Launch.h"
#include "aten/fused/Define.h"

namespace kunlun::aten::fused {

namespace {

OpHandle k_paged_attention{"kunlun::paged_attention"};
OpHandle k_attention_merge_stage{"kunlun::attention_merge_stage"};

// The operator's arguments, in the order of its schema.
struct Paged {
  const at::Tensor& query;
  const at::Tensor& key_cache;
  const at::Tensor& value_cache;
  const at::Tensor& block_table;
  const at::Tensor& context_lens;
  std::optional<double> scale;
  int64_t window_left;
  const OptionalTensor& sinks;
  const OptionalTensor& alibi_slopes;
  double softcap;

  void check() const {
    const char* op = "paged_attention";
    checkHeads(op, query, "key_cache", key_cache, "value_cache", value_cache, 4);
    checkOfHeads(op, "sinks", sinks, query);
    checkOfHeads(op, "alibi_slopes", alibi_slopes, query);
    checkCacheRows(op, "key_cache", key_cache);
    checkCacheRows(op, "value_cache", value_cache);
    checkBlockTable(op, block_table, query.sym_size(0));
    checkIndex(op, "context_lens", context_lens);
    checkShape(op, "context_lens", context_lens, {query.sym_size(0)});
    checkWindow(op, "window_left", window_left);
    checkSoftcap(op, softcap);
  }

  // `lse` may be undefined: it is not wanted then.
  void run(const at::Tensor& out, const at::Tensor& lse) const {
    if (query.is_meta() || query.size(0) == 0 || query.size(1) == 0) {
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
        sinks,
        alibi_slopes,
        softcap);
  }
};

Attention pagedAttention(
    const at::Tensor& query,
    const at::Tensor& key_cache,
    const at::Tensor& value_cache,
    const at::Tensor& block_table,
    const at::Tensor& context_lens,
    std::optional<double> scale,
    int64_t window_left,
    const OptionalTensor& sinks,
    const OptionalTensor& alibi_slopes,
    double softcap) {
  const Paged call{
      query, key_cache, value_cache, block_table, context_lens, scale, window_left, sinks, alibi_slopes, softcap};
  call.check();
  auto results = emptyResults(query, value_cache);
  call.run(std::get<0>(results), std::get<1>(results));
  return results;
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
    const OptionalTensor& alibi_slopes,
    double softcap,
    at::Tensor& out) {
  const Paged call{
      query, key_cache, value_cache, block_table, context_lens, scale, window_left, sinks, alibi_slopes, softcap};
  call.check();
  checkOut("paged_attention", query, value_cache, out);
  call.run(out, at::Tensor());
}

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
  if (!prefix_out.is_meta() && prefix_out.numel() != 0) {
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

} // namespace

TORCH_LIBRARY_FRAGMENT(kunlun, m) {
  define<"paged_attention", &pagedAttention, &pagedAttention>(
      m,
      "paged_attention(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_table, Tensor context_lens, "
      "float? scale=None, int window_left=-1, Tensor? sinks=None, Tensor? alibi_slopes=None, float softcap=0.0) -> "
      "(Tensor, Tensor)");
  define<"paged_attention.out", &pagedAttentionOut, &pagedAttentionOut>(
      m,
      "paged_attention.out(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_table, Tensor "
      "context_lens, float? scale=None, int window_left=-1, Tensor? sinks=None, Tensor? alibi_slopes=None, float "
      "softcap=0.0, *, Tensor(a!) out) -> ()");
  define<"attention_merge_stage", &attentionMergeStage, &attentionMergeStage>(
      m,
      "attention_merge_stage(Tensor prefix_out, Tensor prefix_lse, Tensor suffix_out, Tensor suffix_lse) -> (Tensor, "
      "Tensor)");
}

} // namespace kunlun::aten::fused
