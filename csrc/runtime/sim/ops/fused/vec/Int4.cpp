// Weights of four bits in groups with a scale and a zero point, in the layouts of AWQ and GPTQ.
#include <ATen/Parallel.h>

#include "runtime/sim/ops/fused/Args.h"
#include "runtime/sim/ops/fused/Fused.h"
#include "runtime/sim/ops/fused/vec/DotTile.h"
#include "runtime/sim/ops/fused/vec/Gemm.h"
#include "runtime/sim/ops/fused/vec/Lanes.h"

namespace kunlun::sim {
inline namespace CPU_CAPABILITY {
namespace {

constexpr int64_t kPacked = 8;   // values in an int32
constexpr int64_t kColumns = 64; // of a block that is unpacked at once
constexpr int64_t kDepth = 128;  // rows of such a block

// Where the bits of column j of eight lie in an AWQ word.
constexpr int kAwqShift[kPacked] = {0, 16, 4, 20, 8, 24, 12, 28};

inline uint32_t word(const View& tensor, int64_t row, int64_t column) {
  return static_cast<uint32_t>(tensor.as<int32_t>()[row * tensor.stride(0) + column * tensor.stride(1)]);
}

template <class T>
float scaleAt(const View& scales, int64_t group, int64_t column) {
  return static_cast<float>(scales.as<T>()[group * scales.stride(0) + column * scales.stride(1)]);
}

// A weight of [depth, columns]; unpack() writes rows and columns of it as float, each row padded to kColumns.
template <class T>
struct Awq {
  View packed; // [depth, columns / 8]
  View scales; // [groups, columns]
  View zeros;  // [groups, columns / 8]

  int64_t depth() const {
    return packed.size(0);
  }
  int64_t columns() const {
    return scales.size(1);
  }
  void unpack(int64_t row, int64_t rows, int64_t column, int64_t columns, float* to) const {
    const int64_t group_size = depth() / scales.size(0);
    for (int64_t r = row; r < row + rows; ++r, to += kColumns) {
      const int64_t group = r / group_size;
      for (int64_t c = 0; c < columns; c += kPacked) {
        const uint32_t values = word(packed, r, (column + c) / kPacked);
        const uint32_t zero = word(zeros, group, (column + c) / kPacked);
        for (int64_t j = 0; j < kPacked; ++j) {
          const int difference =
              static_cast<int>(values >> kAwqShift[j] & 15u) - static_cast<int>(zero >> kAwqShift[j] & 15u);
          to[c + j] = static_cast<float>(difference) * scaleAt<T>(scales, group, column + c + j);
        }
      }
      std::fill(to + columns, to + kColumns, 0.0f);
    }
  }
};

template <class T>
struct Gptq {
  View packed; // [depth / 8, columns]
  View scales; // [groups, columns]
  View zeros;  // [groups, columns / 8], stored less one
  View groups; // [depth], may be absent: neighbouring rows are a group

  int64_t depth() const {
    return packed.size(0) * kPacked;
  }
  int64_t columns() const {
    return scales.size(1);
  }
  int64_t groupOf(int64_t row) const {
    if (!groups.defined()) {
      return row / (depth() / scales.size(0));
    }
    const int64_t group = groups.index(row);
    TORCH_CHECK_INDEX(
        group >= 0 && group < scales.size(0),
        "gptq_gemm: group ",
        group,
        " of row ",
        row,
        " is out of the range of ",
        scales.size(0),
        " groups");
    return group;
  }
  void unpack(int64_t row, int64_t rows, int64_t column, int64_t columns, float* to) const {
    for (int64_t r = row; r < row + rows; ++r, to += kColumns) {
      const int64_t group = groupOf(r);
      const int shift = static_cast<int>(r % kPacked) * 4;
      for (int64_t c = 0; c < columns; ++c) {
        const int64_t at = column + c;
        const uint32_t value = word(packed, r / kPacked, at) >> shift & 15u;
        const uint32_t zero = (word(zeros, group, at / kPacked) >> (at % kPacked * 4) & 15u) + 1;
        to[c] = static_cast<float>(static_cast<int>(value) - static_cast<int>(zero)) * scaleAt<T>(scales, group, at);
      }
      std::fill(to + columns, to + kColumns, 0.0f);
    }
  }
};

// out = x w, with w unpacked a block at a time and each block used for all rows of x.
template <class T, class Weight>
void multiply(const View& x, const Weight& weight, const View& out) {
  const int64_t m = x.size(0);
  const int64_t n = weight.columns();
  const FloatRows<T> rows(x, Rows(x), weight.depth());
  const int64_t lda = m > 1 ? rows[1] - rows[0] : 0;
  at::parallel_for(0, (n + kColumns - 1) / kColumns, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> block(kDepth * kColumns);
    std::vector<float> total(m * kColumns);
    for (int64_t b = begin; b < end; ++b) {
      const int64_t column = b * kColumns;
      const int64_t columns = std::min(kColumns, n - column);
      for (int64_t row = 0; row < weight.depth(); row += kDepth) {
        const int64_t depth = std::min(kDepth, weight.depth() - row);
        weight.unpack(row, depth, column, columns, block.data());
        gemm(rows[0] + row, lda, block.data(), kColumns, total.data(), kColumns, m, columns, depth, row != 0);
      }
      for (int64_t i = 0; i < m; ++i) {
        T* to = out.as<T>() + i * n + column;
        const float* from = &total[i * kColumns];
        eachPiece(columns, [&](int64_t j, int64_t count) { store(to + j, load(from + j), count); });
      }
    }
  });
}

// x, qweight, scales, qzeros -> out
void awqGemm(const kl_frame* frame) {
  const Args a(frame);
  withFloatType(a.in(0).dtype, [&](auto zero) {
    using T = decltype(zero);
    multiply<T>(a.in(0), Awq<T>{a.in(1), a.in(2), a.in(3)}, a.out(0));
  });
}

// x, qweight, qzeros, scales, g_idx? -> out
void gptqGemm(const kl_frame* frame) {
  const Args a(frame);
  withFloatType(a.in(0).dtype, [&](auto zero) {
    using T = decltype(zero);
    multiply<T>(a.in(0), Gptq<T>{a.in(1), a.in(3), a.in(2), a.in(4)}, a.out(0));
  });
}

// qweight, scales, qzeros -> out
void awqDequantize(const kl_frame* frame) {
  const Args a(frame);
  const View out = a.out(0);
  withFloatType(out.dtype, [&](auto zero) {
    using T = decltype(zero);
    const Awq<T> weight{a.in(0), a.in(1), a.in(2)};
    const int64_t n = weight.columns();
    const int64_t blocks = (n + kColumns - 1) / kColumns;
    at::parallel_for(0, weight.depth() * blocks, 64, [&](int64_t begin, int64_t end) {
      alignas(64) float values[kColumns];
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i / blocks;
        const int64_t column = i % blocks * kColumns;
        const int64_t columns = std::min(kColumns, n - column);
        weight.unpack(row, 1, column, columns, values);
        T* to = out.as<T>() + row * n + column;
        eachPiece(columns, [&](int64_t j, int64_t count) { store(to + j, load(values + j), count); });
      }
    });
  });
}

constexpr Kernel kKernels[] = {
    {"kunlun::awq_gemm", &awqGemm},
    {"kunlun::awq_dequantize", &awqDequantize},
    {"kunlun::gptq_gemm", &gptqGemm},
};

c10::ArrayRef<Kernel> kernels() {
  return kKernels;
}

} // namespace
} // namespace CPU_CAPABILITY
} // namespace kunlun::sim

namespace at::native {
ALSO_REGISTER_AVX512_DISPATCH(kunlun_int4_kernels, &kunlun::sim::kernels)
} // namespace at::native
