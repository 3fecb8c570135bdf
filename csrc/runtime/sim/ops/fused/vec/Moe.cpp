// The experts of a mixture: each token's rows through the weights of the experts chosen for it.
#include <ATen/Parallel.h>

#include "runtime/sim/ops/fused/Args.h"
#include "runtime/sim/ops/fused/Fused.h"
#include "runtime/sim/ops/fused/vec/DotTile.h"
#include "runtime/sim/ops/fused/vec/Lanes.h"

namespace kunlun::sim {
inline namespace CPU_CAPABILITY {
namespace {

constexpr int64_t kBlock = 32; // rows of a weight that one task works on

// The choices (token * k + j) that fell on each expert.
class Buckets {
 public:
  Buckets(const char* op, const View& ids, int64_t experts) : choices_(experts) {
    const int64_t k = ids.size(1);
    for (int64_t token = 0; token < ids.size(0); ++token) {
      for (int64_t j = 0; j < k; ++j) {
        const int64_t expert = ids.index(token, j);
        TORCH_CHECK_INDEX(
            expert >= -1 && expert < experts,
            op,
            ": expert ",
            expert,
            " of token ",
            token,
            " is out of the range of ",
            experts,
            " experts");
        if (expert >= 0) { // -1: another device's
          choices_[expert].push_back(token * k + j);
        }
      }
    }
  }

  // task(expert, its choices, begin, end) for pieces of `width` rows of every expert with work to do, in parallel.
  template <class Task>
  void each(int64_t width, const Task& task) const {
    std::vector<std::pair<int64_t, int64_t>> tasks; // expert, begin
    for (size_t e = 0; e < choices_.size(); ++e) {
      for (int64_t begin = 0; begin < width && !choices_[e].empty(); begin += kBlock) {
        tasks.emplace_back(e, begin);
      }
    }
    at::parallel_for(0, static_cast<int64_t>(tasks.size()), 1, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const auto [expert, begin] = tasks[i];
        task(expert, choices_[expert], begin, std::min(begin + kBlock, width));
      }
    });
  }

 private:
  std::vector<std::vector<int64_t>> choices_;
};

// x, weight, ids -> out: out[t, j] = weight[ids[t, j]] x[t], or x[t, j] where x has a row for every choice.
void moeFc(const kl_frame* frame) {
  const Args args(frame);
  const View x = args.in(0);
  const View weight = args.in(1); // [experts, out, in]
  const View ids = args.in(2);
  const View out = args.out(0); // contiguous
  const int64_t k = ids.size(1);
  const int64_t width = weight.size(2);
  const Buckets buckets("moe_fc", ids, weight.size(0));
  const bool own_row = x.dims == 3;
  withFloatType(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const Rows x_rows(x);
    const FloatRows<T> rows(x, x_rows, width);
    std::fill_n(out.as<T>(), out.size(0) * k * out.size(2), T(0.0f)); // choices of other devices
    buckets.each(weight.size(1), [&](int64_t expert, const auto& choices, int64_t begin, int64_t end) {
      std::vector<const float*> from;
      for (const auto choice : choices) {
        from.push_back(rows[own_row ? choice : choice / k]);
      }
      const T* w = weight.as<T>() + expert * weight.stride(0);
      dotAll(from, w, weight.stride(1), begin, end, width, [&](int64_t r, int64_t s, float value) {
        out.as<T>()[choices[r] * out.size(2) + s] = static_cast<T>(value);
      });
    });
  });
}

// x, w13, w2, weights, ids -> out
void moeFfnBlock(const kl_frame* frame) {
  const Args args(frame);
  const View x = args.in(0);       // [tokens, hidden]
  const View w13 = args.in(1);     // [experts, 2 * inner, hidden], gates first
  const View w2 = args.in(2);      // [experts, hidden, inner]
  const View weights = args.in(3); // [tokens, k], float
  const View ids = args.in(4);
  const View out = args.out(0); // contiguous
  const int64_t k = ids.size(1);
  const int64_t hidden = x.size(1);
  const int64_t inner = w2.size(2);
  const int64_t choices_count = ids.size(0) * k;
  const Buckets buckets("moe_ffn_block", ids, w13.size(0));
  std::vector<float> middle(choices_count * inner);
  std::vector<float> parts(choices_count * hidden); // zero where a choice is another device's
  withFloatType(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const FloatRows<T> rows(x, Rows(x), hidden);
    buckets.each(inner, [&](int64_t expert, const auto& choices, int64_t begin, int64_t end) {
      std::vector<const float*> from;
      for (const auto choice : choices) {
        from.push_back(rows[choice / k]);
      }
      const T* gates = w13.as<T>() + expert * w13.stride(0);
      const T* ups = gates + inner * w13.stride(1);
      dotAll(from, gates, w13.stride(1), begin, end, hidden, [&](int64_t r, int64_t s, float gate) {
        middle[choices[r] * inner + s] = gate / (1.0f + std::exp(-gate));
      });
      dotAll(from, ups, w13.stride(1), begin, end, hidden, [&](int64_t r, int64_t s, float up) {
        middle[choices[r] * inner + s] *= up;
      });
    });
    buckets.each(hidden, [&](int64_t expert, const auto& choices, int64_t begin, int64_t end) {
      std::vector<const float*> from;
      for (const auto choice : choices) {
        from.push_back(&middle[choice * inner]);
      }
      const T* w = w2.as<T>() + expert * w2.stride(0);
      dotAll(from, w, w2.stride(1), begin, end, inner, [&](int64_t r, int64_t s, float value) {
        parts[choices[r] * hidden + s] = value;
      });
    });
    // In the order of the choices, so that the sum does not depend on threads.
    at::parallel_for(0, ids.size(0), 8, [&](int64_t begin, int64_t end) {
      for (int64_t token = begin; token < end; ++token) {
        T* to = out.as<T>() + token * hidden;
        eachPiece(hidden, [&](int64_t i, int64_t count) {
          Pair total = pairOf(0.0f);
          for (int64_t j = 0; j < k; ++j) {
            const float weight = weights.as<float>()[token * weights.stride(0) + j * weights.stride(1)];
            total = fma(load(&parts[(token * k + j) * hidden + i], count), pairOf(weight), total);
          }
          store(to + i, total, count);
        });
      }
    });
  });
}

constexpr Kernel kKernels[] = {
    {"kunlun::moe_fc", &moeFc},
    {"kunlun::moe_ffn_block", &moeFfnBlock},
};

c10::ArrayRef<Kernel> kernels() {
  return kKernels;
}

} // namespace
} // namespace CPU_CAPABILITY
} // namespace kunlun::sim

namespace at::native {
ALSO_REGISTER_AVX512_DISPATCH(kunlun_moe_kernels, &kunlun::sim::kernels)
} // namespace at::native
