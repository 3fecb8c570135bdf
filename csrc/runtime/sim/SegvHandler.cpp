// The SIGSEGV handler that explains an access of host code to device memory.
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <mutex>

#include "runtime/sim/Protect.h"
#include "runtime/sim/Status.h"

namespace kunlun::sim {
namespace {

struct Range {
  std::atomic<uintptr_t> base{0};
  std::atomic<int> device{0};
  std::atomic<uintptr_t> bytes{0}; // written last: 0 until the range is valid
};
constexpr int kMaxArenas = 64;
constexpr int kMaxImported = 64;
// All that the handler reads: arenas by device, then imported memory.
Range ranges[kMaxArenas + kMaxImported];
std::mutex imported_lock; // guards the choice of a place for imported memory
struct sigaction previous;

// A few characters at a time into a fixed buffer: nothing that a signal handler may not do.
class Message {
 public:
  Message& text(const char* s) {
    while (*s != '\0' && length_ < sizeof(buffer_)) {
      buffer_[length_++] = *s++;
    }
    return *this;
  }
  Message& number(uintptr_t value, unsigned radix) {
    char digits[24];
    int count = 0;
    do {
      digits[count++] = "0123456789abcdef"[value % radix];
      value /= radix;
    } while (value != 0);
    while (count > 0 && length_ < sizeof(buffer_)) {
      buffer_[length_++] = digits[--count];
    }
    return *this;
  }
  void print() const {
    size_t done = 0;
    while (done < length_) {
      const ssize_t written = write(STDERR_FILENO, buffer_ + done, length_ - done);
      if (written <= 0) {
        return; // stderr is closed or full: the process ends all the same
      }
      done += static_cast<size_t>(written);
    }
  }

 private:
  char buffer_[640];
  size_t length_ = 0;
};

// Address of the access. Where another handler (Python's faulthandler) ran first and raised the signal again, siginfo
// no longer has it, but the kernel saves the thread's last faulting address with every signal frame.
uintptr_t faultAddress(const siginfo_t* info, const void* context) {
  if (info->si_code > 0) {
    return reinterpret_cast<uintptr_t>(info->si_addr);
  }
  [[maybe_unused]] const auto* user = static_cast<const ucontext_t*>(context);
#if defined(__x86_64__)
  return static_cast<uintptr_t>(user->uc_mcontext.gregs[REG_CR2]);
#elif defined(__aarch64__)
  return static_cast<uintptr_t>(user->uc_mcontext.fault_address);
#else
  return 0;
#endif
}

// A kernel, or with protection off any code, touched addresses that have no memory. Those of the host's code that may
// touch none of them are told apart by the signal's code, where protection is by keys.
bool isUnmapped(const siginfo_t* info) {
  return info->si_code == SEGV_ACCERR && detail::protection.load(std::memory_order_relaxed) != Protection::Pages;
}

void explain(uintptr_t address, bool unmapped) {
  for (const Range& range : ranges) {
    const uintptr_t bytes = range.bytes.load(std::memory_order_acquire);
    const uintptr_t base = range.base.load(std::memory_order_relaxed);
    const int device = range.device.load(std::memory_order_relaxed);
    if (bytes == 0 || address < base || address >= base + bytes) {
      continue;
    }
    Message message;
    message.text(
        unmapped ? "kunlun: kunlun addresses without memory were touched at 0x"
                 : "kunlun: host code touched kunlun device memory at 0x");
    message.number(address, 16);
    message.text(" (device ").number(static_cast<uintptr_t>(device), 10);
    message.text(", offset 0x").number(address - base, 16).text(").\n");
    if (unmapped) {
      message.text("kunlun: their memory has been given back, as by a memory pool that sleeps: wake it up first.\n");
      message.text("kunlun: the process ends by SIGSEGV.\n");
      message.print();
      return;
    }
    if (phase.load(std::memory_order_relaxed) == Phase::Forked) {
      message.text(
          "kunlun: this process was forked after the device was started; device memory does not exist here.\n");
    } else {
      message.text("kunlun: only the chip may use device memory; copy the tensor to the host first, with .cpu().\n");
    }
    message.text("kunlun: the process ends by SIGSEGV");
    if (detail::protection.load(std::memory_order_relaxed) != Protection::Off) {
      message.text("; KUNLUN_SIM_PROTECT=off turns this check off");
    }
    message.text(".\n");
    message.print();
    return;
  }
}

void onSegv(int number, siginfo_t* info, void* context) {
  explain(faultAddress(info, context), isUnmapped(info));
  if ((previous.sa_flags & SA_SIGINFO) != 0) {
    previous.sa_sigaction(number, info, context);
    return;
  }
  if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    previous.sa_handler(number);
    return;
  }
  // The default action: a fault happens again on return, a signal that was sent has to be sent again.
  struct sigaction by_default{};
  by_default.sa_handler = SIG_DFL;
  sigaction(number, &by_default, nullptr);
  if (info->si_code <= 0) {
    ::raise(number);
  }
}

} // namespace

void installSegvHandler() {
  struct sigaction action{};
  action.sa_sigaction = onSegv;
  // The alternative stack is used where the thread has one.
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGSEGV, &action, &previous);
}

namespace {

void announce(Range& range, const char* base, uint64_t bytes, int device) {
  range.base.store(reinterpret_cast<uintptr_t>(base), std::memory_order_relaxed);
  range.device.store(device, std::memory_order_relaxed);
  range.bytes.store(bytes, std::memory_order_release);
}

} // namespace

void announceArena(const Arena& arena) {
  announce(ranges[arena.device()], arena.base(), arena.span(), arena.device());
}

void announceImported(const char* base, uint64_t bytes, int device) {
  std::lock_guard lock(imported_lock);
  for (int i = kMaxArenas; i < kMaxArenas + kMaxImported; ++i) {
    if (ranges[i].bytes.load(std::memory_order_relaxed) == 0) {
      announce(ranges[i], base, bytes, device);
      return;
    }
  }
}

void withdrawImported(const char* base) {
  std::lock_guard lock(imported_lock);
  for (int i = kMaxArenas; i < kMaxArenas + kMaxImported; ++i) {
    if (ranges[i].base.load(std::memory_order_relaxed) == reinterpret_cast<uintptr_t>(base)) {
      ranges[i].bytes.store(0, std::memory_order_release);
    }
  }
}

} // namespace kunlun::sim
