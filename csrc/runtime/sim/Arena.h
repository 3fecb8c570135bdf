// The main memory of one simulated device: a range of addresses that is backed where it is used.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "runtime/chip/chip.h"

namespace kunlun::sim {

// One sparse memfd, mapped once and whole. A segment is a range of it; giving a segment back punches a hole, so nothing
// is ever remapped and an address means the same for the life of the process.
class Arena {
 public:
  static constexpr uint64_t kPage = 4096;

  Arena(int device, uint64_t bytes);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  // Arenas live as long as the process.
  ~Arena() = delete;

  void* allocate(uint64_t bytes);
  void free(void* ptr);
  // Fills in everything but the type; false when no segment holds the pointer.
  bool find(const void* ptr, kl_pointer_info* out) const;
  uint64_t freeBytes() const;
  // Drops the contents of every segment.
  void clear();

  char* base() const {
    return base_;
  }
  uint64_t bytes() const {
    return bytes_;
  }
  int device() const {
    return device_;
  }
  // The file behind it, by which other processes map it.
  int fd() const {
    return fd_;
  }
  bool contains(const void* ptr, uint64_t bytes) const {
    const auto offset = static_cast<uint64_t>(static_cast<const char*>(ptr) - base_);
    return offset < bytes_ && bytes <= bytes_ - offset;
  }

 private:
  void fresh(uint64_t offset, uint64_t bytes) const;
  void punch(uint64_t offset, uint64_t bytes) const;
  void insertFree(uint64_t offset, uint64_t bytes);
  void eraseFree(std::map<uint64_t, uint64_t>::iterator range);

  const int device_;
  const uint64_t bytes_;
  int fd_ = -1;
  char* base_ = nullptr;

  mutable std::mutex lock_;                              // guards everything below
  std::map<uint64_t, uint64_t> used_;                    // offset -> bytes
  std::map<uint64_t, uint64_t> free_;                    // offset -> bytes, never adjacent
  std::set<std::pair<uint64_t, uint64_t>> free_by_size_; // (bytes, offset), the same ranges
  uint64_t used_bytes_ = 0;
};

} // namespace kunlun::sim
