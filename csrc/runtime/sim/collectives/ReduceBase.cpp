// The loops of reductions for every CPU of the architecture.
#include "runtime/sim/collectives/ReduceKernels.h"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif

namespace kunlun::sim {
namespace {
#include "runtime/sim/collectives/ReduceLoops.h"
} // namespace

const ReduceKernels& baseReduceKernels() {
  static const ReduceKernels kernels = makeKernels();
  return kernels;
}

} // namespace kunlun::sim
