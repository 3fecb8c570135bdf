// Rotary position embedding, alone and fused with the split and the normalisation of queries and keys.
#include <ATen/Parallel.h>

#include <cstring>

#include "runtime/sim/ops/fused/Args.h"
#include "runtime/sim/ops/fused/Fused.h"
#include "runtime/sim/ops/fused/vec/Lanes.h"
#include "runtime/sim/ops/fused/vec/RmsNorm.h"

namespace kunlun::sim {
inline namespace CPU_CAPABILITY {
namespace {

constexpr int64_t kGrain = 8192; // elements that are worth a thread

// One token's cosines and sines, in float.
class Angles {
 public:
  // `cache` is [positions, dim]: cosines in the first half of a row, sines in the second.
  explicit Angles(const View& cache) : cache_(cache), half_(cache.size(1) / 2) {
    if (cache.dtype != KL_FLOAT32) {
      converted_.resize(cache.size(1));
    }
  }
  int64_t half() const {
    return half_;
  }
  void seek(int64_t position) {
    TORCH_CHECK_INDEX(
        position >= 0 && position < cache_.size(0),
        "rotary embedding: position ",
        position,
        " is out of the range of a cos_sin_cache of ",
        cache_.size(0),
        " positions");
    const int64_t offset = position * cache_.stride(0);
    if (cache_.dtype == KL_FLOAT32) {
      cos_ = cache_.as<float>() + offset;
    } else {
      withFloatType(cache_.dtype, [&](auto zero) {
        const auto* row = cache_.as<decltype(zero)>() + offset;
        eachPiece(2 * half_, [&](int64_t i, int64_t count) { store(&converted_[i], load(row + i, count), count); });
      });
      cos_ = converted_.data();
    }
  }
  const float* cos() const {
    return cos_;
  }
  const float* sin() const {
    return cos_ + half_;
  }

 private:
  View cache_;
  int64_t half_;
  const float* cos_ = nullptr;
  std::vector<float> converted_;
};

// Element i and element i + half are a pair. `out` may be `x`.
template <class X, class Out>
void rotateHalves(const X* x, Out* out, const Angles& angles) {
  const int64_t half = angles.half();
  eachPiece(half, [&](int64_t i, int64_t count) {
    const Pair cos = load(angles.cos() + i, count);
    const Pair sin = load(angles.sin() + i, count);
    const Pair first = load(x + i, count);
    const Pair second = load(x + half + i, count);
    store(out + i, first * cos - second * sin, count);
    store(out + half + i, second * cos + first * sin, count);
  });
}

// Elements 2i and 2i + 1 are a pair.
template <class X, class Out>
void rotateNeighbours(const X* x, Out* out, const Angles& angles) {
  for (int64_t i = 0; i < angles.half(); ++i) {
    const float first = static_cast<float>(x[2 * i]);
    const float second = static_cast<float>(x[2 * i + 1]);
    out[2 * i] = static_cast<Out>(first * angles.cos()[i] - second * angles.sin()[i]);
    out[2 * i + 1] = static_cast<Out>(second * angles.cos()[i] + first * angles.sin()[i]);
  }
}

template <class X, class Out>
void rotate(const X* x, Out* out, const Angles& angles, bool is_neox) {
  if (is_neox) {
    rotateHalves(x, out, angles);
  } else {
    rotateNeighbours(x, out, angles);
  }
}

// The heads of every token of a tensor [tokens..., heads * head_size] or [tokens..., heads, head_size].
struct Heads {
  Heads(const View& tensor, int64_t tokens, int64_t head_size)
      : split(tensor.dims >= 2 && tensor.size(-1) == head_size && Rows(tensor, 1).count != tokens),
        rows(tensor, split ? 2 : 1),
        count(split ? tensor.size(-2) : tensor.size(-1) / head_size),
        step(split ? tensor.stride(-2) : head_size) {}

  bool split; // the heads have a dimension of their own
  Rows rows;
  int64_t count;
  int64_t step;
};

// positions, query!, key!?, head_size, cos_sin_cache, is_neox
void rotaryEmbedding(const kl_frame* frame) {
  const Args args(frame);
  const View positions = args.in(0);
  const View query = args.in(1);
  const View key = args.in(2);
  const int64_t head_size = args.integer(3);
  const View cache = args.in(4);
  const bool is_neox = args.integer(5) != 0;
  const Rows tokens(positions, 0);
  const Heads queries(query, tokens.count, head_size);
  const Heads keys = key.defined() ? Heads(key, tokens.count, head_size) : queries;
  const int64_t width = (queries.count + (key.defined() ? keys.count : 0)) * head_size;
  withFloatType(query.dtype, [&](auto zero) {
    using T = decltype(zero);
    const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, width));
    at::parallel_for(0, tokens.count, grain, [&](int64_t begin, int64_t end) {
      Angles angles(cache);
      const auto all = [&](const View& tensor, const Heads& heads, int64_t token) {
        T* at = tensor.as<T>() + heads.rows.offset(token);
        for (int64_t h = 0; h < heads.count; ++h) {
          rotate(at + h * heads.step, at + h * heads.step, angles, is_neox);
        }
      };
      for (int64_t token = begin; token < end; ++token) {
        angles.seek(positions.indexAt(tokens.offset(token)));
        all(query, queries, token);
        if (key.defined()) {
          all(key, keys, token);
        }
      }
    });
  });
}

// qkv, q_weight?, k_weight?, cos_sin_cache, positions, heads, kv_heads, head_size, eps, is_neox -> q, k, v
void splitNormRope(const kl_frame* frame) {
  const Args args(frame);
  const View qkv = args.in(0);
  const View cache = args.in(3);
  const View positions = args.in(4);
  const int64_t heads = args.integer(5);
  const int64_t kv_heads = args.integer(6);
  const int64_t head_size = args.integer(7);
  const float eps = args.number(8);
  const bool is_neox = args.integer(9) != 0;
  const View q = args.out(0);
  const View k = args.out(1);
  const View v = args.out(2);
  const bool norm = args.has(1);
  const FloatRow q_weight(norm ? args.in(1) : View{});
  const FloatRow k_weight(norm ? args.in(2) : View{});
  withFloatType(qkv.dtype, [&](auto zero) {
    using T = decltype(zero);
    const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, qkv.size(1)));
    at::parallel_for(0, qkv.size(0), grain, [&](int64_t begin, int64_t end) {
      Angles angles(cache);
      std::vector<float> row(roundUp(head_size)); // a normalised head, not yet rounded
      const auto all = [&](const T* from, T* to, int64_t count, const float* weight) {
        for (int64_t h = 0; h < count; ++h, from += head_size, to += head_size) {
          const int64_t rotated = 2 * angles.half();
          if (norm) {
            normalizeRow(from, weight, row.data(), head_size, rmsScale(from, head_size, eps));
            rotate(row.data(), to, angles, is_neox);
            eachPiece(head_size - rotated, [&](int64_t i, int64_t n) {
              store(to + rotated + i, load(&row[rotated + i], n), n);
            });
          } else {
            rotate(from, to, angles, is_neox);
            std::memcpy(to + rotated, from + rotated, (head_size - rotated) * sizeof(T));
          }
        }
      };
      for (int64_t token = begin; token < end; ++token) {
        angles.seek(positions.index(token));
        const T* from = qkv.as<T>() + token * qkv.stride(0);
        all(from, q.as<T>() + token * heads * head_size, heads, q_weight.data());
        from += heads * head_size;
        all(from, k.as<T>() + token * kv_heads * head_size, kv_heads, k_weight.data());
        from += kv_heads * head_size;
        std::memcpy(v.as<T>() + token * kv_heads * head_size, from, kv_heads * head_size * sizeof(T));
      }
    });
  });
}

constexpr Kernel kKernels[] = {
    {"kunlun::rotary_embedding", &rotaryEmbedding},
    {"kunlun::split_norm_rope", &splitNormRope},
};

c10::ArrayRef<Kernel> kernels() {
  return kKernels;
}

} // namespace
} // namespace CPU_CAPABILITY
} // namespace kunlun::sim

namespace at::native {
ALSO_REGISTER_AVX512_DISPATCH(kunlun_rotary_kernels, &kunlun::sim::kernels)
} // namespace at::native
