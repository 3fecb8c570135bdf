// Finding waits: a mode in which every operation that makes the host wait for the device warns or raises.
#include "runtime/SyncDebug.h"

#include <c10/util/Exception.h>

namespace kunlun {

namespace detail {

std::atomic<SyncDebugMode> sync_debug_mode{SyncDebugMode::Default};

void reportSynchronization(const char* what) {
  if (syncDebugMode() == SyncDebugMode::Error) {
    TORCH_CHECK(false, "called a synchronizing kunlun operation: ", what);
  }
  TORCH_WARN("called a synchronizing kunlun operation: ", what);
}

} // namespace detail

void setSyncDebugMode(SyncDebugMode mode) noexcept {
  detail::sync_debug_mode.store(mode, std::memory_order_relaxed);
}

} // namespace kunlun
