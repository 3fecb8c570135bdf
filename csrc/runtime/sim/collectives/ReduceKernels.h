// The inner loops of reductions, as tables. Each table is compiled for one instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/chip/chip.h"

namespace kunlun::sim {

// In what the reduction accumulates.
enum Accumulator : uint8_t {
  kAccBool,
  kAccUInt8,
  kAccInt8,
  kAccInt16,
  kAccInt32,
  kAccInt64,
  kAccUInt16,
  kAccUInt32,
  kAccUInt64,
  kAccFloat,
  kAccDouble,
  kAccComplexFloat,
  kAccComplexDouble,
  kAccCount
};

struct ReduceKernels {
  using Load = void (*)(void* accumulator, const void* input, size_t count);
  using Store = void (*)(void* output, const void* accumulator, size_t count);
  // `output` may be one of the two inputs.
  using Combine = void (*)(void* output, const void* left, const void* right, size_t count);
  using Scale = void (*)(void* accumulator, double factor, size_t count);

  enum { kSum, kProduct, kMin, kMax, kAnd, kOr, kXor, kCombineCount };

  // To and from the accumulating type where it is another one: halves, and small integers that accumulate in int64.
  Load load_float16, load_bfloat16;
  Store store_float16, store_bfloat16;
  // Sums of halves in one pass: they are read, added in float, and rounded where the result is one.
  struct HalfSum {
    Combine pair;    // half = half + half
    Combine first;   // float = half + half
    Combine further; // float = float + half
    Combine last;    // half = float + half
  };
  HalfSum float16, bfloat16;
  Load load_wide[kAccCount];
  Store store_wide[kAccCount];
  Combine combine[kAccCount][kCombineCount]; // NULL where it is not defined
  Scale scale[kAccCount];
  Scale divide[kAccCount];
};

const ReduceKernels& baseReduceKernels();
#if defined(__x86_64__)
const ReduceKernels& avx2ReduceKernels();
const ReduceKernels& avx512ReduceKernels();
#endif

} // namespace kunlun::sim
