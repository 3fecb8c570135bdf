// Gated and ungated activations.
#include <ATen/Parallel.h>

#include "runtime/sim/ops/fused/Args.h"
#include "runtime/sim/ops/fused/Fused.h"
#include "runtime/sim/ops/fused/vec/Lanes.h"

namespace kunlun::sim {
inline namespace CPU_CAPABILITY {
namespace {

constexpr int64_t kGrain = 32768; // elements that are worth a thread: a second one costs some 5 us to wake

// function(out row, x row, width of out) for every row.
template <class T, class Function>
void eachRow(const View& x, const View& out, const Function& function) {
  const Rows from(x);
  const Rows to(out);
  const int64_t width = out.size(-1);
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, width));
  at::parallel_for(0, to.count, grain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      function(out.as<T>() + to.offset(r), x.as<T>() + from.offset(r), width);
    }
  });
}

// x * sigmoid(slope * x)
Pair gated(Pair x, float slope = 1.0f) {
  return x / (pairOf(1.0f) + exp(x * pairOf(-slope)));
}

template <class T>
void gate(T* out, const T* gate, const T* up, int64_t width) {
  eachPiece(width, [&](int64_t i, int64_t count) {
    const Pair g = load(gate + i, count);
    store(out + i, gated(g) * load(up + i, count), count);
  });
}

// x of twice the width -> out
void siluAndMul(const kl_frame* frame) {
  const Args args(frame);
  withFloatType(args.in(0).dtype, [&](auto zero) {
    using T = decltype(zero);
    eachRow<T>(args.in(0), args.out(0), [](T* out, const T* x, int64_t width) { gate(out, x, x + width, width); });
  });
}

// gate, up -> out
void swiglu(const kl_frame* frame) {
  const Args args(frame);
  const View up = args.in(1);
  if (!up.defined()) {
    siluAndMul(frame);
    return;
  }
  const View x = args.in(0);
  const View out = args.out(0);
  const Rows x_rows(x);
  const Rows up_rows(up);
  const Rows out_rows(out);
  const int64_t width = out.size(-1);
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, width));
  withFloatType(x.dtype, [&](auto zero) {
    using T = decltype(zero);
    at::parallel_for(0, out_rows.count, grain, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        gate(out.as<T>() + out_rows.offset(r), x.as<T>() + x_rows.offset(r), up.as<T>() + up_rows.offset(r), width);
      }
    });
  });
}

// Gate and up alternate: (up + 1) * gate * sigmoid(alpha * gate), both clamped.
template <class T>
void clampedGate(T* out, const T* x, int64_t width, float alpha, float limit) {
  alignas(64) float gates[kLanes];
  alignas(64) float ups[kLanes];
  eachPiece(width, [&](int64_t i, int64_t count) {
    for (int64_t j = 0; j < count; ++j) {
      gates[j] = static_cast<float>(x[2 * (i + j)]);
      ups[j] = static_cast<float>(x[2 * (i + j) + 1]);
    }
    const Pair g = min(load(gates, count), pairOf(limit));
    const Pair u = max(min(load(ups, count), pairOf(limit)), pairOf(-limit));
    store(out + i, (u + pairOf(1.0f)) * gated(g, alpha), count);
  });
}

// x, alpha, limit -> out
void swigluOai(const kl_frame* frame) {
  const Args args(frame);
  const float alpha = args.number(1);
  const float limit = args.number(2);
  withFloatType(args.in(0).dtype, [&](auto zero) {
    using T = decltype(zero);
    eachRow<T>(
        args.in(0), args.out(0), [&](T* out, const T* x, int64_t width) { clampedGate(out, x, width, alpha, limit); });
  });
}

// x -> out
void quickGelu(const kl_frame* frame) {
  const Args args(frame);
  withFloatType(args.in(0).dtype, [&](auto zero) {
    using T = decltype(zero);
    eachRow<T>(args.in(0), args.out(0), [](T* out, const T* x, int64_t width) {
      eachPiece(width, [&](int64_t i, int64_t count) { store(out + i, gated(load(x + i, count), 1.702f), count); });
    });
  });
}

constexpr Kernel kKernels[] = {
    {"kunlun::silu_and_mul", &siluAndMul},
    {"kunlun::swiglu", &swiglu},
    {"kunlun::swigluoai_and_mul", &swigluOai},
    {"kunlun::quick_gelu", &quickGelu},
};

c10::ArrayRef<Kernel> kernels() {
  return kKernels;
}

} // namespace
} // namespace CPU_CAPABILITY
} // namespace kunlun::sim

namespace at::native {
ALSO_REGISTER_AVX512_DISPATCH(kunlun_activation_kernels, &kunlun::sim::kernels)
} // namespace at::native
