// One row of root mean square normalisation, for the operators that are made with it.
#pragma once

#include "runtime/sim/ops/fused/Args.h"
#include "runtime/sim/ops/fused/vec/Lanes.h"

namespace kunlun::sim {
inline namespace CPU_CAPABILITY {
namespace {

// A vector of any float type, read as float. Null for an absent one.
class FloatRow {
 public:
  explicit FloatRow(const View& vector) {
    if (vector.dtype == KL_FLOAT32 || !vector.defined()) {
      data_ = vector.as<float>();
      return;
    }
    const int64_t n = vector.size(0);
    converted_.resize(n);
    withFloatType(vector.dtype, [&](auto zero) {
      const auto* from = vector.as<decltype(zero)>();
      eachPiece(n, [&](int64_t i, int64_t count) { store(converted_.data() + i, load(from + i, count), count); });
    });
    data_ = converted_.data();
  }
  const float* data() const {
    return data_;
  }

 private:
  const float* data_;
  std::vector<float> converted_;
};

// 1 / sqrt(mean(x^2) + eps)
template <class T>
float rmsScale(const T* x, int64_t n, float eps) {
  return 1.0f / std::sqrt(dot(x, x, n) / static_cast<float>(n) + eps);
}

// out = x * scale * weight; out may be x.
template <class T, class Out>
void normalizeRow(const T* x, const float* weight, Out* out, int64_t n, float scale) {
  const Pair factor = pairOf(scale);
  eachPiece(n, [&](int64_t i, int64_t count) {
    store(out + i, load(x + i, count) * factor * load(weight + i, count), count);
  });
}

} // namespace
} // namespace CPU_CAPABILITY
} // namespace kunlun::sim
