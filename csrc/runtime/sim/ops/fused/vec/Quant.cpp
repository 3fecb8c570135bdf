// Weights and activations in int8, and products with them.
#include <ATen/Parallel.h>

#include "runtime/sim/ops/fused/Args.h"
#include "runtime/sim/ops/fused/Fused.h"
#include "runtime/sim/ops/fused/vec/Lanes.h"

namespace kunlun::sim {
inline namespace CPU_CAPABILITY {
namespace {

constexpr int64_t kGrain = 8192; // elements that are worth a thread

// ---- quantising activations, a scale for each row ----

template <class T>
float largestMagnitude(const T* x, int64_t n) {
  Pair top = pairOf(0.0f);
  eachPiece(n, [&](int64_t i, int64_t count) {
    const Pair v = load(x + i, count);
    top = max(top, {v.a.abs(), v.b.abs()});
  });
  return largest(top);
}

// Rounds to the nearest integer, halves to even.
template <class T>
void quantizeRow(const T* x, int8_t* out, int64_t n, float factor) {
  alignas(64) float values[kLanes];
  eachPiece(n, [&](int64_t i, int64_t count) {
    const Pair v = load(x + i, count) * pairOf(factor);
    const Pair rounded = {v.a.round(), v.b.round()};
    store(values, max(min(rounded, pairOf(127.0f)), pairOf(-127.0f)));
    for (int64_t j = 0; j < count; ++j) {
      out[i + j] = static_cast<int8_t>(values[j]);
    }
  });
}

// x -> int8, and for each row `unit` times its largest magnitude.
void quantize(const kl_frame* frame, float unit) {
  const Args args(frame);
  const View x = args.in(0);
  const View out = args.out(0);    // contiguous
  const View scales = args.out(1); // contiguous
  const int64_t width = x.size(-1);
  const Rows rows(x);
  withFloatType(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    at::parallel_for(0, rows.count, std::max<int64_t>(1, kGrain / width), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* row = x.as<T>() + rows.offset(r);
        const float top = largestMagnitude(row, width);
        scales.as<float>()[r] = top * unit;
        quantizeRow(row, out.as<int8_t>() + r * width, width, top == 0.0f ? 0.0f : 127.0f / top);
      }
    });
  });
}

// ---- int8 products ----

constexpr int64_t kTile = 4; // rows of x that share each element of a weight

// Exact: the sums are integers. Over int16, which the compiler multiplies and adds in pairs.
inline void dotTile(const int16_t* const* x, const int16_t* w, int64_t n, int32_t* sums) {
  int32_t total[kTile] = {};
  for (int64_t i = 0; i < n; ++i) {
    const int32_t weight = w[i];
#pragma GCC unroll 4
    for (int64_t r = 0; r < kTile; ++r) {
      total[r] += static_cast<int32_t>(x[r][i]) * weight;
    }
  }
  std::copy_n(total, kTile, sums);
}

struct Int8Product {
  View x;            // [m, k], int8
  View weight;       // [n, k], int8
  View x_scale;      // [m] or one element, float
  View weight_scale; // [n] or one element, float
  View bias;         // [n] in the dtype of out, may be absent
  View out;          // [m, n], contiguous
  float unit;        // what a scale is multiplied with
};

float scaleAt(const View& scale, int64_t i) {
  const bool one = scale.dims == 0 || scale.size(0) == 1;
  return scale.as<float>()[one ? 0 : i * scale.stride(0)];
}

void int8Product(const Int8Product& p) {
  const int64_t m = p.x.size(0);
  const int64_t n = p.weight.size(0);
  const int64_t k = p.x.size(1);
  std::vector<int16_t> rows(m * k);
  for (int64_t i = 0; i < m; ++i) {
    std::copy_n(p.x.as<int8_t>() + i * p.x.stride(0), k, &rows[i * k]);
  }
  withFloatType(p.out.dtype, [&](auto zero) {
    using T = decltype(zero);
    const int64_t grain = std::max<int64_t>(1, 65536 / std::max<int64_t>(1, m * k));
    at::parallel_for(0, n, grain, [&](int64_t begin, int64_t end) {
      constexpr int64_t kBlock = 16; // rows of x that stay in the nearest cache
      std::vector<int16_t> w(k);
      for (int64_t first = 0; first < m; first += kBlock) {
        const int64_t last = std::min(first + kBlock, m);
        for (int64_t j = begin; j < end; ++j) {
          std::copy_n(p.weight.as<int8_t>() + j * p.weight.stride(0), k, w.data());
          const float w_scale = scaleAt(p.weight_scale, j) * p.unit;
          const float bias = p.bias.defined() ? static_cast<float>(p.bias.as<T>()[j * p.bias.stride(0)]) : 0.0f;
          for (int64_t i = first; i < last; i += kTile) {
            const int16_t* x[kTile];
            for (int64_t r = 0; r < kTile; ++r) {
              x[r] = rows.data() + std::min(i + r, m - 1) * k; // the last row again where there are fewer
            }
            int32_t sums[kTile];
            dotTile(x, w.data(), k, sums);
            for (int64_t r = i; r < std::min(i + kTile, last); ++r) {
              const float x_scale = scaleAt(p.x_scale, r) * p.unit;
              p.out.as<T>()[r * n + j] = static_cast<T>(static_cast<float>(sums[r - i]) * x_scale * w_scale + bias);
            }
          }
        }
      }
    });
  });
}

constexpr Kernel kKernels[] = {
    {"kunlun::quant2d", [](const kl_frame* frame) { quantize(frame, 1.0f); }},
    {"kunlun::dynamic_scaled_int8_quant", [](const kl_frame* frame) { quantize(frame, 1.0f / 127.0f); }},
    // x, x_max, weight, weight_max -> out
    {"kunlun::gemm_I8_I8_bf16_nt",
     [](const kl_frame* frame) {
       const Args a(frame);
       int8Product({a.in(0), a.in(2), a.in(1), a.in(3), View{}, a.out(0), 1.0f / 127.0f});
     }},
    // x, weight (transposed by the caller), scale_x, scale_weight, bias? -> out
    {"kunlun::scaled_mm_int8",
     [](const kl_frame* frame) {
       const Args a(frame);
       int8Product({a.in(0), a.in(1), a.in(2), a.in(3), a.in(4), a.out(0), 1.0f});
     }},
};

c10::ArrayRef<Kernel> kernels() {
  return kKernels;
}

} // namespace
} // namespace CPU_CAPABILITY
} // namespace kunlun::sim

namespace at::native {
ALSO_REGISTER_AVX512_DISPATCH(kunlun_quant_kernels, &kunlun::sim::kernels)
} // namespace at::native
