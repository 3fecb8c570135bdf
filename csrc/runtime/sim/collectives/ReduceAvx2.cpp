// The loops of reductions for CPUs with AVX2. Only called where the CPU has it.
#include "runtime/sim/collectives/ReduceKernels.h"

#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC optimize("O3")
#pragma GCC target("avx2")
#endif

namespace kunlun::sim {
namespace {
#include "runtime/sim/collectives/ReduceLoops.h"
} // namespace

const ReduceKernels& avx2ReduceKernels() {
  static const ReduceKernels kernels = makeKernels();
  return kernels;
}

} // namespace kunlun::sim

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif // __x86_64__
