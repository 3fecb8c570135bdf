// Numbers of the vendor's types and operations, tried before they are used.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

#include "runtime/xre/collectives/Bkcl.h"

namespace kunlun::xre {

// The adapter has the numbers of types and operations from no description (Bkcl.h). When a communicator is made, all
// its ranks reduce one element for each, and compare the result with what it has to be. So a wrong number, and an
// operation that an older library lacks, is known before a caller's data is touched. The outcome is the same on every
// rank. A communicator of one rank reduces nothing, so it only finds out how many bytes a type has.
class Trial {
 public:
  // `scratch` is device memory of kBytes. Waits for the peers until `deadline`.
  Trial(
      NativeComm comm,
      int device,
      int rank,
      int nranks,
      void* scratch,
      std::chrono::steady_clock::time_point deadline);

  static constexpr uint64_t kBytes = 4096;

  bool has(NativeType type) const {
    return types_[static_cast<size_t>(type)];
  }
  bool has(NativeOp op) const {
    return ops_[static_cast<size_t>(op)];
  }
  // Whether sums of kNativeUInt8 do, which might saturate instead.
  bool wrapsAround() const {
    return wraps_around_;
  }

 private:
  std::array<bool, kNativeTypes> types_{};
  std::array<bool, kNativeOps> ops_{};
  bool wraps_around_ = false;
};

} // namespace kunlun::xre
