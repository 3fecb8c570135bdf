// What the vendor's library of collectives can move and reduce.
#include "runtime/xre/collectives/Types.h"

#include <array>

#include "runtime/xre/Status.h"

namespace kunlun::xre {
namespace {

// How the elements of a dtype may be combined as the vendor's type of the table below.
enum class Arithmetic : uint8_t {
  Full,    // the type itself
  Modular, // another sign: sums and products have the same bits, comparisons do not
  Logical, // bool, of which every byte is 0 or 1
  Linear,  // complex: sums and averages are those of the parts
  None
};

struct DType {
  const char* name;
  uint8_t bytes;
  Carried carried;
  Arithmetic arithmetic;
  const char* instead; // a dtype to convert to
};

constexpr std::array<DType, KL_DTYPE_COUNT> kDTypes{{
    {"undefined", 0, {kNativeUInt8, 0}, Arithmetic::None, ""},
    {"bool", 1, {kNativeUInt8, 1}, Arithmetic::Logical, "uint8"},
    {"uint8", 1, {kNativeUInt8, 1}, Arithmetic::Full, "int32"},
    // Whether its sums of 8 bits wrap around or saturate is not documented, so signed ones are not taken for unsigned.
    {"int8", 1, {kNativeUInt8, 1}, Arithmetic::None, "int32"},
    {"int16", 2, {kNativeUInt8, 2}, Arithmetic::None, "int32"},
    {"int32", 4, {kNativeInt32, 1}, Arithmetic::Full, "float32"},
    {"int64", 8, {kNativeInt64, 1}, Arithmetic::Full, "float64"},
    {"uint16", 2, {kNativeUInt8, 2}, Arithmetic::None, "int32"},
    {"uint32", 4, {kNativeInt32, 1}, Arithmetic::Modular, "int64"},
    {"uint64", 8, {kNativeInt64, 1}, Arithmetic::Modular, "int64"},
    {"float16", 2, {kNativeFloat16, 1}, Arithmetic::Full, "float32"},
    {"bfloat16", 2, {kNativeBFloat16, 1}, Arithmetic::Full, "float32"},
    {"float32", 4, {kNativeFloat, 1}, Arithmetic::Full, "float64"},
    {"float64", 8, {kNativeFloat64, 1}, Arithmetic::Full, "float32"},
    {"complex32", 4, {kNativeFloat16, 2}, Arithmetic::Linear, "complex64"},
    {"complex64", 8, {kNativeFloat, 2}, Arithmetic::Linear, "complex128"},
    {"complex128", 16, {kNativeFloat64, 2}, Arithmetic::Linear, "complex64"},
    {"float8_e4m3fn", 1, {kNativeUInt8, 1}, Arithmetic::None, "bfloat16"},
    {"float8_e5m2", 1, {kNativeUInt8, 1}, Arithmetic::None, "bfloat16"},
    {"float8_e4m3fnuz", 1, {kNativeUInt8, 1}, Arithmetic::None, "bfloat16"},
    {"float8_e5m2fnuz", 1, {kNativeUInt8, 1}, Arithmetic::None, "bfloat16"},
    {"float8_e8m0fnu", 1, {kNativeUInt8, 1}, Arithmetic::None, "bfloat16"},
}};

constexpr std::array<const char*, 9> kOps{"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"};

const DType& dtypeOf(int32_t dtype) {
  if (dtype <= KL_DTYPE_UNDEFINED || dtype >= KL_DTYPE_COUNT) {
    raise(KL_ERROR_TYPE, -1, "collectives know no dtype of number %d", dtype);
  }
  return kDTypes[static_cast<size_t>(dtype)];
}

bool isBitwise(int32_t op) {
  return op == KL_REDUCE_BAND || op == KL_REDUCE_BOR || op == KL_REDUCE_BXOR;
}

bool isFloat(int32_t dtype) {
  return (dtype >= KL_FLOAT16 && dtype <= KL_FLOAT64) || dtype >= KL_FLOAT8_E4M3FN;
}

bool isComplex(int32_t dtype) {
  return dtype >= KL_COMPLEX32 && dtype <= KL_COMPLEX128;
}

bool isDefined(int32_t dtype, int32_t op) {
  if (dtype == KL_BOOL) {
    return op != KL_REDUCE_AVG && op != KL_REDUCE_PREMUL_SUM;
  }
  if (isComplex(dtype)) {
    return !isBitwise(op) && op != KL_REDUCE_MIN && op != KL_REDUCE_MAX;
  }
  return !(isFloat(dtype) && isBitwise(op));
}

[[noreturn]] void refuse(const DType& dtype, int32_t op, const char* what_to_do) {
  raise(
      KL_ERROR_NOT_IMPLEMENTED,
      -1,
      "the vendor's library of collectives cannot reduce %s with %s; %s",
      dtype.name,
      kOps[static_cast<size_t>(op)],
      what_to_do);
}

// The vendor's operation for a bool, whose bytes are 0 or 1.
NativeOp logicalOp(const DType& dtype, int32_t op) {
  switch (op) {
    case KL_REDUCE_SUM:
    case KL_REDUCE_MAX:
    case KL_REDUCE_BOR:
      return kNativeMax;
    case KL_REDUCE_PRODUCT:
    case KL_REDUCE_MIN:
    case KL_REDUCE_BAND:
      return kNativeMin;
    default:
      refuse(dtype, op, "convert it to int32, reduce with SUM and take the result modulo 2");
  }
}

} // namespace

Carried carriedForMove(int32_t dtype) {
  return dtypeOf(dtype).carried;
}

uint64_t bytesOf(NativeType type) {
  constexpr std::array<uint8_t, kNativeTypes> kBytes{1, 4, 4, 8, 2, 8, 2};
  return kBytes[static_cast<size_t>(type)];
}

uint64_t bytesOf(int32_t dtype) {
  return dtypeOf(dtype).bytes;
}

Reduced carriedForReduction(int32_t dtype, const kl_reduction& reduction) {
  const DType& known = dtypeOf(dtype);
  const int32_t op = reduction.op;
  if (op < KL_REDUCE_SUM || op > KL_REDUCE_PREMUL_SUM) {
    raise(KL_ERROR_VALUE, -1, "collectives know no reduction of number %d", op);
  }
  if (!isDefined(dtype, op)) {
    raise(KL_ERROR_TYPE, -1, "the reduction %s is not defined for %s", kOps[static_cast<size_t>(op)], known.name);
  }
  if (known.arithmetic == Arithmetic::Logical) {
    return {known.carried, logicalOp(known, op)};
  }
  if (isBitwise(op)) {
    refuse(known, op, "gather the tensors and combine them on the device");
  }
  if (op == KL_REDUCE_PREMUL_SUM) {
    refuse(known, op, "multiply the tensor by the factor and reduce with SUM");
  }
  if (op == KL_REDUCE_AVG && !isFloat(dtype) && !isComplex(dtype)) {
    refuse(known, op, "reduce with SUM and divide by the number of ranks");
  }
  const bool is_sum = op == KL_REDUCE_SUM || op == KL_REDUCE_AVG;
  const bool is_modular = op == KL_REDUCE_SUM || op == KL_REDUCE_PRODUCT;
  if (known.arithmetic == Arithmetic::None || (known.arithmetic == Arithmetic::Modular && !is_modular) ||
      (known.arithmetic == Arithmetic::Linear && !is_sum)) {
    if (known.arithmetic == Arithmetic::Linear) {
      refuse(known, op, "gather the tensors and multiply them on the device");
    }
    raise(
        KL_ERROR_NOT_IMPLEMENTED,
        -1,
        "the vendor's library of collectives cannot reduce %s with %s; convert the tensor to %s",
        known.name,
        kOps[static_cast<size_t>(op)],
        known.instead);
  }
  switch (op) {
    case KL_REDUCE_SUM:
      return {known.carried, kNativeAdd};
    case KL_REDUCE_AVG:
      return {known.carried, kNativeAverage};
    case KL_REDUCE_PRODUCT:
      return {known.carried, kNativeProduct};
    case KL_REDUCE_MIN:
      return {known.carried, kNativeMin};
    default:
      return {known.carried, kNativeMax};
  }
}

} // namespace kunlun::xre
