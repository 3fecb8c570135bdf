// The chip interface's frozen dtype numbers against ATen's, both ways.
#include "runtime/frame/DTypes.h"

#include <array>
#include <utility>

#include <c10/util/Exception.h>

namespace kunlun::frame {

namespace {

using c10::ScalarType;

constexpr std::array<std::pair<ScalarType, kl_dtype>, KL_DTYPE_COUNT> kPairs{{
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

constexpr size_t kScalarTypes = static_cast<size_t>(ScalarType::NumOptions) + 1;

// Both directions are table lookups: this runs for every tensor of every launch.
constexpr auto kToChip = [] {
  std::array<int8_t, kScalarTypes> table{};
  for (auto& entry : table) {
    entry = -1;
  }
  for (const auto& [torch, chip] : kPairs) {
    table[static_cast<size_t>(torch)] = static_cast<int8_t>(chip);
  }
  return table;
}();

constexpr auto kFromChip = [] {
  std::array<ScalarType, KL_DTYPE_COUNT> table{};
  for (const auto& [torch, chip] : kPairs) {
    table[static_cast<size_t>(chip)] = torch;
  }
  return table;
}();

} // namespace

int32_t toChipDtype(c10::ScalarType dtype) {
  const auto number = kToChip[static_cast<size_t>(dtype)];
  TORCH_CHECK_TYPE(number >= 0, "kunlun: tensors of dtype ", c10::toString(dtype), " cannot cross the chip interface");
  return number;
}

c10::ScalarType fromChipDtype(int32_t dtype) {
  TORCH_CHECK_VALUE(
      dtype >= 0 && dtype < KL_DTYPE_COUNT, "kunlun: the chip driver gave dtype number ", dtype, ", which is unknown");
  return kFromChip[static_cast<size_t>(dtype)];
}

int64_t toChipMemoryFormat(c10::MemoryFormat format) {
  switch (format) {
    case c10::MemoryFormat::Contiguous:
      return 0;
    case c10::MemoryFormat::Preserve:
      return 1;
    case c10::MemoryFormat::ChannelsLast:
      return 2;
    case c10::MemoryFormat::ChannelsLast3d:
      return 3;
    default:
      TORCH_CHECK_VALUE(false, "kunlun: unknown memory format ", format);
  }
}

c10::MemoryFormat fromChipMemoryFormat(int64_t format) {
  constexpr std::array kFormats{
      c10::MemoryFormat::Contiguous,
      c10::MemoryFormat::Preserve,
      c10::MemoryFormat::ChannelsLast,
      c10::MemoryFormat::ChannelsLast3d};
  TORCH_CHECK_VALUE(format >= 0 && format < 4, "kunlun: unknown memory format number ", format);
  return kFormats[static_cast<size_t>(format)];
}

} // namespace kunlun::frame
