// Writing keys and values into caches of blocks.
#include "aten/Launch.h"
#include "aten/fused/Checks.h"
#include "aten/fused/Define.h"

namespace kunlun::aten::fused {

namespace {

OpHandle k_reshape_and_cache{"kunlun::reshape_and_cache"};
OpHandle k_reshape_and_cache_flash{"kunlun::reshape_and_cache_flash"};
OpHandle k_concat_and_cache_mla{"kunlun::concat_and_cache_mla"};

void checkSlots(const char* op, const at::Tensor& slot_mapping, const at::Tensor& tokens, const char* tokens_name) {
  checkIndex(op, "slot_mapping", slot_mapping);
  checkDims(op, "slot_mapping", slot_mapping, 1);
  // Engines pad keys and values to the size of a graph, the slots name the tokens that count.
  TORCH_CHECK(
      slot_mapping.sym_size(0) <= tokens.sym_size(0),
      op,
      ": slot_mapping names ",
      slot_mapping.sym_size(0),
      " tokens, but ",
      tokens_name,
      " has ",
      tokens.sym_size(0));
}

// `head_dim` counts the heads in a cache.
void check(
    const char* op,
    const at::Tensor& key,
    const at::Tensor& value,
    const at::Tensor& key_cache,
    const at::Tensor& value_cache,
    const at::Tensor& slot_mapping,
    int64_t head_dim) {
  checkDims(op, "key", key, 3);
  checkDims(op, "value", value, 3);
  checkSize(op, "value", value, 0, key.sym_size(0));
  checkSize(op, "value", value, 1, key.sym_size(1));
  checkDtype(op, "value", value, key.scalar_type());
  checkSlots(op, slot_mapping, key, "key");
  const auto checkCache = [&](const char* name, const at::Tensor& cache, const at::Tensor& from) {
    checkDims(op, name, cache, 4);
    checkDtype(op, name, cache, key.scalar_type());
    checkSize(op, name, cache, head_dim, from.sym_size(1));
    checkSize(op, name, cache, 3, from.sym_size(2));
    checkWritable(op, name, cache);
  };
  checkCache("key_cache", key_cache, key);
  checkCache("value_cache", value_cache, value);
  checkSize(op, "value_cache", value_cache, 0, key_cache.sym_size(0));
  checkSize(op, "value_cache", value_cache, 3 - head_dim, key_cache.sym_size(3 - head_dim));
}

void run(
    OpHandle& op,
    const at::Tensor& key,
    const at::Tensor& value,
    const at::Tensor& key_cache,
    const at::Tensor& value_cache,
    const at::Tensor& slot_mapping) {
  if (slot_mapping.numel() != 0 && key.numel() + value.numel() != 0) {
    const std::array<const at::Tensor*, 2> outs{&key_cache, &value_cache};
    launch(op, key_cache.device(), outs, dense(key), dense(value), key_cache, value_cache, slot_mapping);
  }
}

void reshapeAndCacheMeta(
    const at::Tensor& key,
    const at::Tensor& value,
    at::Tensor& key_cache,
    at::Tensor& value_cache,
    const at::Tensor& slot_mapping) {
  check("reshape_and_cache", key, value, key_cache, value_cache, slot_mapping, 1);
}

void reshapeAndCache(
    const at::Tensor& key,
    const at::Tensor& value,
    at::Tensor& key_cache,
    at::Tensor& value_cache,
    const at::Tensor& slot_mapping) {
  reshapeAndCacheMeta(key, value, key_cache, value_cache, slot_mapping);
  run(k_reshape_and_cache, key, value, key_cache, value_cache, slot_mapping);
}

void reshapeAndCacheFlashMeta(
    const at::Tensor& key,
    const at::Tensor& value,
    at::Tensor& key_cache,
    at::Tensor& value_cache,
    const at::Tensor& slot_mapping) {
  check("reshape_and_cache_flash", key, value, key_cache, value_cache, slot_mapping, 2);
}

void reshapeAndCacheFlash(
    const at::Tensor& key,
    const at::Tensor& value,
    at::Tensor& key_cache,
    at::Tensor& value_cache,
    const at::Tensor& slot_mapping) {
  reshapeAndCacheFlashMeta(key, value, key_cache, value_cache, slot_mapping);
  run(k_reshape_and_cache_flash, key, value, key_cache, value_cache, slot_mapping);
}

void concatAndCacheMlaMeta(
    const at::Tensor& kv_c,
    const at::Tensor& k_pe,
    at::Tensor& kv_cache,
    const at::Tensor& slot_mapping) {
  const char* op = "concat_and_cache_mla";
  checkDims(op, "kv_c", kv_c, 2);
  checkDims(op, "k_pe", k_pe, 2);
  checkSize(op, "k_pe", k_pe, 0, kv_c.sym_size(0));
  checkDtype(op, "k_pe", k_pe, kv_c.scalar_type());
  checkDims(op, "kv_cache", kv_cache, 3);
  checkDtype(op, "kv_cache", kv_cache, kv_c.scalar_type());
  checkSize(op, "kv_cache", kv_cache, 2, kv_c.sym_size(1) + k_pe.sym_size(1));
  checkWritable(op, "kv_cache", kv_cache);
  checkSlots(op, slot_mapping, kv_c, "kv_c");
}

void concatAndCacheMla(
    const at::Tensor& kv_c,
    const at::Tensor& k_pe,
    at::Tensor& kv_cache,
    const at::Tensor& slot_mapping) {
  concatAndCacheMlaMeta(kv_c, k_pe, kv_cache, slot_mapping);
  if (slot_mapping.numel() != 0 && kv_cache.size(2) != 0) {
    const std::array<const at::Tensor*, 1> outs{&kv_cache};
    launch(k_concat_and_cache_mla, kv_cache.device(), outs, dense(kv_c), dense(k_pe), kv_cache, slot_mapping);
  }
}

} // namespace

TORCH_LIBRARY_FRAGMENT(kunlun, m) {
  define<"reshape_and_cache", &reshapeAndCache, &reshapeAndCacheMeta>(
      m,
      "reshape_and_cache(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor slot_mapping) "
      "-> ()");
  define<"reshape_and_cache_flash", &reshapeAndCacheFlash, &reshapeAndCacheFlashMeta>(
      m,
      "reshape_and_cache_flash(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor "
      "slot_mapping) -> ()");
  define<"concat_and_cache_mla", &concatAndCacheMla, &concatAndCacheMlaMeta>(
      m, "concat_and_cache_mla(Tensor kv_c, Tensor k_pe, Tensor(a!) kv_cache, Tensor slot_mapping) -> ()");
}

} // namespace kunlun::aten::fused
