// What no registration above covers: custom operators with a CPU kernel.
#include <torch/library.h>

#include <algorithm>

#include "aten/boxed/Boxed.h"

namespace kunlun::aten {

namespace {

// Operators of quantised modules, such as quantized::linear. Weights that are packed stay objects of the host: an
// operator that makes one would leave it with memory of the device inside.
void quantizedFallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& returns = op.schema().returns();
  TORCH_CHECK_NOT_IMPLEMENTED(
      std::none_of(
          returns.begin(),
          returns.end(),
          [](const c10::Argument& result) { return result.type()->kind() == c10::TypeKind::ClassType; }),
      "the operator '",
      qualifiedName(op),
      "' packs weights, which can be done on the CPU only: quantise the module there, and move it to kunlun "
      "afterwards");
  boxedTier(op, stack);
}

} // namespace

TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&quantizedFallback>());
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&boxedTier>());
}
TORCH_LIBRARY_IMPL(_, SparsePrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&boxedTier>());
}
TORCH_LIBRARY_IMPL(_, SparseCsrPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&boxedTier>());
}

// A composite of torch whose last step is a kernel that is looked up by device: all of it runs in the boxed tier.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("kaiser_window", torch::CppFunction::makeFromBoxedFunction<&boxedTier>());
  m.impl("kaiser_window.periodic", torch::CppFunction::makeFromBoxedFunction<&boxedTier>());
  m.impl("kaiser_window.beta", torch::CppFunction::makeFromBoxedFunction<&boxedTier>());
}

} // namespace kunlun::aten
