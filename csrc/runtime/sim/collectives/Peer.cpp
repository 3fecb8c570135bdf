// Mapping of peers' device memory, once for each device of each process.
#include "runtime/sim/collectives/Peer.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "runtime/sim/Device.h"
#include "runtime/sim/Protect.h"

namespace kunlun::sim {
namespace {

using FileId = std::pair<dev_t, ino_t>;

struct Known {
  std::mutex lock; // guards peers
  std::map<FileId, std::weak_ptr<Peer>> peers;
};

Known& known() {
  static Known& value = *new Known;
  return value;
}

struct stat statOf(int fd) {
  struct stat info{};
  if (fstat(fd, &info) != 0) {
    raise(KL_ERROR_RUNTIME, -1, "cannot examine a peer's device memory: %s", std::strerror(errno));
  }
  return info;
}

char* mapMemory(int fd, uint64_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (base == MAP_FAILED) {
    raise(
        KL_ERROR_OUT_OF_MEMORY,
        -1,
        "cannot map %.0f MiB of a peer's device memory: %s; set KUNLUN_SIM_MEMORY to less or raise the limit on "
        "address "
        "space (ulimit -v)",
        static_cast<double>(bytes) / (1 << 20),
        std::strerror(errno));
  }
  try {
    // As for our own device memory: children neither see it nor keep it alive.
    if (madvise(base, bytes, MADV_DONTFORK) != 0) {
      raise(KL_ERROR_RUNTIME, -1, "cannot keep a peer's device memory out of children: %s", std::strerror(errno));
    }
    madvise(base, bytes, MADV_HUGEPAGE); // only a hint
    protectMapping(base, bytes);
  } catch (...) {
    munmap(base, bytes);
    throw;
  }
  return static_cast<char*>(base);
}

// The device of this process whose memory that file is.
Device* ownDevice(const FileId& id) {
  for (int i = 0, count = deviceCount(); i < count; ++i) {
    if (Device* device = startedDevice(i)) {
      const struct stat info = statOf(device->arena().fd());
      if (FileId{info.st_dev, info.st_ino} == id) {
        return device;
      }
    }
  }
  return nullptr;
}

} // namespace

std::shared_ptr<Peer> Peer::open(Descriptor memory, Descriptor process, pid_t pid) {
  const struct stat info = statOf(memory.get());
  const FileId id{info.st_dev, info.st_ino};
  const auto bytes = static_cast<uint64_t>(info.st_size);
  std::lock_guard lock(known().lock);
  if (auto peer = known().peers[id].lock()) {
    return peer;
  }
  std::erase_if(known().peers, [&](const auto& entry) { return entry.first != id && entry.second.expired(); });
  Device* own = ownDevice(id);
  char* base = own != nullptr ? own->arena().base() : mapMemory(memory.get(), bytes);
  auto peer = std::make_shared<Peer>(base, bytes, own == nullptr, std::move(process), pid);
  known().peers[id] = peer;
  return peer;
}

Peer::~Peer() {
  if (is_mapped_) {
    munmap(base_, bytes_);
  }
}

bool Peer::isAlive() const {
  pollfd entry{process_.get(), POLLIN, 0};
  return poll(&entry, 1, 0) == 0; // readable once the process has ended
}

} // namespace kunlun::sim
