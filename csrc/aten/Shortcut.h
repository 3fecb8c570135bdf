// Whether hot operators may skip torch's autograd kernel where it has nothing to record.
#pragma once

#include <atomic>

#include <c10/core/DispatchKeySet.h>

namespace kunlun::aten {

// On until an operator is routed to the boxed tier, which lies below autograd.
inline std::atomic<bool> autograd_shortcuts{true};

// Whether the chip's kernel is all that waits below autograd. Function transforms, Python modes and subclasses, fake
// tensors, names and functionalization have keys there, and some of their tensors have no memory.
inline bool onlyChipBelowAutograd(c10::DispatchKeySet keys) {
  const auto below = keys & c10::after_autograd_keyset.remove(c10::DispatchKey::ADInplaceOrView);
  return below.highestPriorityTypeId() == c10::DispatchKey::PrivateUse1;
}

} // namespace kunlun::aten
