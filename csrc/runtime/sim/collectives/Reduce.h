// Reduction of one range of elements over several ranks' inputs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/chip/collectives.h"

namespace kunlun::sim {

size_t bytesOf(int32_t dtype); // raises KL_ERROR_TYPE for what is no dtype
const char* dtypeName(int32_t dtype);
const char* reduceOpName(int32_t op);

// Raises KL_ERROR_TYPE when the reduction is not defined for the dtype, KL_ERROR_VALUE for an unknown one.
void checkReduction(int32_t dtype, int32_t op);

struct Reduction {
  int32_t dtype;
  int32_t op; // kl_reduce_op
  uint32_t nranks;
  const void* const* inputs; // of each rank, in rank order
  const double* factors;     // of each rank, for PREMUL_SUM
  bool rounds_each = false;  // what accumulates in a wider type is rounded to its dtype after each rank
};

// Reduces `count` elements of the inputs, in rank order, and writes the result to each output. An output may be one of
// the inputs, otherwise they must not overlap. Half types, 8-bit floats and averages of integers accumulate in a wider
// type and are rounded once, unless told otherwise. Sums of bool are "or", products "and". MIN and MAX hand NaN on.
void reduce(const Reduction& what, void* const* outputs, uint32_t noutputs, uint64_t count);

// The value of a factor that lies in device memory.
double readFactor(const void* element, int32_t dtype);

} // namespace kunlun::sim
