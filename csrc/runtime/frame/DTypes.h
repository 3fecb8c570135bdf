// The chip interface's frozen dtype numbers against ATen's, both ways.
#pragma once

#include <array>
#include <utility>

#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>

#include "runtime/chip/frame.h"

namespace kunlun::frame {

namespace detail {

using c10::ScalarType;

inline constexpr std::array<std::pair<ScalarType, kl_dtype>, KL_DTYPE_COUNT> kPairs{{
    {ScalarType::Undefined, KL_DTYPE_UNDEFINED},
    {ScalarType::Bool, KL_BOOL},
    {ScalarType::Byte, KL_UINT8},
    {ScalarType::Char, KL_INT8},
    {ScalarType::Short, KL_INT16},
    {ScalarType::Int, KL_INT32},
    {ScalarType::Long, KL_INT64},
    {ScalarType::UInt16, KL_UINT16},
    {ScalarType::UInt32, KL_UINT32},
    {ScalarType::UInt64, KL_UINT64},
    {ScalarType::Half, KL_FLOAT16},
    {ScalarType::BFloat16, KL_BFLOAT16},
    {ScalarType::Float, KL_FLOAT32},
    {ScalarType::Double, KL_FLOAT64},
    {ScalarType::ComplexHalf, KL_COMPLEX32},
    {ScalarType::ComplexFloat, KL_COMPLEX64},
    {ScalarType::ComplexDouble, KL_COMPLEX128},
    {ScalarType::Float8_e4m3fn, KL_FLOAT8_E4M3FN},
    {ScalarType::Float8_e5m2, KL_FLOAT8_E5M2},
    {ScalarType::Float8_e4m3fnuz, KL_FLOAT8_E4M3FNUZ},
    {ScalarType::Float8_e5m2fnuz, KL_FLOAT8_E5M2FNUZ},
    {ScalarType::Float8_e8m0fnu, KL_FLOAT8_E8M0FNU},
}};

inline constexpr size_t kScalarTypes = static_cast<size_t>(ScalarType::NumOptions) + 1;

// Both directions are table lookups: this runs for every tensor of every launch.
inline constexpr auto kToChip = [] {
  std::array<int8_t, kScalarTypes> table{};
  for (auto& entry : table) {
    entry = -1;
  }
  for (const auto& [torch, chip] : kPairs) {
    table[static_cast<size_t>(torch)] = static_cast<int8_t>(chip);
  }
  return table;
}();

inline constexpr auto kFromChip = [] {
  std::array<ScalarType, KL_DTYPE_COUNT> table{};
  for (const auto& [torch, chip] : kPairs) {
    table[static_cast<size_t>(chip)] = torch;
  }
  return table;
}();

[[noreturn]] void refuseDtype(c10::ScalarType dtype);

} // namespace detail

// Throws TypeError for dtypes the interface has no number for (quantised, bits, sub-byte).
inline int32_t toChipDtype(c10::ScalarType dtype) {
  const auto number = detail::kToChip[static_cast<size_t>(dtype)];
  if (number < 0) [[unlikely]] {
    detail::refuseDtype(dtype);
  }
  return number;
}
c10::ScalarType fromChipDtype(int32_t dtype);

int64_t toChipMemoryFormat(c10::MemoryFormat format);
c10::MemoryFormat fromChipMemoryFormat(int64_t format);

} // namespace kunlun::frame
