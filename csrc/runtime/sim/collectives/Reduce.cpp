// Reductions: which accumulator, which loops, and the walk over the elements in blocks that stay in the first cache.
#include "runtime/sim/collectives/Reduce.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "runtime/sim/Status.h"
#include "runtime/sim/collectives/Float8.h"
#include "runtime/sim/collectives/ReduceKernels.h"

namespace kunlun::sim {
namespace {

constexpr size_t kBlockBytes = size_t{8} << 10; // of the accumulator

struct DType {
  const char* name;
  uint8_t bytes;
  Accumulator accumulator;
  uint8_t accumulator_bytes; // of one element
};

constexpr std::array<DType, KL_DTYPE_COUNT> kDTypes{{
    {"undefined", 0, kAccBool, 0},
    {"bool", 1, kAccBool, 1},
    {"uint8", 1, kAccUInt8, 1},
    {"int8", 1, kAccInt8, 1},
    {"int16", 2, kAccInt16, 2},
    {"int32", 4, kAccInt32, 4},
    {"int64", 8, kAccInt64, 8},
    {"uint16", 2, kAccUInt16, 2},
    {"uint32", 4, kAccUInt32, 4},
    {"uint64", 8, kAccUInt64, 8},
    {"float16", 2, kAccFloat, 4},
    {"bfloat16", 2, kAccFloat, 4},
    {"float32", 4, kAccFloat, 4},
    {"float64", 8, kAccDouble, 8},
    {"complex32", 4, kAccComplexFloat, 8},
    {"complex64", 8, kAccComplexFloat, 8},
    {"complex128", 16, kAccComplexDouble, 16},
    {"float8_e4m3fn", 1, kAccFloat, 4},
    {"float8_e5m2", 1, kAccFloat, 4},
    {"float8_e4m3fnuz", 1, kAccFloat, 4},
    {"float8_e5m2fnuz", 1, kAccFloat, 4},
    {"float8_e8m0fnu", 1, kAccFloat, 4},
}};

constexpr const char* kOps[] = {"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"};

const DType& dtypeOf(int32_t dtype) {
  if (dtype <= KL_DTYPE_UNDEFINED || dtype >= KL_DTYPE_COUNT) {
    raise(KL_ERROR_TYPE, -1, "collectives know no dtype of number %d", dtype);
  }
  return kDTypes[static_cast<size_t>(dtype)];
}

const ReduceKernels& kernels() {
#if defined(__x86_64__)
  static const ReduceKernels& best = [&]() -> const ReduceKernels& {
    const bool has_512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return has_512 ? avx512ReduceKernels() : __builtin_cpu_supports("avx2") ? avx2ReduceKernels() : baseReduceKernels();
  }();
  return best;
#else
  return baseReduceKernels();
#endif
}

int combineOf(int32_t op) {
  switch (op) {
    case KL_REDUCE_PRODUCT:
      return ReduceKernels::kProduct;
    case KL_REDUCE_MIN:
      return ReduceKernels::kMin;
    case KL_REDUCE_MAX:
      return ReduceKernels::kMax;
    case KL_REDUCE_BAND:
      return ReduceKernels::kAnd;
    case KL_REDUCE_BOR:
      return ReduceKernels::kOr;
    case KL_REDUCE_BXOR:
      return ReduceKernels::kXor;
    default:
      return ReduceKernels::kSum;
  }
}

bool isInteger(int32_t dtype) {
  return dtype >= KL_UINT8 && dtype <= KL_UINT64;
}

// How one reduction goes: conversions are NULL where the accumulator has the dtype itself.
struct Plan {
  ReduceKernels::Load load = nullptr;
  ReduceKernels::Store store = nullptr;
  Accumulator accumulator;
  size_t accumulator_bytes;
  size_t bytes;
  size_t parts = 1; // numbers in one element, for conversions
  const ReduceKernels::HalfSum* half_sum = nullptr;

  Plan(int32_t number, int32_t op) {
    const DType& dtype = dtypeOf(number);
    const ReduceKernels& k = kernels();
    accumulator = dtype.accumulator;
    accumulator_bytes = dtype.accumulator_bytes;
    bytes = dtype.bytes;
    if (number == KL_FLOAT16 || number == KL_COMPLEX32) {
      load = k.load_float16;
      store = k.store_float16;
      parts = number == KL_COMPLEX32 ? 2 : 1;
      half_sum = &k.float16;
    } else if (number == KL_BFLOAT16) {
      load = k.load_bfloat16;
      store = k.store_bfloat16;
      half_sum = &k.bfloat16;
    } else if (number >= KL_FLOAT8_E4M3FN) {
      load = float8Load(number);
      store = float8Store(number);
    } else if (op == KL_REDUCE_AVG && isInteger(number) && bytes < sizeof(int64_t)) {
      load = k.load_wide[accumulator];
      store = k.store_wide[accumulator];
      accumulator = kAccInt64;
      accumulator_bytes = sizeof(int64_t);
    }
  }
};

} // namespace

size_t bytesOf(int32_t dtype) {
  return dtypeOf(dtype).bytes;
}

const char* dtypeName(int32_t dtype) {
  return dtype >= 0 && dtype < KL_DTYPE_COUNT ? kDTypes[static_cast<size_t>(dtype)].name : "unknown";
}

const char* reduceOpName(int32_t op) {
  return op >= 0 && op <= KL_REDUCE_PREMUL_SUM ? kOps[op] : "unknown";
}

void checkReduction(int32_t dtype, int32_t op) {
  const Accumulator accumulator = dtypeOf(dtype).accumulator;
  if (op < KL_REDUCE_SUM || op > KL_REDUCE_PREMUL_SUM) {
    raise(KL_ERROR_VALUE, -1, "collectives know no reduction of number %d", op);
  }
  const bool scales = op == KL_REDUCE_AVG || op == KL_REDUCE_PREMUL_SUM;
  if (kernels().combine[accumulator][combineOf(op)] == nullptr || (scales && accumulator == kAccBool)) {
    raise(KL_ERROR_TYPE, -1, "the reduction %s is not defined for %s", reduceOpName(op), dtypeName(dtype));
  }
}

double readFactor(const void* element, int32_t dtype) {
  double value[2] = {0, 0};
  switch (dtype) {
    case KL_UINT8:
      return *static_cast<const uint8_t*>(element);
    case KL_INT8:
      return *static_cast<const int8_t*>(element);
    case KL_INT16:
      return *static_cast<const int16_t*>(element);
    case KL_INT32:
      return *static_cast<const int32_t*>(element);
    case KL_INT64:
      return static_cast<double>(*static_cast<const int64_t*>(element));
    case KL_UINT16:
      return *static_cast<const uint16_t*>(element);
    case KL_UINT32:
      return *static_cast<const uint32_t*>(element);
    case KL_UINT64:
      return static_cast<double>(*static_cast<const uint64_t*>(element));
    case KL_FLOAT32:
    case KL_COMPLEX64:
      return *static_cast<const float*>(element);
    case KL_FLOAT64:
    case KL_COMPLEX128:
      return *static_cast<const double*>(element);
    default: {
      const Plan plan(dtype, KL_REDUCE_SUM);
      if (plan.load == nullptr) {
        raise(KL_ERROR_TYPE, -1, "a factor of PREMUL_SUM cannot be of dtype %s", dtypeName(dtype));
      }
      plan.load(value, element, 1);
      float first;
      std::memcpy(&first, value, sizeof(first));
      return first;
    }
  }
}

namespace {

// Elements [at, at + n) of every input, through the accumulator.
void reduceBlock(
    const Reduction& what,
    const Plan& plan,
    void* const* outputs,
    uint32_t noutputs,
    size_t at,
    size_t n) {
  const ReduceKernels& k = kernels();
  const auto combine = k.combine[plan.accumulator][combineOf(what.op)];
  alignas(64) char accumulator[kBlockBytes];
  alignas(64) char converted[kBlockBytes];
  const bool scales = what.op == KL_REDUCE_PREMUL_SUM;
  for (uint32_t rank = 0; rank < what.nranks; ++rank) {
    const void* input = static_cast<const char*>(what.inputs[rank]) + at;
    void* first = rank == 0 ? accumulator : converted;
    if (plan.load != nullptr) {
      plan.load(first, input, n * plan.parts);
    } else if (rank == 0 || scales) {
      std::memcpy(first, input, n * plan.bytes);
    }
    if (scales) {
      k.scale[plan.accumulator](first, what.factors[rank], n);
    }
    if (rank != 0) {
      combine(accumulator, accumulator, plan.load != nullptr || scales ? converted : input, n);
    }
    if (what.rounds_each && plan.store != nullptr && plan.accumulator != kAccInt64) {
      plan.store(converted, accumulator, n * plan.parts);
      plan.load(accumulator, converted, n * plan.parts);
    }
  }
  if (what.op == KL_REDUCE_AVG) {
    k.divide[plan.accumulator](accumulator, what.nranks, n);
  }
  const void* result = accumulator;
  if (plan.store != nullptr) {
    plan.store(converted, accumulator, n * plan.parts);
    result = converted;
  }
  for (uint32_t i = 0; i < noutputs; ++i) {
    std::memcpy(static_cast<char*>(outputs[i]) + at, result, n * plan.bytes);
  }
}

// The same where the inputs can be combined as they are: nothing passes through a buffer, and the last step writes the
// first output. It may be one of the inputs, whose elements have been read by then.
void combineBlock(
    const Reduction& what,
    const Plan& plan,
    void* const* outputs,
    uint32_t noutputs,
    size_t at,
    size_t n) {
  const auto combine = kernels().combine[plan.accumulator][combineOf(what.op)];
  alignas(64) char accumulator[kBlockBytes];
  char* const output = static_cast<char*>(outputs[0]) + at;
  const void* sum = static_cast<const char*>(what.inputs[0]) + at;
  for (uint32_t rank = 1; rank < what.nranks; ++rank) {
    char* to = rank + 1 == what.nranks ? output : accumulator;
    combine(to, sum, static_cast<const char*>(what.inputs[rank]) + at, n);
    sum = to;
  }
  for (uint32_t i = 1; i < noutputs; ++i) {
    std::memcpy(static_cast<char*>(outputs[i]) + at, output, n * plan.bytes);
  }
}

// The same for sums of halves, which pass through a buffer of floats where there are more than two.
void addHalvesBlock(
    const Reduction& what,
    const Plan& plan,
    void* const* outputs,
    uint32_t noutputs,
    size_t at,
    size_t n) {
  const ReduceKernels::HalfSum& k = *plan.half_sum;
  const auto input = [&](uint32_t rank) { return static_cast<const char*>(what.inputs[rank]) + at; };
  alignas(64) char accumulator[kBlockBytes];
  char* const output = static_cast<char*>(outputs[0]) + at;
  const size_t count = n * plan.parts;
  if (what.nranks == 2) {
    k.pair(output, input(0), input(1), count);
  } else {
    k.first(accumulator, input(0), input(1), count);
    for (uint32_t rank = 2; rank + 1 < what.nranks; ++rank) {
      k.further(accumulator, accumulator, input(rank), count);
    }
    k.last(output, accumulator, input(what.nranks - 1), count);
  }
  for (uint32_t i = 1; i < noutputs; ++i) {
    std::memcpy(static_cast<char*>(outputs[i]) + at, output, n * plan.bytes);
  }
}

} // namespace

void reduce(const Reduction& what, void* const* outputs, uint32_t noutputs, uint64_t count) {
  const Plan plan(what.dtype, what.op);
  const bool is_plain =
      plan.load == nullptr && what.op != KL_REDUCE_PREMUL_SUM && what.op != KL_REDUCE_AVG && what.nranks > 1;
  const bool adds_halves = plan.half_sum != nullptr && what.op == KL_REDUCE_SUM && what.nranks > 1 && !what.rounds_each;
  const auto step = is_plain ? combineBlock : adds_halves ? addHalvesBlock : reduceBlock;
  const uint64_t block = kBlockBytes / plan.accumulator_bytes;
  for (uint64_t start = 0; start < count; start += block) {
    step(what, plan, outputs, noutputs, start * plan.bytes, std::min(block, count - start));
  }
}

} // namespace kunlun::sim
