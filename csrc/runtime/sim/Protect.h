// Who may touch device memory: the chip's threads, and nobody else.
#pragma once

#include <atomic>
#include <cstdint>

#include "runtime/sim/Arena.h"

namespace kunlun::sim {

enum class Protection : uint8_t {
  Off,
  Keys, // memory protection keys: a right of each thread, at no cost per item
  Pages // mprotect around running items: slow, and host code passes while any item runs. Only on request.
};

// What KUNLUN_SIM_PROTECT means on this machine and in this process. Starts nothing.
Protection plannedProtection();
// Why protection is off although it was left to us, "" otherwise.
const char* protectionNote();

// At the start of the chip: takes a key where keys are used, and installs the SIGSEGV handler that explains, which also
// knows addresses without memory and forked children.
void startProtection();
// Puts a new arena under protection.
void protectArena(const Arena& arena);
// The same for memory of another process that has been mapped here, until it is about to be unmapped.
void protectImported(char* base, uint64_t bytes, int device);
void forgetImported(char* base);
// The same for another process's device memory that is mapped here: it gets the key, where keys are used.
void protectMapping(void* base, uint64_t bytes);
// First thing on a chip thread. Threads that it creates, such as its OpenMP team, inherit its rights.
void grantThread();

namespace detail {
inline std::atomic<Protection> protection{Protection::Off};
void enterPages();
void leavePages();
void enterGuest();
void leaveGuest();
} // namespace detail

// Access of a chip thread while it runs items.
class Access {
 public:
  void enter() {
    if (!held_ && detail::protection.load(std::memory_order_relaxed) == Protection::Pages) [[unlikely]] {
      detail::enterPages();
      held_ = true;
    }
  }
  // Returns whether there was anything to leave.
  bool leave() {
    if (held_) [[unlikely]] {
      held_ = false;
      detail::leavePages();
      return true;
    }
    return false;
  }

 private:
  bool held_ = false;
};

// Access of another thread for the length of one item that it runs itself. Such an item starts no thread: one that it
// started would inherit the rights and keep them.
class GuestAccess {
 public:
  GuestAccess() {
    if (detail::protection.load(std::memory_order_relaxed) != Protection::Off) [[unlikely]] {
      detail::enterGuest();
    }
  }
  ~GuestAccess() {
    if (detail::protection.load(std::memory_order_relaxed) != Protection::Off) [[unlikely]] {
      detail::leaveGuest();
    }
  }
  GuestAccess(const GuestAccess&) = delete;
  GuestAccess& operator=(const GuestAccess&) = delete;
};

// Installs the handler that says what happened when host code touches device memory (SegvHandler.cpp).
void installSegvHandler();
// Makes the handler know an arena.
void announceArena(const Arena& arena);
// The same for imported memory; the handler knows the first 64 of them.
void announceImported(const char* base, uint64_t bytes, int device);
void withdrawImported(const char* base);

} // namespace kunlun::sim
