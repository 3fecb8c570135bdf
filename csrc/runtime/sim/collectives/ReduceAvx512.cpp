// The loops of reductions for CPUs with AVX-512. Only called where the CPU has it.
#include "runtime/sim/collectives/ReduceKernels.h"

#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))), apply_to = function)
#else
#pragma GCC optimize("O3")
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")
#endif

namespace kunlun::sim {
namespace {
#include "runtime/sim/collectives/ReduceLoops.h"
} // namespace

const ReduceKernels& avx512ReduceKernels() {
  static const ReduceKernels kernels = makeKernels();
  return kernels;
}

} // namespace kunlun::sim

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif // __x86_64__
