// Rotary position embedding.
#include <ATen/ops/empty.h>

#include "aten/Empty.h"
#include "aten/Launch.h"
#include "aten/fused/Checks.h"
#include "aten/fused/Define.h"

namespace kunlun::aten::fused {

namespace {

OpHandle k_rotary_embedding{"kunlun::rotary_embedding"};
OpHandle k_split_norm_rope{"kunlun::split_norm_rope"};

void checkCache(const char* op, const at::Tensor& cos_sin_cache, const at::Tensor& x, int64_t head_size) {
  checkDims(op, "cos_sin_cache", cos_sin_cache, 2);
  checkParameterDtype(op, "cos_sin_cache", cos_sin_cache, x);
  TORCH_CHECK(head_size > 0, op, ": head_size must be positive, got ", head_size);
  const auto rotated = cos_sin_cache.sym_size(1);
  TORCH_CHECK(
      rotated % 2 == 0 && rotated <= head_size,
      op,
      ": cos_sin_cache must have rows of an even size of at most head_size (",
      head_size,
      "), got ",
      rotated);
}

// ---- rotary_embedding ----

void checkHeads(const char* name, const at::Tensor& tensor, const at::Tensor& positions, int64_t head_size) {
  const char* op = "rotary_embedding";
  const auto tokens = positions.dim();
  const bool split = tensor.dim() == tokens + 2;
  TORCH_CHECK(
      tensor.dim() == tokens + 1 || split,
      op,
      ": ",
      name,
      " must be [tokens, heads * head_size] or [tokens, heads, head_size] with the tokens of positions ",
      positions.sym_sizes(),
      ", got ",
      tensor.sym_sizes());
  checkShape(op, name, tensor, [&] {
    c10::SymDimVector shape(positions.sym_sizes());
    for (auto d = tokens; d < tensor.dim(); ++d) {
      shape.push_back(tensor.sym_size(d));
    }
    return shape;
  }());
  TORCH_CHECK(
      split ? tensor.sym_size(-1) == head_size : tensor.sym_size(-1) % head_size == 0,
      op,
      ": the last dimension of ",
      name,
      " does not hold whole heads of head_size ",
      head_size,
      ": ",
      tensor.sym_sizes());
  checkWritable(op, name, tensor);
}

void rotaryEmbeddingMeta(
    const at::Tensor& positions,
    at::Tensor& query,
    std::optional<at::Tensor> key,
    int64_t head_size,
    const at::Tensor& cos_sin_cache,
    bool) {
  const char* op = "rotary_embedding";
  checkIndex(op, "positions", positions);
  TORCH_CHECK(positions.dim() >= 1, op, ": positions must have at least one dimension");
  checkFloat(op, "query", query);
  checkCache(op, cos_sin_cache, query, head_size);
  checkHeads("query", query, positions, head_size);
  if (has(key)) {
    checkDtype(op, "key", *key, query.scalar_type());
    checkHeads("key", *key, positions, head_size);
  }
}

void rotaryEmbedding(
    const at::Tensor& positions,
    at::Tensor& query,
    std::optional<at::Tensor> key,
    int64_t head_size,
    const at::Tensor& cos_sin_cache,
    bool is_neox) {
  rotaryEmbeddingMeta(positions, query, key, head_size, cos_sin_cache, is_neox);
  if (query.numel() != 0 || (has(key) && key->numel() != 0)) {
    const at::Tensor none;
    const std::array<const at::Tensor*, 2> outs{&query, has(key) ? &*key : &none};
    launch(k_rotary_embedding, query.device(), outs, positions, query, key, head_size, dense(cos_sin_cache), is_neox);
  }
}

// ---- split_norm_rope ----

void checkSplit(
    const at::Tensor& qkv,
    const std::optional<at::Tensor>& q_weight,
    const std::optional<at::Tensor>& k_weight,
    const at::Tensor& cos_sin_cache,
    const at::Tensor& positions,
    int64_t num_heads,
    int64_t num_kv_heads,
    int64_t head_size) {
  const char* op = "split_norm_rope";
  checkFloat(op, "qkv", qkv);
  checkDims(op, "qkv", qkv, 2);
  checkCache(op, cos_sin_cache, qkv, head_size);
  TORCH_CHECK(
      num_heads > 0 && num_kv_heads > 0,
      op,
      ": num_heads and num_kv_heads must be positive, got ",
      num_heads,
      " and ",
      num_kv_heads);
  checkSize(op, "qkv", qkv, 1, (num_heads + 2 * num_kv_heads) * head_size);
  checkIndex(op, "positions", positions);
  checkShape(op, "positions", positions, {qkv.sym_size(0)});
  TORCH_CHECK(has(q_weight) == has(k_weight), op, ": q_weight and k_weight must both be given or both be absent");
  if (has(q_weight)) {
    checkParameterDtype(op, "q_weight", *q_weight, qkv);
    checkParameterDtype(op, "k_weight", *k_weight, qkv);
    checkShape(op, "q_weight", *q_weight, {c10::SymInt(head_size)});
    checkShape(op, "k_weight", *k_weight, {c10::SymInt(head_size)});
  }
}

using Split = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

Split splitNormRope(
    const at::Tensor& qkv,
    const std::optional<at::Tensor>& q_weight,
    const std::optional<at::Tensor>& k_weight,
    const at::Tensor& cos_sin_cache,
    const at::Tensor& positions,
    int64_t num_heads,
    int64_t num_kv_heads,
    int64_t head_size,
    double eps,
    bool is_neox) {
  checkSplit(qkv, q_weight, k_weight, cos_sin_cache, positions, num_heads, num_kv_heads, head_size);
  const auto device = qkv.device();
  auto q = empty({qkv.size(0), num_heads * head_size}, qkv.scalar_type(), device);
  auto k = empty({qkv.size(0), num_kv_heads * head_size}, qkv.scalar_type(), device);
  auto v = empty({qkv.size(0), num_kv_heads * head_size}, qkv.scalar_type(), device);
  if (qkv.numel() != 0) {
    const std::array<const at::Tensor*, 3> outs{&q, &k, &v};
    launch(
        k_split_norm_rope,
        device,
        outs,
        dense(qkv),
        dense(q_weight),
        dense(k_weight),
        dense(cos_sin_cache),
        positions,
        num_heads,
        num_kv_heads,
        head_size,
        eps,
        is_neox);
  }
  return {std::move(q), std::move(k), std::move(v)};
}

Split splitNormRopeMeta(
    const at::Tensor& qkv,
    const std::optional<at::Tensor>& q_weight,
    const std::optional<at::Tensor>& k_weight,
    const at::Tensor& cos_sin_cache,
    const at::Tensor& positions,
    int64_t num_heads,
    int64_t num_kv_heads,
    int64_t head_size,
    double,
    bool) {
  checkSplit(qkv, q_weight, k_weight, cos_sin_cache, positions, num_heads, num_kv_heads, head_size);
  const auto make = [&](int64_t heads) {
    return at::empty_symint({qkv.sym_size(0), c10::SymInt(heads * head_size)}, qkv.options());
  };
  return {make(num_heads), make(num_kv_heads), make(num_kv_heads)};
}

} // namespace

TORCH_LIBRARY_FRAGMENT(kunlun, m) {
  define<"rotary_embedding", &rotaryEmbedding, &rotaryEmbeddingMeta>(
      m,
      "rotary_embedding(Tensor positions, Tensor(a!) query, Tensor(b!)? key, int head_size, Tensor cos_sin_cache, "
      "bool is_neox=True) -> ()");
  define<"split_norm_rope", &splitNormRope, &splitNormRopeMeta>(
      m,
      "split_norm_rope(Tensor qkv, Tensor? q_weight, Tensor? k_weight, Tensor cos_sin_cache, Tensor positions, int "
      "num_heads, int num_kv_heads, int head_size, float eps=1e-06, bool is_neox=True) -> (Tensor, Tensor, Tensor)");
}

} // namespace kunlun::aten::fused
