// From the address of a block to the block, without a lock.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace kunlun {

// A three-level table over 48-bit addresses in steps of kUnit bytes. Tables appear as they are needed and stay.
// Different addresses may be read and written at the same time. One address may not: its entry is written before the
// address is handed to anyone and read by whoever gives it back.
template <typename T>
class AddressMap {
 public:
  static constexpr size_t kUnit = 512;

  AddressMap() = default;
  AddressMap(const AddressMap&) = delete;
  AddressMap& operator=(const AddressMap&) = delete;
  // The tables go, not what they point to.
  ~AddressMap() {
    for (auto& slot : root_) {
      Middle* middle = slot.load(std::memory_order_acquire);
      if (middle == nullptr) {
        continue;
      }
      for (auto& leaf : *middle) {
        delete leaf.load(std::memory_order_acquire);
      }
      delete middle;
    }
  }

  // The entry of an address, created if needed. NULL when the address cannot be in the map.
  T** at(const void* address) {
    const auto key = reinterpret_cast<uintptr_t>(address);
    if ((key >> kAddressBits) != 0 || key % kUnit != 0) {
      return nullptr;
    }
    auto* middle = child(root_[key >> (kLeafBits + kMiddleBits + kUnitBits)]);
    auto* leaf = child((*middle)[(key >> (kLeafBits + kUnitBits)) & (kMiddleSize - 1)]);
    return &(*leaf)[(key >> kUnitBits) & (kLeafSize - 1)];
  }

  // What is stored at an address, NULL if nothing.
  T* find(const void* address) const {
    const auto key = reinterpret_cast<uintptr_t>(address);
    if ((key >> kAddressBits) != 0 || key % kUnit != 0) {
      return nullptr;
    }
    const auto* middle = root_[key >> (kLeafBits + kMiddleBits + kUnitBits)].load(std::memory_order_acquire);
    if (middle == nullptr) {
      return nullptr;
    }
    const auto* leaf = (*middle)[(key >> (kLeafBits + kUnitBits)) & (kMiddleSize - 1)].load(std::memory_order_acquire);
    return leaf == nullptr ? nullptr : (*leaf)[(key >> kUnitBits) & (kLeafSize - 1)];
  }

 private:
  static constexpr size_t kAddressBits = 48;
  static constexpr size_t kUnitBits = 9;
  static constexpr size_t kLeafBits = 12;   // one leaf covers 2 MiB
  static constexpr size_t kMiddleBits = 14; // one middle table covers 32 GiB
  static constexpr size_t kLeafSize = size_t(1) << kLeafBits;
  static constexpr size_t kMiddleSize = size_t(1) << kMiddleBits;
  static constexpr size_t kRootSize = size_t(1) << (kAddressBits - kUnitBits - kLeafBits - kMiddleBits);

  using Leaf = std::array<T*, kLeafSize>;
  using Middle = std::array<std::atomic<Leaf*>, kMiddleSize>;

  template <typename Table>
  static Table* child(std::atomic<Table*>& slot) {
    Table* table = slot.load(std::memory_order_acquire);
    if (table == nullptr) {
      auto* fresh = new Table();
      if (slot.compare_exchange_strong(table, fresh, std::memory_order_acq_rel)) {
        table = fresh;
      } else {
        delete fresh; // another thread was first; `table` is theirs
      }
    }
    return table;
  }

  std::array<std::atomic<Middle*>, kRootSize> root_{};
};

} // namespace kunlun
