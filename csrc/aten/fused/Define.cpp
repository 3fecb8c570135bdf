// Defines the fused operators of namespace kunlun.
#include "aten/fused/Define.h"

namespace kunlun::aten::fused::detail {

void refuseGradient(const char* name) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false,
      "kunlun::",
      name,
      " is for inference and has no derivative, but one of its arguments requires a gradient. Call it under "
      "torch.no_grad() or torch.inference_mode(), or use its composition in torch_xpu_kunlun.ops.reference, which "
      "torch can differentiate.");
}

c10::OperatorHandle find(const char* name) {
  const std::string_view full(name);
  const auto dot = full.find('.');
  const std::string overload(dot == std::string_view::npos ? std::string_view() : full.substr(dot + 1));
  return c10::Dispatcher::singleton().findSchemaOrThrow(
      ("kunlun::" + std::string(full.substr(0, dot))).c_str(), overload.c_str());
}

} // namespace kunlun::aten::fused::detail
