// Attention over packed sequences of several tokens each.
#include "aten/fused/Attention.h"

#include "aten/Launch.h"
#include "aten/fused/Define.h"

namespace kunlun::aten::fused {

namespace {

OpHandle k_prefill_attention{"kunlun::prefill_attention"};
constexpr const char* kOp = "prefill_attention";

// The operator's arguments, in the order of its schema.
struct Prefill {
  const at::Tensor& query;
  const at::Tensor& key;
  const at::Tensor& value;
  const at::Tensor& cu_seqlens_q;
  const at::Tensor& cu_seqlens_k;
  std::optional<double> scale;
  bool is_causal;
  int64_t window_left;
  int64_t window_right;
  const OptionalTensor& sinks;
  const OptionalTensor& block_table;
  const OptionalTensor& alibi_slopes;
  double softcap;

  void check() const {
    checkHeads(kOp, query, "key", key, "value", value, has(block_table) ? 4 : 3);
    checkOfHeads(kOp, "sinks", sinks, query);
    checkOfHeads(kOp, "alibi_slopes", alibi_slopes, query);
    checkIndex(kOp, "cu_seqlens_q", cu_seqlens_q);
    checkIndex(kOp, "cu_seqlens_k", cu_seqlens_k);
    checkDims(kOp, "cu_seqlens_q", cu_seqlens_q, 1);
    TORCH_CHECK(
        cu_seqlens_q.sym_size(0) >= 1,
        kOp,
        ": cu_seqlens_q must have one element more than there are sequences, got none");
    checkShape(kOp, "cu_seqlens_k", cu_seqlens_k, cu_seqlens_q.sym_sizes());
    checkWindow(kOp, "window_left", window_left);
    checkWindow(kOp, "window_right", window_right);
    checkSoftcap(kOp, softcap);
    if (has(block_table)) {
      checkBlockTable(kOp, *block_table, cu_seqlens_q.sym_size(0) - 1);
      checkCacheRows(kOp, "key", key);
      checkCacheRows(kOp, "value", value);
    }
  }

  // `lse` may be undefined: it is not wanted then.
  void run(const at::Tensor& out, const at::Tensor& lse) const {
    if (query.is_meta() || query.size(0) == 0 || query.size(1) == 0) {
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
        block_table,
        alibi_slopes,
        softcap);
  }
};

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
    const OptionalTensor& block_table,
    const OptionalTensor& alibi_slopes,
    double softcap) {
  const Prefill call{
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
      alibi_slopes,
      softcap};
  call.check();
  auto results = emptyResults(query, value);
  call.run(std::get<0>(results), std::get<1>(results));
  return results;
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
    const OptionalTensor& alibi_slopes,
    double softcap,
    at::Tensor& out) {
  const Prefill call{
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
      alibi_slopes,
      softcap};
  call.check();
  checkOut(kOp, query, value, out);
  call.run(out, at::Tensor());
}

} // namespace

TORCH_LIBRARY_FRAGMENT(kunlun, m) {
  define<"prefill_attention", &prefillAttention, &prefillAttention>(
      m,
      "prefill_attention(Tensor query, Tensor key, Tensor value, Tensor cu_seqlens_q, Tensor cu_seqlens_k, float? "
      "scale=None, bool is_causal=True, int window_left=-1, int window_right=-1, Tensor? sinks=None, Tensor? "
      "block_table=None, Tensor? alibi_slopes=None, float softcap=0.0) -> (Tensor, Tensor)");
  define<"prefill_attention.out", &prefillAttentionOut, &prefillAttentionOut>(
      m,
      "prefill_attention.out(Tensor query, Tensor key, Tensor value, Tensor cu_seqlens_q, Tensor cu_seqlens_k, float? "
      "scale=None, bool is_causal=True, int window_left=-1, int window_right=-1, Tensor? sinks=None, Tensor? "
      "block_table=None, Tensor? alibi_slopes=None, float softcap=0.0, *, Tensor(a!) out) -> ()");
}

} // namespace kunlun::aten::fused
