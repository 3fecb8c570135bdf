// The main memory of one simulated device: a range of addresses that is backed where it is used.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "runtime/chip/chip.h"

namespace kunlun::sim {

// One sparse memfd, mapped once and whole. A segment is a range of it; giving a segment back punches a hole, so nothing
// is ever remapped and an address means the same for the life of the process.
//
// The file is longer than the device's memory, since a hole costs nothing: there are more addresses than memory, as on
// a real chip. So neither free memory in pieces nor ranges of addresses that wait for memory stand in anybody's way.
class Arena {
 public:
  static constexpr uint64_t kPage = 4096;
  static constexpr uint64_t kGranularity = uint64_t{2} << 20; // of mapping
  static constexpr uint64_t kAddressesPerByte = 16;
  // Of these, ranges are never reserved in the first two for each byte: segments must find addresses, too.
  static constexpr uint64_t kAddressesForSegments = 2;

  Arena(int device, uint64_t bytes);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  // Arenas live as long as the process.
  ~Arena() = delete;

  void* allocate(uint64_t bytes);
  void free(void* ptr);
  // Ranges of addresses, and memory in parts of them, in units of kGranularity. Kernels that touch a part without
  // memory end the process by SIGSEGV, as the file would hand out zeros and take memory that nobody has counted.
  void* reserve(uint64_t bytes);
  void release(void* base);
  void map(void* ptr, uint64_t bytes);
  void unmap(void* ptr, uint64_t bytes);
  // Fills in everything but the type; false when no segment and no range holds the pointer.
  bool find(const void* ptr, kl_pointer_info* out) const;
  uint64_t freeBytes() const;
  // Drops the contents of every segment.
  void clear();

  char* base() const {
    return base_;
  }
  // Bytes of memory.
  uint64_t bytes() const {
    return bytes_;
  }
  // Bytes of addresses from base() on.
  uint64_t span() const {
    return span_;
  }
  int device() const {
    return device_;
  }
  // The memfd, for a process that maps this memory too. Owned by the arena.
  int fd() const {
    return fd_;
  }
  bool contains(const void* ptr, uint64_t bytes) const {
    const auto offset = static_cast<uint64_t>(static_cast<const char*>(ptr) - base_);
    return offset < span_ && bytes <= span_ - offset;
  }

 private:
  struct Range {
    uint64_t bytes = 0;
    std::vector<bool> mapped; // by unit
  };

  uint64_t offsetOf(const void* ptr) const {
    return static_cast<uint64_t>(static_cast<const char*>(ptr) - base_);
  }
  bool mapFile(uint64_t span);
  void giveAddresses(uint64_t offset, uint64_t bytes);
  [[noreturn]] void outOfMemory(uint64_t bytes) const;
  std::vector<bool>& checkUnits(void* ptr, uint64_t bytes, bool mapped, uint64_t& first);
  void setAccess(uint64_t offset, uint64_t bytes, bool accessible) const;
  void fresh(uint64_t offset, uint64_t bytes) const;
  void punch(uint64_t offset, uint64_t bytes) const;
  void insertFree(uint64_t offset, uint64_t bytes);
  void eraseFree(std::map<uint64_t, uint64_t>::iterator range);

  const int device_;
  const uint64_t bytes_;
  uint64_t span_ = 0;
  int fd_ = -1;
  char* base_ = nullptr;

  mutable std::mutex lock_;                              // guards everything below
  std::map<uint64_t, uint64_t> used_;                    // offset -> bytes
  std::map<uint64_t, Range> ranges_;                     // offset -> addresses that are reserved
  std::map<uint64_t, uint64_t> free_;                    // offset -> bytes of addresses, never adjacent
  std::set<std::pair<uint64_t, uint64_t>> free_by_size_; // (bytes, offset), the same ranges
  uint64_t used_bytes_ = 0;                              // of memory
};

} // namespace kunlun::sim
