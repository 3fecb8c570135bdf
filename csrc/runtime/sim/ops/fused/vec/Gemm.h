// Small matrix products in float, over packed operands.
#pragma once

#include "runtime/sim/ops/fused/vec/Lanes.h"

namespace kunlun::sim {
inline namespace CPU_CAPABILITY {
namespace {

// Rows of c that are computed together: as many as leave a register for each accumulator.
inline constexpr int kRows = 6;

template <int R>
void gemmTile(const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc, int64_t k, bool add) {
  Pair total[R];
  for (int r = 0; r < R; ++r) {
    total[r] = add ? load(c + r * ldc) : pairOf(0.0f);
  }
  for (int64_t i = 0; i < k; ++i) {
    const Pair row = load(b + i * ldb);
    for (int r = 0; r < R; ++r) {
      total[r] = fma(pairOf(a[r * lda + i]), row, total[r]);
    }
  }
  for (int r = 0; r < R; ++r) {
    store(c + r * ldc, total[r]);
  }
}

// c[m, n] = a[m, k] b[k, n], added to c if `add`. The rows of b and c are padded to a multiple of kLanes.
inline void gemm(
    const float* a,
    int64_t lda,
    const float* b,
    int64_t ldb,
    float* c,
    int64_t ldc,
    int64_t m,
    int64_t n,
    int64_t k,
    bool add) {
  for (int64_t j = 0; j < n; j += kLanes) {
    int64_t i = 0;
    for (; i + kRows <= m; i += kRows) {
      gemmTile<kRows>(a + i * lda, lda, b + j, ldb, c + i * ldc + j, ldc, k, add);
    }
    const float* rest = a + i * lda;
    float* out = c + i * ldc + j;
    switch (m - i) {
      case 5:
        gemmTile<5>(rest, lda, b + j, ldb, out, ldc, k, add);
        break;
      case 4:
        gemmTile<4>(rest, lda, b + j, ldb, out, ldc, k, add);
        break;
      case 3:
        gemmTile<3>(rest, lda, b + j, ldb, out, ldc, k, add);
        break;
      case 2:
        gemmTile<2>(rest, lda, b + j, ldb, out, ldc, k, add);
        break;
      case 1:
        gemmTile<1>(rest, lda, b + j, ldb, out, ldc, k, add);
        break;
      default:
        break;
    }
  }
}

// Rows of any float type as float, each padded with zeros to `stride`.
template <class T, class RowAt>
void packRows(const RowAt& row_at, int64_t rows, int64_t width, float* to, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r, to += stride) {
    const T* from = row_at(r);
    eachPiece(width, [&](int64_t i, int64_t count) { store(to + i, load(from + i, count)); });
  }
}

// The same transposed: to[i, r] = row r's element i; columns from `rows` up to `stride` are zero.
template <class T, class RowAt>
void packColumns(const RowAt& row_at, int64_t rows, int64_t width, float* to, int64_t stride) {
  constexpr int64_t kBlock = Floats::size();
  alignas(64) float from[kBlock * kBlock];
  alignas(64) float turned[kBlock * kBlock];
  for (int64_t r = 0; r < stride; r += kBlock) {
    const int64_t n = std::clamp<int64_t>(rows - r, 0, kBlock);
    for (int64_t i = 0; i < width; i += kBlock) {
      const int64_t m = std::min(width - i, kBlock);
      for (int64_t j = 0; j < kBlock; ++j) {
        if (j >= n) {
          Floats(0.0f).store(from + j * kBlock);
        } else {
          const T* row = row_at(r + j) + i;
          for (int64_t e = 0; e < m; ++e) {
            from[j * kBlock + e] = static_cast<float>(row[e]);
          }
        }
      }
      for (int64_t j = 0; j < kBlock; ++j) {
        for (int64_t e = 0; e < kBlock; ++e) {
          turned[e * kBlock + j] = from[j * kBlock + e];
        }
      }
      for (int64_t e = 0; e < m; ++e) {
        Floats::loadu(turned + e * kBlock).store(to + (i + e) * stride + r);
      }
    }
  }
}

} // namespace
} // namespace CPU_CAPABILITY
} // namespace kunlun::sim
