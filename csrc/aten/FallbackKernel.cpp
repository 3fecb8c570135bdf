// What no registration above covers: custom operators with a CPU kernel.
#include <torch/library.h>

#include "aten/boxed/Boxed.h"

namespace kunlun::aten {

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
