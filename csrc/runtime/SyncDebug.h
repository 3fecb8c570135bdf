// Finding waits: a mode in which every operation that makes the host wait for the device warns or raises.
#pragma once

#include <atomic>

namespace kunlun {

enum class SyncDebugMode : int { Default = 0, Warn = 1, Error = 2 };

namespace detail {
extern std::atomic<SyncDebugMode> sync_debug_mode;
void reportSynchronization(const char* what);
} // namespace detail

inline SyncDebugMode syncDebugMode() noexcept {
  return detail::sync_debug_mode.load(std::memory_order_relaxed);
}
void setSyncDebugMode(SyncDebugMode mode) noexcept;

// Called by what is about to wait, before it has done anything. As in CUDA, the calls whose only purpose is to wait for
// a device or an event are left out.
inline void noteSynchronization(const char* what) {
  if (syncDebugMode() != SyncDebugMode::Default) [[unlikely]] {
    detail::reportSynchronization(what);
  }
}

} // namespace kunlun
