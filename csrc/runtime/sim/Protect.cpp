// Protection of device memory by memory protection keys, or by mprotect on request.
#include "runtime/sim/Protect.h"

#include <link.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <string_view>
#include <vector>

#include "runtime/Env.h"
#include "runtime/sim/Status.h"

namespace kunlun::sim {
namespace {

#if defined(PKEY_DISABLE_ACCESS) && (defined(__x86_64__) || defined(__aarch64__))
constexpr unsigned kDeny = PKEY_DISABLE_ACCESS;
int allocateKey() {
  return pkey_alloc(0, kDeny);
}
void freeKey(int key) {
  pkey_free(key);
}
int protectWithKey(void* base, size_t bytes, int key) {
  return pkey_mprotect(base, bytes, PROT_READ | PROT_WRITE, key);
}
int allowKey(int key) {
  return pkey_set(key, 0);
}
int denyKey(int key) {
  return pkey_set(key, kDeny);
}
#else
// No protection keys on this architecture.
int allocateKey() {
  errno = ENOSYS;
  return -1;
}
void freeKey(int) {}
int protectWithKey(void*, size_t, int) {
  errno = ENOSYS;
  return -1;
}
int allowKey(int) {
  errno = ENOSYS;
  return -1;
}
int denyKey(int) {
  errno = ENOSYS;
  return -1;
}
#endif

struct Region {
  char* base;
  uint64_t bytes;
  int device;
};

struct State {
  int key = -1;    // written once, before the first chip thread starts
  std::mutex lock; // guards what follows, and orders the mprotect calls
  std::vector<Region> regions;
  uint64_t running = 0; // items that run now; pages are accessible while it is not 0
};

State& state() {
  static State& value = *new State;
  return value;
}

bool haveKeys() {
  static const bool have = [] {
    const int key = allocateKey();
    if (key >= 0) {
      freeKey(key);
    }
    return key >= 0;
  }();
  return have;
}

// Only libgomp's teams belong to the thread that made them and inherit its rights. Other OpenMP runtimes share one
// pool of threads between all callers.
bool foreignOpenMP() {
  bool found = false;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* result) {
        std::string_view name = info->dlpi_name == nullptr ? "" : info->dlpi_name;
        name.remove_prefix(name.rfind('/') + 1); // npos + 1 is 0
        if (name.starts_with("libiomp") || name.starts_with("libomp")) {
          *static_cast<bool*>(result) = true;
        }
        return 0;
      },
      &found);
  return found;
}

void setRights(const Region& region, int rights) {
  if (mprotect(region.base, region.bytes, rights) != 0) {
    raise(KL_ERROR_RUNTIME, region.device, "cannot change the protection of device memory: %s", std::strerror(errno));
  }
}

} // namespace

Protection plannedProtection() {
  switch (env().sim_protect) {
    case Env::Protect::Off:
      return Protection::Off;
    case Env::Protect::On:
      return haveKeys() ? Protection::Keys : Protection::Pages;
    case Env::Protect::Auto:
      break;
  }
  return haveKeys() && !foreignOpenMP() ? Protection::Keys : Protection::Off;
}

const char* protectionNote() {
  if (env().sim_protect != Env::Protect::Auto) {
    return "";
  }
  if (!haveKeys()) {
    return "device memory is not protected from host code: this CPU or kernel has no memory protection keys";
  }
  return foreignOpenMP()
      ? "device memory is not protected from host code: an OpenMP runtime other than libgomp is loaded"
      : "";
}

void startProtection() {
  const Protection planned = plannedProtection();
  if (planned == Protection::Keys) {
    const int key = allocateKey();
    if (key < 0) {
      raise(
          KL_ERROR_RUNTIME,
          -1,
          "cannot take a memory protection key: %s; KUNLUN_SIM_PROTECT=off does without",
          std::strerror(errno));
    }
    state().key = key;
  }
  installSegvHandler(); // also without protection: addresses may have no memory
  detail::protection.store(planned, std::memory_order_release);
}

namespace {

// False when nothing is protected.
bool protect(const Region& region) {
  switch (detail::protection.load(std::memory_order_acquire)) {
    case Protection::Off:
      return false;
    case Protection::Keys:
      if (protectWithKey(region.base, region.bytes, state().key) != 0) {
        raise(KL_ERROR_RUNTIME, region.device, "cannot protect device memory with a key: %s", std::strerror(errno));
      }
      break;
    case Protection::Pages: {
      State& s = state();
      std::lock_guard lock(s.lock);
      if (s.running == 0) {
        setRights(region, PROT_NONE);
      }
      s.regions.push_back(region);
      break;
    }
  }
  return true;
}

} // namespace

void protectArena(const Arena& arena) {
  protect({arena.base(), arena.span(), arena.device()});
  announceArena(arena);
}

void protectImported(char* base, uint64_t bytes, int device) {
  if (protect({base, bytes, device})) {
    announceImported(base, bytes, device);
  }
}

void forgetImported(char* base) {
  withdrawImported(base);
  State& s = state();
  std::lock_guard lock(s.lock);
  std::erase_if(s.regions, [base](const Region& region) { return region.base == base; });
}

void protectMapping(void* base, uint64_t bytes) {
  if (detail::protection.load(std::memory_order_acquire) == Protection::Keys &&
      protectWithKey(base, bytes, state().key) != 0) {
    raise(KL_ERROR_RUNTIME, -1, "cannot protect a peer's device memory with a key: %s", std::strerror(errno));
  }
}

void grantThread() {
  if (detail::protection.load(std::memory_order_acquire) == Protection::Keys && allowKey(state().key) != 0) {
    raise(KL_ERROR_RUNTIME, -1, "cannot give a chip thread its rights to device memory: %s", std::strerror(errno));
  }
}

namespace detail {

void enterPages() {
  State& s = state();
  std::lock_guard lock(s.lock);
  if (s.running++ == 0) {
    for (const Region& region : s.regions) {
      setRights(region, PROT_READ | PROT_WRITE);
    }
  }
}

void leavePages() {
  State& s = state();
  std::lock_guard lock(s.lock);
  if (--s.running == 0) {
    for (const Region& region : s.regions) {
      setRights(region, PROT_NONE);
    }
  }
}

void enterGuest() {
  if (protection.load(std::memory_order_relaxed) == Protection::Pages) {
    enterPages();
  } else {
    grantThread();
  }
}

void leaveGuest() {
  if (protection.load(std::memory_order_relaxed) == Protection::Pages) {
    leavePages();
  } else {
    denyKey(state().key); // cannot fail where granting did not
  }
}

} // namespace detail
} // namespace kunlun::sim
