// The softmax of attention. It runs along: scores come in blocks, the sum and the weighted values are rescaled as the
// largest score grows.
#pragma once

#include "runtime/sim/ops/fused/Args.h"
#include "runtime/sim/ops/fused/vec/Lanes.h"

namespace kunlun::sim {
inline namespace CPU_CAPABILITY {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// What some models do to scores before the softmax.
struct ScoreChange {
  View alibi_slopes; // [heads], may be absent
  float softcap = 0; // 0 for none

  // The scores of `n` keys, the first of which stands `distance` before the query; more than n, up to the next multiple
  // of kLanes, may be overwritten.
  void apply(float* scores, int64_t n, int64_t head, int64_t distance) const {
    if (softcap != 0) {
      for (int64_t i = 0; i < n; i += kLanes) {
        store(scores + i, tanh(load(scores + i) * pairOf(1 / softcap)) * pairOf(softcap));
      }
    }
    if (alibi_slopes.defined()) {
      const float slope = alibi_slopes.as<float>()[head * alibi_slopes.stride(0)];
      for (int64_t i = 0; i < n; ++i) {
        scores[i] -= slope * static_cast<float>(std::abs(distance - i));
      }
    }
  }
};

struct RunningSoftmax {
  float largest = kMinusInfinity;
  float sum = 0;

  // Turns scores into weights relative to the largest score so far; entries from `n` to the next multiple of kLanes
  // become zero. Returns what earlier weighted values must be multiplied with.
  float step(float* scores, int64_t n) {
    std::fill(scores + n, scores + roundUp(n), kMinusInfinity);
    Pair top = pairOf(kMinusInfinity);
    for (int64_t i = 0; i < n; i += kLanes) {
      top = max(top, load(scores + i));
    }
    const float block = sim::largest(top);
    const float before = largest;
    largest = block > largest || std::isnan(block) ? block : largest;
    if (largest == kMinusInfinity) { // everything is masked so far
      std::fill(scores, scores + roundUp(n), 0.0f);
      return 1.0f;
    }
    Pair total = pairOf(0.0f);
    for (int64_t i = 0; i < n; i += kLanes) {
      const Pair weights = exp(load(scores + i) - pairOf(largest));
      store(scores + i, weights);
      total = total + weights;
    }
    const float factor = std::exp(before - largest);
    sum = sum * factor + sim::sum(total);
    return factor;
  }

  // A score without a value: it takes its share of the weights. Returns the same factor as step().
  float sink(float score) {
    const float before = largest;
    largest = std::max(largest, score);
    const float factor = before == kMinusInfinity ? 1.0f : std::exp(before - largest);
    sum = sum * factor + std::exp(score - largest);
    return factor;
  }

  float inverse() const {
    return sum == 0 ? 0.0f : 1.0f / sum;
  }
  float logSumExp() const {
    return sum == 0 ? kMinusInfinity : largest + std::log(sum);
  }
};

} // namespace
} // namespace CPU_CAPABILITY
} // namespace kunlun::sim
