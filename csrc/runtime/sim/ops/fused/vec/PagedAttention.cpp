// Attention of one query token for each sequence over a cache in blocks, and the merging of two partial attentions.
#include <ATen/Parallel.h>

#include "runtime/sim/ops/fused/Args.h"
#include "runtime/sim/ops/fused/Fused.h"
#include "runtime/sim/ops/fused/vec/KeyValue.h"
#include "runtime/sim/ops/fused/vec/Lanes.h"
#include "runtime/sim/ops/fused/vec/Softmax.h"

namespace kunlun::sim {
inline namespace CPU_CAPABILITY {
namespace {

constexpr int64_t kTile = 64; // tokens that are scored together
constexpr int64_t kHeads = 8; // query heads of one task

struct Decode {
  const char* op;
  View query;     // [sequences, heads, size]
  View key_cache; // [blocks, kv_heads, block_size, size]
  View value_cache;
  View block_table;  // [sequences, blocks]
  View context_lens; // [sequences]
  float scale;
  int64_t window_left; // -1: no window
  View sinks;          // [heads], may be absent
  ScoreChange change;
  View out; // [sequences, heads, value size]
  View lse; // [heads, sequences], may be absent
};

// Four rows at once, because one dot product alone waits for its own additions.
template <class T>
void scoreFour(const float* q, const T* const* rows, int64_t size, float* scores) {
  Pair total[4] = {pairOf(0.0f), pairOf(0.0f), pairOf(0.0f), pairOf(0.0f)};
  eachPiece(size, [&](int64_t i, int64_t count) {
    const Pair query = load(q + i, count);
    for (int r = 0; r < 4; ++r) {
      total[r] = fma(query, load(rows[r] + i, count), total[r]);
    }
  });
  for (int r = 0; r < 4; ++r) {
    scores[r] = sum(total[r]);
  }
}

// out = out * factor + weights . rows
template <class T>
void addWeighted(const float* weights, const T* const* rows, int64_t n, float factor, float* out, int64_t size) {
  eachPiece(size, [&](int64_t i, int64_t count) {
    Pair even = load(out + i) * pairOf(factor);
    Pair odd = pairOf(0.0f);
    int64_t j = 0;
    for (; j + 2 <= n; j += 2) {
      even = fma(pairOf(weights[j]), load(rows[j] + i, count), even);
      odd = fma(pairOf(weights[j + 1]), load(rows[j + 1] + i, count), odd);
    }
    if (j < n) {
      even = fma(pairOf(weights[j]), load(rows[j] + i, count), even);
    }
    store(out + i, even + odd);
  });
}

// Some of the query heads that share one key head, for one sequence.
template <class T>
class Group {
 public:
  explicit Group(const Decode& d)
      : d_(d),
        size_(d.query.size(2)),
        value_size_(d.value_cache.size(3)),
        queries_(kHeads * roundUp(size_)),
        sums_(kHeads * roundUp(value_size_)),
        softmax_(kHeads) {}

  void run(int64_t sequence, int64_t kv_head, int64_t first_head, int64_t heads) {
    const int64_t length = d_.context_lens.index(sequence);
    checkBlocks(d_.op, d_.key_cache, d_.block_table, sequence, length);
    first_head_ = first_head;
    heads_ = heads;
    start(sequence);
    const TokenRows<T> keys(d_.key_cache, d_.block_table, sequence, kv_head);
    const TokenRows<T> values(d_.value_cache, d_.block_table, sequence, kv_head);
    const int64_t first = d_.window_left < 0 ? 0 : std::max<int64_t>(0, length - 1 - d_.window_left);
    for (int64_t token = first; token < length; token += kTile) {
      tile(keys, values, token, std::min(kTile, length - token), length - 1 - token);
    }
    finish(sequence);
  }

 private:
  void start(int64_t sequence) {
    for (int64_t h = 0; h < heads_; ++h) {
      const T* from = d_.query.as<T>() + sequence * d_.query.stride(0) + (first_head_ + h) * d_.query.stride(1);
      float* to = &queries_[h * roundUp(size_)];
      eachPiece(size_, [&](int64_t i, int64_t n) { store(to + i, load(from + i, n) * pairOf(d_.scale)); });
    }
    std::fill(sums_.begin(), sums_.end(), 0.0f);
    std::fill(softmax_.begin(), softmax_.end(), RunningSoftmax());
  }

  // The first of the n tokens stands `distance` before the query.
  void tile(const TokenRows<T>& keys, const TokenRows<T>& values, int64_t token, int64_t n, int64_t distance) {
    const T* key_rows[kTile + 3];
    const T* value_rows[kTile];
    for (int64_t j = 0; j < n; ++j) {
      key_rows[j] = keys(token + j);
      value_rows[j] = values(token + j);
    }
    for (int64_t j = n; j % 4 != 0; ++j) {
      key_rows[j] = key_rows[n - 1];
    }
    alignas(64) float scores[kTile + kLanes];
    for (int64_t h = 0; h < heads_; ++h) {
      for (int64_t j = 0; j < n; j += 4) {
        scoreFour(&queries_[h * roundUp(size_)], key_rows + j, size_, scores + j);
      }
      d_.change.apply(scores, n, first_head_ + h, distance);
      const float factor = softmax_[h].step(scores, n);
      addWeighted(scores, value_rows, n, factor, &sums_[h * roundUp(value_size_)], value_size_);
    }
  }

  void finish(int64_t sequence) {
    for (int64_t h = 0; h < heads_; ++h) {
      const int64_t head = first_head_ + h;
      auto& softmax = softmax_[h];
      float factor = 1.0f;
      if (d_.sinks.defined()) {
        factor = softmax.sink(d_.sinks.template as<float>()[head * d_.sinks.stride(0)]);
      }
      const Pair scale = pairOf(factor * softmax.inverse());
      T* out = d_.out.as<T>() + sequence * d_.out.stride(0) + head * d_.out.stride(1);
      const float* from = &sums_[h * roundUp(value_size_)];
      eachPiece(value_size_, [&](int64_t i, int64_t n) { store(out + i, load(from + i) * scale, n); });
      if (d_.lse.defined()) {
        d_.lse.template as<float>()[head * d_.lse.stride(0) + sequence * d_.lse.stride(1)] = softmax.logSumExp();
      }
    }
  }

  const Decode& d_;
  int64_t size_;
  int64_t value_size_;
  int64_t first_head_ = 0;
  int64_t heads_ = 0;
  std::vector<float> queries_; // scaled
  std::vector<float> sums_;    // weighted values, not yet divided by the sum of the weights
  std::vector<RunningSoftmax> softmax_;
};

void decode(const Decode& d) {
  const int64_t kv_heads = d.key_cache.size(1);
  const int64_t group = d.query.size(1) / kv_heads;
  const int64_t parts = (group + kHeads - 1) / kHeads;
  withFloatType(d.query.dtype, [&](auto zero) {
    using T = decltype(zero);
    at::parallel_for(0, d.query.size(0) * kv_heads * parts, 1, [&](int64_t begin, int64_t end) {
      Group<T> heads(d);
      for (int64_t i = begin; i < end; ++i) {
        const int64_t part = i % parts * kHeads;
        const int64_t kv_head = i / parts % kv_heads;
        heads.run(i / parts / kv_heads, kv_head, kv_head * group + part, std::min(kHeads, group - part));
      }
    });
  });
}

// query, key_cache, value_cache, block_table, context_lens, scale, window_left, sinks?, alibi_slopes?, softcap
// -> out, lse?
void pagedAttention(const kl_frame* frame) {
  const Args a(frame);
  decode(
      {"paged_attention",
       a.in(0),
       a.in(1),
       a.in(2),
       a.in(3),
       a.in(4),
       a.number(5),
       a.integer(6),
       a.in(7),
       {a.in(8), a.number(9)},
       a.out(0),
       a.out(1)});
}

// query, kv_cache [blocks, block_size, size], block_table, context_lens, scale -> out, lse
// All heads read one row for each token: whole as the key, its beginning as the value.
void mlaDecode(const kl_frame* frame) {
  const Args a(frame);
  const View cache = a.in(1);
  const View out = a.out(0);
  const int64_t key_sizes[] = {cache.size(0), 1, cache.size(1), cache.size(2)};
  const int64_t value_sizes[] = {cache.size(0), 1, cache.size(1), out.size(2)};
  const int64_t strides[] = {cache.stride(0), 0, cache.stride(1), 1};
  decode(
      {"fwd_kvcache_mla",
       a.in(0),
       {cache.data, cache.dtype, 4, key_sizes, strides},
       {cache.data, cache.dtype, 4, value_sizes, strides},
       a.in(2),
       a.in(3),
       a.number(4),
       -1,
       View{},
       ScoreChange{},
       out,
       a.out(1)});
}

// prefix_out, prefix_lse, suffix_out, suffix_lse -> out, lse; outs are [tokens, heads, size], lses [heads, tokens].
void attentionMergeStage(const kl_frame* frame) {
  const Args args(frame);
  const View prefix = args.in(0);
  const View prefix_lse = args.in(1);
  const View suffix = args.in(2);
  const View suffix_lse = args.in(3);
  const View out = args.out(0);
  const View lse = args.out(1);
  const int64_t heads = out.size(1);
  const int64_t size = out.size(2);
  const auto at = [](const View& v, int64_t token, int64_t head) -> float& {
    return v.as<float>()[head * v.stride(0) + token * v.stride(1)];
  };
  withFloatType(out.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto row = [](const View& v, int64_t token, int64_t head) {
      return v.as<T>() + token * v.stride(0) + head * v.stride(1);
    };
    at::parallel_for(0, out.size(0) * heads, std::max<int64_t>(1, 16384 / size), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t token = i / heads;
        const int64_t head = i % heads;
        const float a = at(prefix_lse, token, head);
        const float b = at(suffix_lse, token, head);
        const float top = std::max(a, b);
        const bool nothing = top == kMinusInfinity; // neither part saw a key
        const float wa = nothing ? 0.0f : std::exp(a - top);
        const float wb = nothing ? 0.0f : std::exp(b - top);
        const float scale = nothing ? 0.0f : 1.0f / (wa + wb);
        at(lse, token, head) = nothing ? kMinusInfinity : top + std::log(wa + wb);
        const T* x = row(prefix, token, head);
        const T* y = row(suffix, token, head);
        T* to = row(out, token, head);
        // A part without keys has weight 0 and may hold anything.
        const Pair px = pairOf(wa * scale);
        const Pair py = pairOf(wb * scale);
        eachPiece(size, [&](int64_t e, int64_t n) {
          Pair total = pairOf(0.0f);
          if (wa != 0.0f) {
            total = load(x + e, n) * px;
          }
          if (wb != 0.0f) {
            total = fma(load(y + e, n), py, total);
          }
          store(to + e, total, n);
        });
      }
    });
  });
}

constexpr Kernel kKernels[] = {
    {"kunlun::paged_attention", &pagedAttention},
    {"kunlun::fwd_kvcache_mla", &mlaDecode},
    {"kunlun::attention_merge_stage", &attentionMergeStage},
};

c10::ArrayRef<Kernel> kernels() {
  return kKernels;
}

} // namespace
} // namespace CPU_CAPABILITY
} // namespace kunlun::sim

namespace at::native {
ALSO_REGISTER_AVX512_DISPATCH(kunlun_paged_attention_kernels, &kunlun::sim::kernels)
} // namespace at::native
