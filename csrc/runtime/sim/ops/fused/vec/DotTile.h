// Products with weights whose rows lie along the summed dimension: y = x w^T, without repacking the weights.
#pragma once

#include <utility>

#include "runtime/sim/ops/fused/vec/Lanes.h"

namespace kunlun::sim {
inline namespace CPU_CAPABILITY {
namespace {

// y[r][s] = x[r] . w[s] for R rows of x and S of w, each loaded once.
template <int R, int S, class T>
void dotTile(const float* const* x, const T* const* w, int64_t n, float (*y)[S]) {
  Pair total[R][S];
  for (auto& row : total) {
    std::fill(row, row + S, pairOf(0.0f));
  }
  eachPiece(n, [&](int64_t i, int64_t count) {
    Pair weights[S];
    for (int s = 0; s < S; ++s) {
      weights[s] = load(w[s] + i, count);
    }
    for (int r = 0; r < R; ++r) {
      const Pair row = load(x[r] + i, count);
      for (int s = 0; s < S; ++s) {
        total[r][s] = fma(row, weights[s], total[r][s]);
      }
    }
  });
  for (int r = 0; r < R; ++r) {
    for (int s = 0; s < S; ++s) {
      y[r][s] = sum(total[r][s]);
    }
  }
}

inline constexpr int kTileRows = 3;
inline constexpr int kTileWeights = 4;

template <int R, class T, class Take>
void dotRows(const float* const* x, int64_t r, const T* const* w, int64_t count, int64_t n, const Take& take) {
  float y[R][kTileWeights];
  dotTile<R, kTileWeights>(x + r, w, n, y);
  for (int i = 0; i < R; ++i) {
    for (int64_t s = 0; s < count; ++s) {
      take(r + i, s, y[i][s]);
    }
  }
}

// take(r, s, x[r] . w[s]) for all rows of x and the rows `begin` to `end` of w, which lie `step` elements apart.
template <class T, class Take>
void dotAll(
    const std::vector<const float*>& x,
    const T* w,
    int64_t step,
    int64_t begin,
    int64_t end,
    int64_t n,
    const Take& take) {
  const auto rows = static_cast<int64_t>(x.size());
  for (int64_t s = begin; s < end; s += kTileWeights) {
    const int64_t count = std::min<int64_t>(kTileWeights, end - s);
    const T* weights[kTileWeights];
    for (int64_t i = 0; i < kTileWeights; ++i) {
      weights[i] = w + std::min(s + i, end - 1) * step; // the last row again where there are fewer
    }
    const auto shifted = [&](int64_t r, int64_t i, float value) { take(r, s + i, value); };
    int64_t r = 0;
    for (; r + kTileRows <= rows; r += kTileRows) {
      dotRows<kTileRows>(x.data(), r, weights, count, n, shifted);
    }
    if (rows - r == 2) {
      dotRows<2>(x.data(), r, weights, count, n, shifted);
    } else if (rows - r == 1) {
      dotRows<1>(x.data(), r, weights, count, n, shifted);
    }
  }
}

// The rows of a tensor as rows of float: its own memory, or a copy.
template <class T>
class FloatRows {
 public:
  FloatRows(const View& tensor, const Rows& rows, int64_t width) : rows_(rows), data_(tensor.as<T>()), width_(width) {
    if constexpr (!std::is_same_v<T, float>) {
      converted_.resize(rows.count * width);
      for (int64_t r = 0; r < rows.count; ++r) {
        const T* from = data_ + rows.offset(r);
        float* to = converted_.data() + r * width;
        eachPiece(width, [&](int64_t i, int64_t count) { store(to + i, load(from + i, count), count); });
      }
    }
  }
  const float* operator[](int64_t r) const {
    if constexpr (std::is_same_v<T, float>) {
      return data_ + rows_.offset(r);
    } else {
      return converted_.data() + r * width_;
    }
  }

 private:
  Rows rows_;
  const T* data_;
  int64_t width_;
  std::vector<float> converted_;
};

} // namespace
} // namespace CPU_CAPABILITY
} // namespace kunlun::sim
