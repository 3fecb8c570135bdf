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

} // namespace kunlun::aten
