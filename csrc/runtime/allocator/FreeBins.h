// Free blocks of one pool, sorted into size classes so that the best fit is found in constant time.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace kunlun {

// What FreeBins needs of a block; the allocator's Block derives from it.
struct FreeBinNode {
  size_t size = 0;
  // Number of the newest work item that may use the memory, see CachingAllocatorCore::malloc.
  uint64_t free_sequence = 0;
  FreeBinNode* bin_previous = nullptr;
  FreeBinNode* bin_next = nullptr;
};

// Sizes are multiples of kUnit. Up to kLinearLimit every size has a bin of its own; above, each power of two is cut
// into kSubBins, and a bin is searched for its best block. A bin is last in, first out: the block that was freed last
// is warm in the cache. Not thread-safe.
class FreeBins {
 public:
  static constexpr size_t kUnit = 512;
  static constexpr size_t kLinearLimit = 1 << 20;
  static constexpr size_t kSubBins = 32;

  void insert(FreeBinNode* node) {
    const size_t bin = binOf(node->size);
    node->bin_previous = nullptr;
    node->bin_next = heads_[bin];
    if (node->bin_next != nullptr) {
      node->bin_next->bin_previous = node;
    }
    heads_[bin] = node;
    mark(bin);
  }

  void remove(FreeBinNode* node) {
    if (node->bin_next != nullptr) {
      node->bin_next->bin_previous = node->bin_previous;
    }
    if (node->bin_previous != nullptr) {
      node->bin_previous->bin_next = node->bin_next;
    } else {
      const size_t bin = binOf(node->size);
      heads_[bin] = node->bin_next;
      if (node->bin_next == nullptr) {
        clear(bin);
      }
    }
    node->bin_previous = node->bin_next = nullptr;
  }

  // The smallest block of at least `size` bytes that no work item after `sequence_limit` uses, or NULL. It stays in.
  FreeBinNode* bestFit(size_t size, uint64_t sequence_limit) const {
    for (size_t bin = nextMarked(binOf(size)); bin < kBins; bin = nextMarked(bin + 1)) {
      FreeBinNode* best = nullptr;
      for (FreeBinNode* node = heads_[bin]; node != nullptr; node = node->bin_next) {
        if (node->size >= size && node->free_sequence <= sequence_limit &&
            (best == nullptr || node->size < best->size)) {
          best = node;
          if (node->size == size || bin < kLinearBins) {
            break; // cannot become better
          }
        }
      }
      if (best != nullptr) {
        return best;
      }
    }
    return nullptr;
  }

  template <typename Function>
  void forEach(Function&& function) const {
    for (size_t bin = nextMarked(0); bin < kBins; bin = nextMarked(bin + 1)) {
      for (FreeBinNode *node = heads_[bin], *next = nullptr; node != nullptr; node = next) {
        next = node->bin_next; // the function may remove the node
        function(node);
      }
    }
  }

  static size_t binOf(size_t size) {
    if (size < kLinearLimit) {
      return size / kUnit;
    }
    const auto power = static_cast<size_t>(std::bit_width(size) - 1);
    const size_t within = (size >> (power - kSubBinBits)) & (kSubBins - 1);
    return kLinearBins + (power - kLinearPower) * kSubBins + within;
  }

 private:
  static constexpr size_t kSubBinBits = std::bit_width(kSubBins) - 1;
  static constexpr size_t kLinearPower = std::bit_width(kLinearLimit) - 1;
  static constexpr size_t kLinearBins = kLinearLimit / kUnit;
  static constexpr size_t kAddressBits = 48;
  static constexpr size_t kBins = kLinearBins + (kAddressBits - kLinearPower) * kSubBins;
  static constexpr size_t kWords = (kBins + 63) / 64;
  static_assert(kWords <= 64, "one word must cover all words of the map");

  void mark(size_t bin) {
    map_[bin / 64] |= uint64_t(1) << (bin % 64);
    summary_ |= uint64_t(1) << (bin / 64);
  }

  void clear(size_t bin) {
    map_[bin / 64] &= ~(uint64_t(1) << (bin % 64));
    if (map_[bin / 64] == 0) {
      summary_ &= ~(uint64_t(1) << (bin / 64));
    }
  }

  // First bin at or after `bin` that holds a block; kBins when there is none.
  size_t nextMarked(size_t bin) const {
    if (bin >= kBins) {
      return kBins;
    }
    size_t word = bin / 64;
    uint64_t bits = map_[word] & (~uint64_t(0) << (bin % 64));
    if (bits == 0) {
      const uint64_t rest = word == 63 ? 0 : summary_ & (~uint64_t(0) << (word + 1));
      if (rest == 0) {
        return kBins;
      }
      word = static_cast<size_t>(std::countr_zero(rest));
      bits = map_[word];
    }
    return word * 64 + static_cast<size_t>(std::countr_zero(bits));
  }

  std::array<FreeBinNode*, kBins> heads_{};
  std::array<uint64_t, kWords> map_{};
  uint64_t summary_ = 0;
};

} // namespace kunlun
