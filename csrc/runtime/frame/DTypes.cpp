// The chip interface's frozen dtype numbers against ATen's, both ways.
#include "runtime/frame/DTypes.h"

#include <array>

#include <c10/util/Exception.h>

namespace kunlun::frame {

namespace detail {

void refuseDtype(c10::ScalarType dtype) {
  TORCH_CHECK_TYPE(false, "kunlun: tensors of dtype ", c10::toString(dtype), " cannot cross the chip interface");
}

} // namespace detail

c10::ScalarType fromChipDtype(int32_t dtype) {
  TORCH_CHECK_VALUE(
      dtype >= 0 && dtype < KL_DTYPE_COUNT, "kunlun: the chip driver gave dtype number ", dtype, ", which is unknown");
  return detail::kFromChip[static_cast<size_t>(dtype)];
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
