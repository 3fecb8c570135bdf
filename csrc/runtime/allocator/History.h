// What a device's allocator remembers when its history is recorded: events, and who holds each block.
#pragma once

#include <cstddef>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/allocator/AllocatorTypes.h"

namespace kunlun {

// Not thread-safe: guarded by the device's lock.
template <typename Block>
class History {
 public:
  void configure(const AllocatorHistoryOptions& options) {
    entries_ = options.clear ? std::vector<AllocatorTraceEntry>() : entries();
    oldest_ = 0;
    if (entries_.size() > options.max_entries) {
      entries_.erase(entries_.begin(), entries_.end() - static_cast<std::ptrdiff_t>(options.max_entries));
    }
    options_ = options;
  }

  bool records(AllocatorAction action) const {
    return options_.enabled && options_.trace && options_.max_entries != 0 &&
        (options_.skip >> static_cast<unsigned>(action) & 1) == 0;
  }

  void add(AllocatorTraceEntry&& entry) {
    if (entries_.size() < options_.max_entries) {
      entries_.push_back(std::move(entry));
    } else {
      entries_[oldest_] = std::move(entry);
      oldest_ = (oldest_ + 1) % entries_.size();
    }
  }

  // Oldest first.
  std::vector<AllocatorTraceEntry> entries() const {
    std::vector<AllocatorTraceEntry> result(entries_.begin() + static_cast<std::ptrdiff_t>(oldest_), entries_.end());
    result.insert(result.end(), entries_.begin(), entries_.begin() + static_cast<std::ptrdiff_t>(oldest_));
    return result;
  }

  void setOwner(const Block* block, const AllocatorContext& context) {
    if (options_.enabled && context != nullptr) {
      owners_[block] = context;
    }
  }
  void forgetOwner(const Block* block) {
    owners_.erase(block);
  }
  AllocatorContext owner(const Block* block) const {
    const auto found = owners_.find(block);
    return found == owners_.end() ? nullptr : found->second;
  }

  const AllocatorHistoryOptions& options() const {
    return options_;
  }

 private:
  AllocatorHistoryOptions options_;
  std::vector<AllocatorTraceEntry> entries_; // a ring once it is full
  size_t oldest_ = 0;
  std::unordered_map<const Block*, AllocatorContext> owners_;
};

} // namespace kunlun
