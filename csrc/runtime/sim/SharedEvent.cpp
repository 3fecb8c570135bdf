// The part of an event that several processes see.
#include "runtime/sim/SharedEvent.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "runtime/sim/Device.h"

namespace kunlun::sim {
namespace {

constexpr uint32_t kMagic = 0x6b6c6531; // "kle1"
// Recordings of one event that may be under way at a time, in all processes together.
constexpr uint64_t kSlots = 64;
constexpr long kLookNanoseconds = 20'000'000;

struct Handle {
  uint32_t magic;
  int32_t fd; // in the process that made the handle
  ProcessId owner;
  uint64_t inode;
  int32_t physical_id;
};
static_assert(sizeof(Handle) <= 64);

int physicalId(int device) {
  kl_device_properties properties{};
  deviceProperties(device, &properties);
  return properties.physical_id;
}

} // namespace

// Zero is the state of a fresh event, so the file needs no initialisation.
struct SharedEvent::Page {
  std::atomic<uint64_t> begun;   // newest generation
  std::atomic<uint32_t> changes; // the futex word: grows with every finished recording
  struct Slot {
    std::atomic<uint64_t> done;   // newest finished generation of this slot
    std::atomic<uint64_t> failed; // newest one that carried a failure
    // Who records, a ProcessId. It is that of the generation `named`, which is written last.
    std::atomic<uint64_t> start;
    std::atomic<int32_t> pid;
    std::atomic<uint64_t> named;
  } slots[kSlots];
};

std::shared_ptr<SharedEvent> SharedEvent::map(int device, int fd) {
  static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);
  void* page = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (page == MAP_FAILED) {
    const int reason = errno;
    close(fd);
    raise(KL_ERROR_RUNTIME, device, "cannot map an event that is shared between processes: %s", std::strerror(reason));
  }
  return std::shared_ptr<SharedEvent>(new SharedEvent(fd, static_cast<Page*>(page)));
}

std::shared_ptr<SharedEvent> SharedEvent::create(int device) {
  const int fd = memfd_create("kunlun-event", MFD_CLOEXEC);
  if (fd < 0) {
    raise(KL_ERROR_RUNTIME, device, "cannot make an event for several processes: %s", std::strerror(errno));
  }
  if (ftruncate(fd, sizeof(Page)) != 0) {
    const int reason = errno;
    close(fd);
    raise(KL_ERROR_RUNTIME, device, "cannot make an event for several processes: %s", std::strerror(reason));
  }
  return map(device, fd);
}

std::shared_ptr<SharedEvent> SharedEvent::open(int device, const char bytes[64]) {
  Handle handle{};
  std::memcpy(&handle, bytes, sizeof(handle));
  if (handle.magic != kMagic) {
    raise(KL_ERROR_VALUE, device, "this is no handle of an event, or one of another version of the driver");
  }
  if (handle.physical_id != physicalId(device)) {
    raise(
        KL_ERROR_VALUE,
        device,
        "the event is of the card with physical number %d, but kunlun device %d is number %d here",
        handle.physical_id,
        device,
        physicalId(device));
  }
  const char* why = nullptr;
  const int fd = openOf(handle.owner, handle.fd, handle.inode, &why);
  if (fd < 0) {
    raise(KL_ERROR_RUNTIME, device, "cannot open an event of process %d: %s", handle.owner.pid, why);
  }
  return map(device, fd);
}

SharedEvent::~SharedEvent() {
  munmap(page_, sizeof(Page));
  close(fd_);
}

void SharedEvent::exportHandle(int device, char handle[64]) const {
  const Handle filled{kMagic, fd_, currentProcess(), inodeOf(fd_), physicalId(device)};
  std::memset(handle, 0, 64);
  std::memcpy(handle, &filled, sizeof(filled));
}

uint64_t SharedEvent::newest() const {
  return page_->begun.load(std::memory_order_acquire);
}

uint64_t SharedEvent::begin() {
  static const ProcessId self = currentProcess();
  for (uint64_t last = newest();;) {
    const uint64_t next = last + 1;
    auto& slot = page_->slots[next % kSlots];
    if (next > kSlots && slot.done.load(std::memory_order_acquire) + kSlots < next) {
      raise(
          KL_ERROR_RUNTIME,
          -1,
          "an event that is shared between processes was recorded %llu times while the first of these is still pending",
          static_cast<unsigned long long>(kSlots));
    }
    if (page_->begun.compare_exchange_weak(last, next, std::memory_order_acq_rel)) {
      slot.start.store(self.start, std::memory_order_relaxed);
      slot.pid.store(self.pid, std::memory_order_relaxed);
      slot.named.store(next, std::memory_order_release);
      return next;
    }
  }
}

void SharedEvent::finish(uint64_t generation, bool failed) {
  auto& slot = page_->slots[generation % kSlots];
  if (failed) {
    slot.failed.store(generation, std::memory_order_relaxed);
  }
  slot.done.store(generation, std::memory_order_release);
  page_->changes.fetch_add(1, std::memory_order_acq_rel);
  syscall(SYS_futex, &page_->changes, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool SharedEvent::isDone(uint64_t generation) const {
  return page_->slots[generation % kSlots].done.load(std::memory_order_acquire) >= generation;
}

bool SharedEvent::waitFor(uint64_t generation, const std::function<bool()>& give_up, int device, Fault* fault) const {
  auto& slot = page_->slots[generation % kSlots];
  while (!isDone(generation)) {
    const uint32_t seen = page_->changes.load(std::memory_order_acquire);
    if (isDone(generation)) {
      break;
    }
    const timespec pause{0, kLookNanoseconds};
    syscall(SYS_futex, &page_->changes, FUTEX_WAIT, seen, &pause, nullptr, 0);
    if (give_up()) {
      return false;
    }
    if (slot.named.load(std::memory_order_acquire) != generation) {
      continue; // it is about to be written
    }
    const ProcessId recorder{slot.pid.load(std::memory_order_relaxed), slot.start.load(std::memory_order_relaxed)};
    if (!isAlive(recorder) && !isDone(generation)) {
      char text[128];
      std::snprintf(
          text, sizeof(text), "process %d, which had recorded the event that was waited for, has ended", recorder.pid);
      *fault = std::make_shared<const kl_error>(makeError(KL_ERROR_RUNTIME, device, "event", 0, text));
      return true;
    }
  }
  if (slot.failed.load(std::memory_order_acquire) == generation) {
    *fault = std::make_shared<const kl_error>(makeError(
        KL_ERROR_RUNTIME,
        device,
        "event",
        0,
        "work that the event stands for has failed in the process that recorded it"));
  }
  return true;
}

} // namespace kunlun::sim
