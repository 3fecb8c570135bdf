// Low-rank adapters: each token through the adapter that its request chose.
#include <ATen/Parallel.h>

#include "runtime/sim/ops/fused/Args.h"
#include "runtime/sim/ops/fused/Fused.h"
#include "runtime/sim/ops/fused/vec/DotTile.h"
#include "runtime/sim/ops/fused/vec/Lanes.h"

namespace kunlun::sim {
inline namespace CPU_CAPABILITY {
namespace {

constexpr int64_t kTokens = 32; // of one task

// Neighbouring tokens with one adapter.
struct Run {
  int64_t adapter; // -1: none
  int64_t begin;
  int64_t end;
};

std::vector<Run> runsOf(const char* op, const View& indices, int64_t adapters) {
  std::vector<Run> runs;
  for (int64_t token = 0; token < indices.size(0); ++token) {
    const int64_t adapter = indices.index(token);
    TORCH_CHECK_INDEX(
        adapter >= -1 && adapter < adapters,
        op,
        ": adapter ",
        adapter,
        " of token ",
        token,
        " is out of the range of ",
        adapters,
        " adapters");
    if (runs.empty() || runs.back().adapter != adapter || token - runs.back().begin == kTokens) {
      runs.push_back({adapter, token, token});
    }
    runs.back().end = token + 1;
  }
  return runs;
}

// x [tokens, in], weights [adapters, rank, in], indices, scale -> out [tokens, rank], float
void shrink(const kl_frame* frame) {
  const Args args(frame);
  const View x = args.in(0);
  const View weights = args.in(1);
  const float scale = args.number(3);
  const View out = args.out(0); // contiguous
  const int64_t rank = weights.size(1);
  const int64_t width = weights.size(2);
  const auto runs = runsOf("bgmv_shrink", args.in(2), weights.size(0));
  withFloatType(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    const FloatRows<T> rows(x, Rows(x), width);
    at::parallel_for(0, static_cast<int64_t>(runs.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const Run& run = runs[i];
        float* to = out.as<float>() + run.begin * rank;
        if (run.adapter < 0) {
          std::fill_n(to, (run.end - run.begin) * rank, 0.0f);
          continue;
        }
        std::vector<const float*> from;
        for (int64_t token = run.begin; token < run.end; ++token) {
          from.push_back(rows[token]);
        }
        const T* w = weights.as<T>() + run.adapter * weights.stride(0);
        dotAll(from, w, weights.stride(1), 0, rank, width, [&](int64_t r, int64_t s, float value) {
          to[r * rank + s] = value * scale;
        });
      }
    });
  });
}

// y [tokens, rank], float, weights [adapters, out, rank], out!, indices, offset, add
void expand(const kl_frame* frame) {
  const Args args(frame);
  const View y = args.in(0);
  const View weights = args.in(1);
  const View out = args.in(2);
  const int64_t offset = args.integer(4);
  const bool add = args.integer(5) != 0;
  const int64_t width = weights.size(1);
  const int64_t rank = weights.size(2);
  const auto runs = runsOf("bgmv_expand", args.in(3), weights.size(0));
  withFloatType(out.dtype, [&](auto zero) {
    using T = decltype(zero);
    at::parallel_for(0, static_cast<int64_t>(runs.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const Run& run = runs[i];
        const auto row = [&](int64_t token) { return out.as<T>() + token * out.stride(0) + offset; };
        if (run.adapter < 0) {
          for (int64_t token = run.begin; token < run.end && !add; ++token) {
            std::fill_n(row(token), width, T(0.0f));
          }
          continue;
        }
        std::vector<const float*> from;
        for (int64_t token = run.begin; token < run.end; ++token) {
          from.push_back(y.as<float>() + token * y.stride(0));
        }
        const T* w = weights.as<T>() + run.adapter * weights.stride(0);
        dotAll(from, w, weights.stride(1), 0, width, rank, [&](int64_t r, int64_t s, float value) {
          T& to = row(run.begin + r)[s];
          to = static_cast<T>(add ? static_cast<float>(to) + value : value);
        });
      }
    });
  });
}

constexpr Kernel kKernels[] = {
    {"kunlun::bgmv_shrink", &shrink},
    {"kunlun::bgmv_expand", &expand},
};

c10::ArrayRef<Kernel> kernels() {
  return kKernels;
}

} // namespace
} // namespace CPU_CAPABILITY
} // namespace kunlun::sim

namespace at::native {
ALSO_REGISTER_AVX512_DISPATCH(kunlun_lora_kernels, &kunlun::sim::kernels)
} // namespace at::native
