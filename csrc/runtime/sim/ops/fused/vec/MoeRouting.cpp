// Choosing the experts of a mixture: scores, the best of them, and their weights.
#include <numeric>

#include <ATen/Parallel.h>

#include "runtime/sim/ops/fused/Args.h"
#include "runtime/sim/ops/fused/Fused.h"
#include "runtime/sim/ops/fused/vec/Lanes.h"

namespace kunlun::sim {
inline namespace CPU_CAPABILITY {
namespace {

constexpr int64_t kGrain = 4096; // scores that are worth a thread

struct Choice {
  float score;
  int32_t index;
};

// The k best of n scores in falling order; of equal ones the first. Not-a-number counts as the best, as in torch.topk.
class Best {
 public:
  explicit Best(int64_t k) : best_(k) {}

  const std::vector<Choice>& of(const float* scores, int64_t n) {
    int64_t held = 0;
    const auto k = static_cast<int64_t>(best_.size());
    for (int64_t i = 0; i < n; ++i) {
      if (held == k && !better(scores[i], best_[k - 1].score)) {
        continue;
      }
      int64_t at = held < k ? held++ : k - 1;
      for (; at > 0 && better(scores[i], best_[at - 1].score); --at) {
        best_[at] = best_[at - 1];
      }
      best_[at] = {scores[i], static_cast<int32_t>(i)};
    }
    return best_;
  }

 private:
  static bool better(float a, float b) {
    return a > b || (std::isnan(a) && !std::isnan(b));
  }
  std::vector<Choice> best_;
};

// One token's logits as float.
template <class T>
void readRow(const View& logits, int64_t token, float* row) {
  const T* from = logits.as<T>() + token * logits.stride(0);
  eachPiece(logits.size(1), [&](int64_t i, int64_t count) { store(row + i, load(from + i, count), count); });
}

// logits, k -> weights, ids; the weights are the chosen experts' shares of the softmax, or sum to one if `norm`.
void softmaxTopk(const kl_frame* frame, bool norm) {
  const Args args(frame);
  const View logits = args.in(0);
  const int64_t k = args.integer(1);
  const int64_t experts = logits.size(1);
  const View weights = args.out(0);
  const View ids = args.out(1);
  withFloatType(logits.dtype, [&](auto zero) {
    using T = decltype(zero);
    at::parallel_for(0, logits.size(0), std::max<int64_t>(1, kGrain / experts), [&](int64_t begin, int64_t end) {
      std::vector<float> row(experts);
      Best best(k);
      for (int64_t token = begin; token < end; ++token) {
        readRow<T>(logits, token, row.data());
        const auto& chosen = best.of(row.data(), experts);
        const Pair top = pairOf(chosen[0].score);
        float total = 0;
        if (norm) {
          for (const auto& choice : chosen) {
            total += std::exp(choice.score - chosen[0].score);
          }
        } else {
          eachPiece(experts, [&](int64_t i, int64_t count) { store(&row[i], exp(load(&row[i], count) - top), count); });
          total = std::accumulate(row.begin(), row.end(), 0.0f);
        }
        for (int64_t j = 0; j < k; ++j) {
          weights.as<float>()[token * k + j] = std::exp(chosen[j].score - chosen[0].score) / total;
          ids.as<int32_t>()[token * k + j] = chosen[j].index;
        }
      }
    });
  });
}

// logits, bias?, k, groups, kept_groups, scale -> weights, ids
void sigmoidGroupTopkNorm(const kl_frame* frame) {
  const Args args(frame);
  const View logits = args.in(0);
  const View bias = args.in(1);
  const int64_t k = args.integer(2);
  const int64_t groups = args.integer(3);
  const int64_t kept_groups = args.integer(4);
  const float scale = args.number(5);
  const int64_t experts = logits.size(1);
  const int64_t size = experts / groups;
  const View weights = args.out(0);
  const View ids = args.out(1);
  withFloatType(logits.dtype, [&](auto zero) {
    using T = decltype(zero);
    at::parallel_for(0, logits.size(0), std::max<int64_t>(1, kGrain / experts), [&](int64_t begin, int64_t end) {
      std::vector<float> scores(experts);
      std::vector<float> biased(experts);
      std::vector<float> group_scores(groups);
      Best best(k);
      Best best_two(std::min<int64_t>(2, size));
      Best best_groups(kept_groups);
      for (int64_t token = begin; token < end; ++token) {
        readRow<T>(logits, token, scores.data());
        eachPiece(
            experts, [&](int64_t i, int64_t count) { store(&scores[i], sigmoid(load(&scores[i], count)), count); });
        for (int64_t e = 0; e < experts; ++e) {
          biased[e] = scores[e] + (bias.defined() ? bias.as<float>()[e * bias.stride(0)] : 0.0f);
        }
        for (int64_t g = 0; g < groups; ++g) {
          group_scores[g] = 0;
          for (const auto& choice : best_two.of(&biased[g * size], size)) {
            group_scores[g] += choice.score;
          }
        }
        std::vector<bool> kept(groups);
        for (const auto& choice : best_groups.of(group_scores.data(), groups)) {
          kept[choice.index] = true;
        }
        for (int64_t g = 0; g < groups; ++g) {
          if (!kept[g]) {
            std::fill_n(&biased[g * size], size, -std::numeric_limits<float>::infinity());
          }
        }
        const auto& chosen = best.of(biased.data(), experts);
        float total = 0;
        for (const auto& choice : chosen) {
          total += scores[choice.index];
        }
        for (int64_t j = 0; j < k; ++j) {
          weights.as<float>()[token * k + j] = scores[chosen[j].index] / total * scale;
          ids.as<int32_t>()[token * k + j] = chosen[j].index;
        }
      }
    });
  });
}

constexpr Kernel kKernels[] = {
    {"kunlun::moe_softmax_topk", [](const kl_frame* frame) { softmaxTopk(frame, false); }},
    {"kunlun::moe_softmax_topk_norm", [](const kl_frame* frame) { softmaxTopk(frame, true); }},
    {"kunlun::moe_sigmoid_group_topk_norm", &sigmoidGroupTopkNorm},
};

c10::ArrayRef<Kernel> kernels() {
  return kKernels;
}

} // namespace
} // namespace CPU_CAPABILITY
} // namespace kunlun::sim

namespace at::native {
ALSO_REGISTER_AVX512_DISPATCH(kunlun_moe_routing_kernels, &kunlun::sim::kernels)
} // namespace at::native
