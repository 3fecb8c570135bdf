// Segments of a device's memory: best fit with coalescing over a sparse memfd.
#include "runtime/sim/Arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/Env.h"
#include "runtime/sim/Protect.h"
#include "runtime/sim/Status.h"

namespace kunlun::sim {
namespace {

constexpr uint64_t kHugePage = Arena::kGranularity;
constexpr unsigned char kPoison = 0xCB;

double mebibytes(uint64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

// An aligned start lets the kernel use huge pages where it is set up to do so for shared memory.
char* mapAligned(int fd, uint64_t bytes) {
  void* reserved = mmap(nullptr, bytes + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) {
    return nullptr;
  }
  const auto start = reinterpret_cast<uintptr_t>(reserved);
  const uintptr_t aligned = (start + kHugePage - 1) & ~(kHugePage - 1);
  void* base = mmap(
      reinterpret_cast<void*>(aligned), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd, 0);
  if (base == MAP_FAILED) {
    munmap(reserved, bytes + kHugePage);
    return nullptr;
  }
  if (aligned != start) {
    munmap(reserved, aligned - start);
  }
  const uintptr_t end = aligned + bytes;
  if (end != start + bytes + kHugePage) {
    munmap(reinterpret_cast<void*>(end), start + bytes + kHugePage - end);
  }
  return static_cast<char*>(base);
}

} // namespace

Arena::Arena(int device, uint64_t bytes) : device_(device), bytes_(bytes) {
  const std::string name = "kunlun-sim-" + std::to_string(device);
  fd_ = memfd_create(name.c_str(), MFD_CLOEXEC);
  if (fd_ < 0) {
    raise(
        KL_ERROR_RUNTIME, device, "cannot create the memory of simulated device %d: %s", device, std::strerror(errno));
  }
  // Where the limit on address space does not allow more, the memory gets as many addresses as it needs.
  if (!mapFile(bytes * kAddressesPerByte) && !mapFile(bytes)) {
    const int reason = errno;
    close(fd_);
    raise(
        KL_ERROR_OUT_OF_MEMORY,
        device,
        "cannot reserve %.0f MiB of addresses for simulated device %d: %s; set KUNLUN_SIM_MEMORY to less or raise the "
        "limit on address space (ulimit -v)",
        mebibytes(bytes),
        device,
        std::strerror(reason));
  }
  // Children neither see device memory nor keep it alive.
  if (madvise(base_, span_, MADV_DONTFORK) != 0) {
    const int reason = errno;
    munmap(base_, span_);
    close(fd_);
    raise(KL_ERROR_RUNTIME, device, "cannot keep device memory out of forked children: %s", std::strerror(reason));
  }
  // Only a hint: kernels without huge pages for shared memory refuse it, and nothing depends on it.
  madvise(base_, span_, MADV_HUGEPAGE);
  protectArena(*this);
  insertFree(0, span_);
}

bool Arena::mapFile(uint64_t span) {
  if (ftruncate(fd_, static_cast<off_t>(span)) != 0) {
    return false;
  }
  base_ = mapAligned(fd_, span);
  span_ = span;
  return base_ != nullptr;
}

void Arena::outOfMemory(uint64_t bytes) const {
  const uint64_t largest = free_by_size_.empty() ? 0 : free_by_size_.rbegin()->first;
  raise(
      KL_ERROR_OUT_OF_MEMORY,
      device_,
      "simulated device %d is out of memory: %.2f MiB asked for, %.2f MiB free of %.2f MiB, %.2f MiB in one piece "
      "(KUNLUN_SIM_MEMORY sets the size of a simulated device)",
      device_,
      mebibytes(bytes),
      mebibytes(bytes_ - used_bytes_),
      mebibytes(bytes_),
      mebibytes(std::min(largest, bytes_ - used_bytes_)));
}

void* Arena::allocate(uint64_t bytes) {
  const uint64_t rounded = bytes > bytes_ ? bytes : std::max(kPage, (bytes + kPage - 1) & ~(kPage - 1));
  uint64_t offset = 0;
  {
    std::lock_guard lock(lock_);
    const auto best = free_by_size_.lower_bound({rounded, 0});
    if (rounded > bytes_ - used_bytes_ || best == free_by_size_.end()) {
      outOfMemory(bytes);
    }
    const auto range = free_.find(best->second);
    offset = range->first;
    const uint64_t rest = range->second - rounded;
    used_.emplace(offset, rounded);
    eraseFree(range);
    if (rest != 0) {
      insertFree(offset + rounded, rest);
    }
    used_bytes_ += rounded;
  }
  try {
    fresh(offset, rounded);
  } catch (...) {
    free(base_ + offset);
    throw;
  }
  return base_ + offset;
}

void Arena::free(void* ptr) {
  const auto offset = static_cast<uint64_t>(static_cast<char*>(ptr) - base_);
  std::lock_guard lock(lock_);
  const auto segment = used_.find(offset);
  if (segment == used_.end()) {
    raise(KL_ERROR_VALUE, device_, "%p is not the start of a segment of device %d", ptr, device_);
  }
  // The hole is made before the range is free, so that no new owner loses what he has already written.
  punch(offset, segment->second);
  const uint64_t bytes = segment->second;
  used_bytes_ -= bytes;
  used_.erase(segment);
  giveAddresses(offset, bytes);
}

// Puts addresses back, merged with their free neighbours.
void Arena::giveAddresses(uint64_t start, uint64_t bytes) {
  auto next = free_.lower_bound(start);
  if (next != free_.end() && next->first == start + bytes) {
    bytes += next->second;
    const auto merged = next++;
    eraseFree(merged);
  }
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == start) {
      start = previous->first;
      bytes += previous->second;
      eraseFree(previous);
    }
  }
  insertFree(start, bytes);
}

void* Arena::reserve(uint64_t bytes) {
  const uint64_t rounded =
      bytes > span_ ? bytes : std::max(kGranularity, (bytes + kGranularity - 1) & ~(kGranularity - 1));
  std::lock_guard lock(lock_);
  for (auto best = free_by_size_.lower_bound({rounded, 0}); best != free_by_size_.end(); ++best) {
    const auto [have, start] = *best;
    const uint64_t first = std::max(start, bytes_ * kAddressesForSegments);
    const uint64_t offset = (first + kGranularity - 1) & ~(kGranularity - 1);
    if (have < rounded + (offset - start)) {
      continue; // too small once it is aligned
    }
    eraseFree(free_.find(start));
    if (offset != start) {
      insertFree(start, offset - start);
    }
    if (start + have != offset + rounded) {
      insertFree(offset + rounded, start + have - offset - rounded);
    }
    ranges_[offset] = {rounded, std::vector<bool>(rounded / kGranularity)};
    setAccess(offset, rounded, false);
    return base_ + offset;
  }
  raise(
      KL_ERROR_OUT_OF_MEMORY,
      device_,
      "simulated device %d has no %.2f MiB of addresses in one piece; it has %.0f MiB in all",
      device_,
      mebibytes(bytes),
      mebibytes(span_));
}

void Arena::release(void* base) {
  const uint64_t offset = offsetOf(base);
  std::lock_guard lock(lock_);
  const auto range = ranges_.find(offset);
  if (range == ranges_.end()) {
    raise(KL_ERROR_VALUE, device_, "%p is not the start of reserved addresses of device %d", base, device_);
  }
  const uint64_t bytes = range->second.bytes;
  const auto units = static_cast<uint64_t>(std::count(range->second.mapped.begin(), range->second.mapped.end(), true));
  if (units != 0) {
    punch(offset, bytes);
    used_bytes_ -= units * kGranularity;
  }
  setAccess(offset, bytes, true);
  ranges_.erase(range);
  giveAddresses(offset, bytes);
}

// The units of a piece of reserved addresses, all of which must be mapped, or not.
std::vector<bool>& Arena::checkUnits(void* ptr, uint64_t bytes, bool mapped, uint64_t& first) {
  const uint64_t offset = offsetOf(ptr);
  auto range = ranges_.upper_bound(offset);
  if (range == ranges_.begin() || bytes == 0 || offset % kGranularity != 0 || bytes % kGranularity != 0 ||
      (--range)->first + range->second.bytes < offset + bytes) {
    raise(
        KL_ERROR_VALUE,
        device_,
        "%llu bytes at %p are not a piece of reserved addresses of device %d in units of %llu bytes",
        static_cast<unsigned long long>(bytes),
        ptr,
        device_,
        static_cast<unsigned long long>(kGranularity));
  }
  auto& units = range->second.mapped;
  first = (offset - range->first) / kGranularity;
  for (uint64_t unit = first; unit < first + bytes / kGranularity; ++unit) {
    if (units[unit] != mapped) {
      raise(KL_ERROR_VALUE, device_, mapped ? "%p is not mapped" : "%p is mapped already", ptr);
    }
  }
  return units;
}

void Arena::map(void* ptr, uint64_t bytes) {
  std::lock_guard lock(lock_);
  uint64_t first = 0;
  auto& units = checkUnits(ptr, bytes, false, first);
  if (bytes > bytes_ - used_bytes_) {
    outOfMemory(bytes);
  }
  fresh(offsetOf(ptr), bytes);
  setAccess(offsetOf(ptr), bytes, true);
  std::fill_n(units.begin() + static_cast<std::ptrdiff_t>(first), bytes / kGranularity, true);
  used_bytes_ += bytes;
}

void Arena::unmap(void* ptr, uint64_t bytes) {
  std::lock_guard lock(lock_);
  uint64_t first = 0;
  auto& units = checkUnits(ptr, bytes, true, first);
  setAccess(offsetOf(ptr), bytes, false);
  punch(offsetOf(ptr), bytes);
  std::fill_n(units.begin() + static_cast<std::ptrdiff_t>(first), bytes / kGranularity, false);
  used_bytes_ -= bytes;
}

bool Arena::find(const void* ptr, kl_pointer_info* out) const {
  if (!contains(ptr, 1)) {
    return false;
  }
  const auto offset = static_cast<uint64_t>(static_cast<const char*>(ptr) - base_);
  std::lock_guard lock(lock_);
  const auto segment = used_.upper_bound(offset);
  if (segment != used_.begin() && offset < std::prev(segment)->first + std::prev(segment)->second) {
    out->base = base_ + std::prev(segment)->first;
    out->size = std::prev(segment)->second;
  } else {
    const auto range = ranges_.upper_bound(offset);
    if (range == ranges_.begin() || offset >= std::prev(range)->first + std::prev(range)->second.bytes) {
      return false;
    }
    out->base = base_ + std::prev(range)->first;
    out->size = std::prev(range)->second.bytes;
  }
  out->device = device_;
  return true;
}

uint64_t Arena::freeBytes() const {
  std::lock_guard lock(lock_);
  return bytes_ - used_bytes_;
}

void Arena::clear() {
  std::lock_guard lock(lock_);
  punch(0, span_);
  for (const auto& [offset, bytes] : used_) {
    fresh(offset, bytes);
  }
  for (const auto& [offset, range] : ranges_) {
    for (uint64_t unit = 0; unit < range.mapped.size(); ++unit) {
      if (range.mapped[unit]) {
        fresh(offset + unit * kGranularity, kGranularity);
      }
    }
  }
}

// Keeps the protection key. Where pages themselves are protected around running items, these have the say.
void Arena::setAccess(uint64_t offset, uint64_t bytes, bool accessible) const {
  if (detail::protection.load(std::memory_order_relaxed) == Protection::Pages) {
    return;
  }
  if (mprotect(base_ + offset, bytes, accessible ? PROT_READ | PROT_WRITE : PROT_NONE) != 0) {
    raise(KL_ERROR_RUNTIME, device_, "cannot change the access to device memory: %s", std::strerror(errno));
  }
}

// Poison is written through the file: no thread but the chip's own may touch the mapping.
void Arena::fresh(uint64_t offset, uint64_t bytes) const {
  if (!env().sim_poison) {
    return;
  }
  const std::vector<unsigned char> pattern(std::min(bytes, kHugePage), kPoison);
  for (uint64_t done = 0; done < bytes;) {
    const ssize_t written = pwrite(
        fd_, pattern.data(), std::min<uint64_t>(pattern.size(), bytes - done), static_cast<off_t>(offset + done));
    if (written < 0) {
      raise(KL_ERROR_RUNTIME, device_, "cannot poison fresh device memory: %s", std::strerror(errno));
    }
    done += static_cast<uint64_t>(written);
  }
}

void Arena::punch(uint64_t offset, uint64_t bytes) const {
  if (fallocate(
          fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset), static_cast<off_t>(bytes)) !=
      0) {
    raise(KL_ERROR_RUNTIME, device_, "cannot give back device memory: %s", std::strerror(errno));
  }
}

void Arena::insertFree(uint64_t offset, uint64_t bytes) {
  free_.emplace(offset, bytes);
  free_by_size_.emplace(bytes, offset);
}

void Arena::eraseFree(std::map<uint64_t, uint64_t>::iterator range) {
  free_by_size_.erase({range->second, range->first});
  free_.erase(range);
}

} // namespace kunlun::sim
