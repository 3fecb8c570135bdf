// What the attention operators share: checks of their arguments, and the results they make.
#pragma once

#include <cmath>
#include <optional>
#include <tuple>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "aten/Empty.h"
#include "aten/fused/Checks.h"

namespace kunlun::aten::fused {

using OptionalTensor = std::optional<at::Tensor>;
using Attention = std::tuple<at::Tensor, at::Tensor>; // result and logarithm of the sum of exponentials

// query is [tokens, heads, size]; key and value have their heads in dimension 1 and their elements in the last.
inline void checkHeads(
    const char* op,
    const at::Tensor& query,
    const char* key_name,
    const at::Tensor& key,
    const char* value_name,
    const at::Tensor& value,
    int64_t key_dims) {
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
}

// One float32 number for each head of query: sinks, slopes.
inline void checkOfHeads(const char* op, const char* name, const OptionalTensor& tensor, const at::Tensor& query) {
  if (has(tensor)) {
    checkDtype(op, name, *tensor, at::kFloat);
    checkShape(op, name, *tensor, {query.sym_size(1)});
  }
}

inline void checkSoftcap(const char* op, double softcap) {
  TORCH_CHECK_VALUE(
      softcap >= 0 && std::isfinite(softcap), op, ": softcap must be 0 for none, or positive, got ", softcap);
}

inline void checkWindow(const char* op, const char* name, int64_t window) {
  TORCH_CHECK(window >= -1, op, ": ", name, " must be -1 for no limit, or a number of tokens, got ", window);
}

inline void checkBlockTable(const char* op, const at::Tensor& table, const c10::SymInt& sequences) {
  checkIndex(op, "block_table", table);
  checkDims(op, "block_table", table, 2);
  checkSize(op, "block_table", table, 0, sequences);
}

inline void checkOut(const char* op, const at::Tensor& query, const at::Tensor& value, const at::Tensor& out) {
  checkDtype(op, "out", out, query.scalar_type());
  checkShape(op, "out", out, {query.sym_size(0), query.sym_size(1), value.sym_size(-1)});
  checkWritable(op, "out", out);
}

inline double scaleOf(std::optional<double> scale, const at::Tensor& query) {
  return scale.has_value() ? *scale : 1.0 / std::sqrt(static_cast<double>(query.size(2)));
}

// Without memory for meta tensors.
inline Attention emptyResults(const at::Tensor& query, const at::Tensor& value) {
  if (query.is_meta()) {
    return {
        at::empty_symint({query.sym_size(0), query.sym_size(1), value.sym_size(-1)}, query.options()),
        at::empty_symint({query.sym_size(1), query.sym_size(0)}, query.options().dtype(at::kFloat))};
  }
  return {
      empty({query.size(0), query.size(1), value.size(-1)}, query.scalar_type(), query.device()),
      empty({query.size(1), query.size(0)}, at::kFloat, query.device())};
}

} // namespace kunlun::aten::fused
