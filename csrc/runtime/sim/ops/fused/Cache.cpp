// Writing keys and values into caches of blocks: copies of rows, whatever their dtype.
#include <cstring>

#include <ATen/Parallel.h>

#include "runtime/sim/ops/fused/Args.h"
#include "runtime/sim/ops/fused/Fused.h"

namespace kunlun::sim {

namespace {

struct Slot {
  int64_t block;
  int64_t row; // within the block
};

// Negative slots mark padding: false, nothing is written.
bool findSlot(const char* op, const View& slots, int64_t token, int64_t blocks, int64_t block_size, Slot& slot) {
  const int64_t at = slots.index(token);
  if (at < 0) {
    return false;
  }
  TORCH_CHECK_INDEX(
      at < blocks * block_size,
      op,
      ": slot ",
      at,
      " of token ",
      token,
      " is out of the range of a cache of ",
      blocks,
      " blocks of ",
      block_size);
  slot = {at / block_size, at % block_size};
  return true;
}

// key, value, key_cache!, value_cache!, slot_mapping. In a cache, `row_dim` counts the rows of a block and `head_dim`
// the heads; the elements of a row come last.
void write(const char* op, const kl_frame* frame, int64_t row_dim, int64_t head_dim) {
  const Args args(frame);
  const View slots = args.in(4);
  const View sources[] = {args.in(0), args.in(1)};
  const View caches[] = {args.in(2), args.in(3)};
  const int64_t heads = sources[0].size(1);
  const int64_t grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, heads * sources[0].size(2)));
  at::parallel_for(0, slots.size(0), grain, [&](int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
      Slot slot{};
      if (!findSlot(op, slots, token, caches[0].size(0), caches[0].size(row_dim), slot)) {
        continue;
      }
      for (int i = 0; i < 2; ++i) {
        const auto& from = sources[i];
        const auto& to = caches[i];
        const int64_t item = itemSize(from.dtype);
        for (int64_t head = 0; head < heads; ++head) {
          std::memcpy(
              to.data + (slot.block * to.stride(0) + slot.row * to.stride(row_dim) + head * to.stride(head_dim)) * item,
              from.data + (token * from.stride(0) + head * from.stride(1)) * item,
              from.size(2) * item);
        }
      }
    }
  });
}

// kv_c, k_pe, kv_cache! [blocks, block_size, size], slot_mapping: the two side by side in a row of the cache.
void concatAndCacheMla(const kl_frame* frame) {
  const Args args(frame);
  const View kv_c = args.in(0);
  const View k_pe = args.in(1);
  const View cache = args.in(2);
  const View slots = args.in(3);
  const int64_t item = itemSize(cache.dtype);
  for (int64_t token = 0; token < slots.size(0); ++token) {
    Slot slot{};
    if (!findSlot("concat_and_cache_mla", slots, token, cache.size(0), cache.size(1), slot)) {
      continue;
    }
    char* to = cache.data + (slot.block * cache.stride(0) + slot.row * cache.stride(1)) * item;
    std::memcpy(to, kv_c.data + token * kv_c.stride(0) * item, kv_c.size(1) * item);
    std::memcpy(to + kv_c.size(1) * item, k_pe.data + token * k_pe.stride(0) * item, k_pe.size(1) * item);
  }
}

constexpr Kernel kKernels[] = {
    {"kunlun::concat_and_cache_mla", &concatAndCacheMla},
    {"kunlun::reshape_and_cache", [](const kl_frame* frame) { write("reshape_and_cache", frame, 2, 1); }},
    {"kunlun::reshape_and_cache_flash", [](const kl_frame* frame) { write("reshape_and_cache_flash", frame, 1, 2); }},
};

} // namespace

c10::ArrayRef<Kernel> cacheKernels() {
  return kKernels;
}

} // namespace kunlun::sim
