// Whether hot operators may skip torch's autograd kernel where it has nothing to record.
#pragma once

#include <atomic>

namespace kunlun::aten {

// On until an operator is routed to the boxed tier, which lies below autograd.
inline std::atomic<bool> autograd_shortcuts{true};

} // namespace kunlun::aten
