// Attention over sequences of different lengths, packed one after the other: causal or not, grouped heads, windows,
// keys and values side by side or in the blocks of a cache.
#include <ATen/Parallel.h>

#include "runtime/sim/ops/fused/Args.h"
#include "runtime/sim/ops/fused/Fused.h"
#include "runtime/sim/ops/fused/vec/Gemm.h"
#include "runtime/sim/ops/fused/vec/KeyValue.h"
#include "runtime/sim/ops/fused/vec/Lanes.h"
#include "runtime/sim/ops/fused/vec/Softmax.h"

namespace kunlun::sim {
inline namespace CPU_CAPABILITY {
namespace {

constexpr int64_t kKeys = 64;      // keys of a block
constexpr int64_t kQueryRows = 96; // rows of a block: queries times the heads that share a key head

struct Prefill {
  View query; // [tokens, heads, size]
  View key;   // [tokens, kv_heads, size], or a cache [blocks, kv_heads, block_size, size]
  View value;
  View cu_seqlens_q; // [sequences + 1]
  View cu_seqlens_k;
  float scale;
  int64_t left;     // how far before its own position a query sees; -1: to the beginning
  int64_t right;    // how far after; -1: to the end, 0: causal
  View sinks;       // [heads], may be absent
  View block_table; // [sequences, blocks], may be absent
  ScoreChange change;
  View out; // [tokens, heads, value size]
  View lse; // [heads, tokens], may be absent
};

// A block of queries of one sequence and one key head.
struct Task {
  int64_t sequence;
  int64_t kv_head;
  int64_t first; // query within its sequence
  int64_t count;
};

int64_t headsOfGroup(const Prefill& p) {
  return p.query.size(1) / p.key.size(1);
}

void checkLengths(const char* name, const View& cu_seqlens, int64_t tokens, bool whole) {
  const int64_t sequences = cu_seqlens.size(0) - 1;
  TORCH_CHECK_INDEX(cu_seqlens.index(0) == 0, "prefill_attention: ", name, " must begin with 0");
  for (int64_t s = 0; s < sequences; ++s) {
    TORCH_CHECK_INDEX(
        cu_seqlens.index(s) <= cu_seqlens.index(s + 1), "prefill_attention: ", name, " decreases after entry ", s);
  }
  TORCH_CHECK_INDEX(
      !whole || cu_seqlens.index(sequences) == tokens,
      "prefill_attention: ",
      name,
      " ends at ",
      cu_seqlens.index(sequences),
      ", but there are ",
      tokens,
      " tokens");
}

std::vector<Task> tasksOf(const Prefill& p) {
  const int64_t block = std::max<int64_t>(1, kQueryRows / headsOfGroup(p));
  std::vector<Task> tasks;
  for (int64_t s = 0; s + 1 < p.cu_seqlens_q.size(0); ++s) {
    const int64_t length = p.cu_seqlens_q.index(s + 1) - p.cu_seqlens_q.index(s);
    if (p.block_table.defined()) {
      checkBlocks("prefill_attention", p.key, p.block_table, s, p.cu_seqlens_k.index(s + 1) - p.cu_seqlens_k.index(s));
    }
    for (int64_t h = 0; h < p.key.size(1); ++h) {
      // The last queries see the most keys: they come first, so that no thread is left with them at the end.
      for (int64_t first = (length - 1) / block * block; first >= 0 && length > 0; first -= block) {
        tasks.push_back({s, h, first, std::min(block, length - first)});
      }
    }
  }
  return tasks;
}

template <class T>
class Block {
 public:
  explicit Block(const Prefill& p)
      : p_(p),
        size_(p.query.size(2)),
        value_size_(p.value.size(-1)),
        value_stride_(roundUp(value_size_)),
        heads_(headsOfGroup(p)) {
    const int64_t rows = heads_ * std::max<int64_t>(1, kQueryRows / heads_);
    queries_.resize(rows * roundUp(size_));
    keys_.resize(size_ * kKeys);
    values_.resize(kKeys * value_stride_);
    scores_.resize(rows * kKeys);
    sums_.resize(rows * value_stride_);
    softmax_.resize(rows);
  }

  void run(const Task& task) {
    const int64_t first_query = p_.cu_seqlens_q.index(task.sequence);
    const int64_t first_key = p_.cu_seqlens_k.index(task.sequence);
    const int64_t queries = p_.cu_seqlens_q.index(task.sequence + 1) - first_query;
    const int64_t keys = p_.cu_seqlens_k.index(task.sequence + 1) - first_key;
    rows_ = task.count * heads_;
    kv_head_ = task.kv_head;
    // The last query stands beside the last key.
    position_ = keys - queries + task.first;
    start(task, first_query + task.first);
    const auto source = [&](const View& tensor) {
      return p_.block_table.defined() ? TokenRows<T>(tensor, p_.block_table, task.sequence, task.kv_head)
                                      : TokenRows<T>(tensor, first_key, task.kv_head);
    };
    const TokenRows<T> key_rows = source(p_.key);
    const TokenRows<T> value_rows = source(p_.value);
    const int64_t begin = p_.left < 0 ? 0 : std::max<int64_t>(0, position_ - p_.left);
    const int64_t end = p_.right < 0 ? keys : std::min(keys, position_ + task.count + p_.right);
    for (int64_t key = begin; key < end; key += kKeys) {
      step(key_rows, value_rows, key, std::min(kKeys, end - key));
    }
    finish(task, first_query + task.first);
  }

 private:
  // Row r is query r / heads of the block, head r % heads of the group.
  T* rowOf(const View& tensor, const Task& task, int64_t token, int64_t r) const {
    return tensor.as<T>() + (token + r / heads_) * tensor.stride(0) +
        (task.kv_head * heads_ + r % heads_) * tensor.stride(1);
  }

  void start(const Task& task, int64_t token) {
    for (int64_t r = 0; r < rows_; ++r) {
      const T* from = rowOf(p_.query, task, token, r);
      float* to = &queries_[r * roundUp(size_)];
      eachPiece(size_, [&](int64_t i, int64_t n) { store(to + i, load(from + i, n) * pairOf(p_.scale)); });
    }
    std::fill_n(sums_.begin(), rows_ * value_stride_, 0.0f);
    std::fill_n(softmax_.begin(), rows_, RunningSoftmax());
  }

  void step(const TokenRows<T>& key_rows, const TokenRows<T>& value_rows, int64_t key, int64_t n) {
    const auto from = [key](const TokenRows<T>& rows) { return [&rows, key](int64_t i) { return rows(key + i); }; };
    packColumns<T>(from(key_rows), n, size_, keys_.data(), kKeys);
    packRows<T>(from(value_rows), n, value_size_, values_.data(), value_stride_);
    gemm(queries_.data(), roundUp(size_), keys_.data(), kKeys, scores_.data(), kKeys, rows_, n, size_, false);
    for (int64_t r = 0; r < rows_; ++r) {
      float* scores = &scores_[r * kKeys];
      const int64_t position = position_ + r / heads_;
      p_.change.apply(scores, n, kv_head_ * heads_ + r % heads_, position - key);
      mask(scores, position, key, n);
      const float factor = softmax_[r].step(scores, n);
      if (factor != 1.0f) {
        float* sums = &sums_[r * value_stride_];
        eachPiece(value_stride_, [&](int64_t i, int64_t) { store(sums + i, load(sums + i) * pairOf(factor)); });
      }
    }
    gemm(
        scores_.data(), kKeys, values_.data(), value_stride_, sums_.data(), value_stride_, rows_, value_size_, n, true);
  }

  void mask(float* scores, int64_t position, int64_t key, int64_t n) const {
    if (p_.left >= 0) {
      const int64_t hidden = std::clamp<int64_t>(position - p_.left - key, 0, n);
      std::fill_n(scores, hidden, kMinusInfinity);
    }
    if (p_.right >= 0) {
      const int64_t seen = std::clamp<int64_t>(position + p_.right + 1 - key, 0, n);
      std::fill(scores + seen, scores + n, kMinusInfinity);
    }
  }

  void finish(const Task& task, int64_t token) {
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t head = task.kv_head * heads_ + r % heads_;
      auto& softmax = softmax_[r];
      const float factor =
          p_.sinks.defined() ? softmax.sink(p_.sinks.template as<float>()[head * p_.sinks.stride(0)]) : 1.0f;
      const Pair scale = pairOf(factor * softmax.inverse());
      T* out = rowOf(p_.out, task, token, r);
      const float* sums = &sums_[r * value_stride_];
      eachPiece(value_size_, [&](int64_t i, int64_t n) { store(out + i, load(sums + i) * scale, n); });
      if (p_.lse.defined()) {
        p_.lse.template as<float>()[head * p_.lse.stride(0) + (token + r / heads_) * p_.lse.stride(1)] =
            softmax.logSumExp();
      }
    }
  }

  const Prefill& p_;
  int64_t size_;
  int64_t value_size_;
  int64_t value_stride_;
  int64_t heads_; // of the group
  int64_t rows_ = 0;
  int64_t kv_head_ = 0;
  int64_t position_ = 0;       // of the block's first query, in keys
  std::vector<float> queries_; // scaled
  std::vector<float> keys_;    // transposed
  std::vector<float> values_;
  std::vector<float> scores_;
  std::vector<float> sums_; // weighted values, not yet divided by the sum of the weights
  std::vector<RunningSoftmax> softmax_;
};

// query, key, value, cu_seqlens_q, cu_seqlens_k, scale, is_causal, window_left, window_right, sinks?, block_table?,
// alibi_slopes?, softcap -> out, lse?
void prefillAttention(const kl_frame* frame) {
  const Args args(frame);
  const bool is_causal = args.integer(6) != 0;
  const Prefill p{
      args.in(0),
      args.in(1),
      args.in(2),
      args.in(3),
      args.in(4),
      args.number(5),
      args.integer(7),
      is_causal ? 0 : args.integer(8),
      args.in(9),
      args.in(10),
      {args.in(11), args.number(12)},
      args.out(0),
      args.out(1)};
  checkLengths("cu_seqlens_q", p.cu_seqlens_q, p.query.size(0), true);
  checkLengths("cu_seqlens_k", p.cu_seqlens_k, p.key.size(0), !p.block_table.defined());
  const auto tasks = tasksOf(p);
  withFloatType(p.query.dtype, [&](auto zero) {
    using T = decltype(zero);
    at::parallel_for(0, static_cast<int64_t>(tasks.size()), 1, [&](int64_t begin, int64_t end) {
      Block<T> block(p);
      for (int64_t i = begin; i < end; ++i) {
        block.run(tasks[i]);
      }
    });
  });
}

constexpr Kernel kKernels[] = {{"kunlun::prefill_attention", &prefillAttention}};

c10::ArrayRef<Kernel> kernels() {
  return kKernels;
}

} // namespace
} // namespace CPU_CAPABILITY
} // namespace kunlun::sim

namespace at::native {
ALSO_REGISTER_AVX512_DISPATCH(kunlun_prefill_attention_kernels, &kunlun::sim::kernels)
} // namespace at::native
