// Where the keys and values of one sequence and head lie: side by side, or in the blocks of a cache.
#pragma once

#include "runtime/sim/ops/fused/Args.h"

namespace kunlun::sim {
namespace {

template <class T>
class TokenRows {
 public:
  // [tokens, heads, size], from token `first` on.
  TokenRows(const View& tensor, int64_t first, int64_t head)
      : base_(tensor.as<T>() + first * tensor.stride(0) + head * tensor.stride(1)), step_(tensor.stride(0)) {}

  // A cache of [blocks, heads, block_size, size], through row `sequence` of a table of blocks.
  TokenRows(const View& cache, const View& table, int64_t sequence, int64_t head)
      : base_(cache.as<T>() + head * cache.stride(1)),
        step_(cache.stride(2)),
        block_step_(cache.stride(0)),
        block_size_(cache.size(2)),
        table_(table),
        sequence_(sequence) {}

  const T* operator()(int64_t token) const {
    if (block_size_ == 0) {
      return base_ + token * step_;
    }
    return base_ + table_.index(sequence_, token / block_size_) * block_step_ + token % block_size_ * step_;
  }

 private:
  const T* base_;
  int64_t step_;
  int64_t block_step_ = 0;
  int64_t block_size_ = 0;
  View table_;
  int64_t sequence_ = 0;
};

// Every block that a sequence of `length` tokens uses must be one of the cache.
inline void checkBlocks(const char* op, const View& cache, const View& table, int64_t sequence, int64_t length) {
  const int64_t block_size = cache.size(2);
  const int64_t blocks = (length + block_size - 1) / block_size;
  TORCH_CHECK_INDEX(
      length >= 0 && blocks <= table.size(1),
      op,
      ": sequence ",
      sequence,
      " has ",
      length,
      " tokens, but block_table has room for ",
      table.size(1) * block_size);
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t block = table.index(sequence, i);
    TORCH_CHECK_INDEX(
        block >= 0 && block < cache.size(0),
        op,
        ": block ",
        block,
        " of sequence ",
        sequence,
        " is out of the range of a cache of ",
        cache.size(0),
        " blocks");
  }
}

} // namespace
} // namespace kunlun::sim
