// Root mean square normalisation, alone and after a residual addition.
#include <ATen/Parallel.h>

#include "runtime/sim/ops/fused/Args.h"
#include "runtime/sim/ops/fused/Fused.h"
#include "runtime/sim/ops/fused/vec/Lanes.h"
#include "runtime/sim/ops/fused/vec/RmsNorm.h"

namespace kunlun::sim {
inline namespace CPU_CAPABILITY {
namespace {

constexpr int64_t kGrain = 16384; // elements that are worth a thread

int64_t rowGrain(int64_t width) {
  return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, width));
}

// x, weight, eps -> out
void rmsnorm(const kl_frame* frame) {
  const Args args(frame);
  const View x = args.in(0);
  const View out = args.out(0);
  const float eps = args.number(2);
  const int64_t width = x.size(-1);
  const Rows from(x);
  const Rows to(out);
  const FloatRow weight(args.in(1));
  withFloatType(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    at::parallel_for(0, from.count, rowGrain(width), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* row = x.as<T>() + from.offset(r);
        normalizeRow(row, weight.data(), out.as<T>() + to.offset(r), width, rmsScale(row, width, eps));
      }
    });
  });
}

// The sum is rounded to the element type before it is normalised: what the next layer adds to is what this one saw.
template <class T>
void addAndNormalize(const T* x, const T* residual, const float* weight, T* out, T* sums, int64_t width, float eps) {
  Pair squares = pairOf(0.0f);
  eachPiece(width, [&](int64_t i, int64_t count) {
    store(sums + i, load(x + i, count) + load(residual + i, count), count);
    const Pair v = load(sums + i, count);
    squares = fma(v, v, squares);
  });
  normalizeRow(sums, weight, out, width, 1.0f / std::sqrt(sum(squares) / static_cast<float>(width) + eps));
}

void addRmsnorm(const View& x, const View& residual, const View& weight, float eps, const View& out, const View& sums) {
  const int64_t width = x.size(-1);
  const Rows x_rows(x);
  const Rows residual_rows(residual);
  const Rows out_rows(out);
  const Rows sum_rows(sums);
  const FloatRow weights(weight);
  withFloatType(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    at::parallel_for(0, x_rows.count, rowGrain(width), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        addAndNormalize(
            x.as<T>() + x_rows.offset(r),
            residual.as<T>() + residual_rows.offset(r),
            weights.data(),
            out.as<T>() + out_rows.offset(r),
            sums.as<T>() + sum_rows.offset(r),
            width,
            eps);
      }
    });
  });
}

constexpr Kernel kKernels[] = {
    {"kunlun::rmsnorm", &rmsnorm},
    {"kunlun::add_rmsnorm",
     [](const kl_frame* frame) {
       const Args a(frame);
       addRmsnorm(a.in(0), a.in(1), a.in(2), a.number(3), a.out(0), a.out(1));
     }},
    {"kunlun::add_rmsnorm_",
     [](const kl_frame* frame) {
       const Args a(frame);
       addRmsnorm(a.in(0), a.in(1), a.in(2), a.number(3), a.in(0), a.in(1));
     }},
};

c10::ArrayRef<Kernel> kernels() {
  return kKernels;
}

} // namespace
} // namespace CPU_CAPABILITY
} // namespace kunlun::sim

namespace at::native {
ALSO_REGISTER_AVX512_DISPATCH(kunlun_norm_kernels, &kunlun::sim::kernels)
} // namespace at::native
