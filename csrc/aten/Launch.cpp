// Asynchronous launches: every operator call becomes a call frame on a stream.
#include "aten/Launch.h"

#include <c10/util/SmallVector.h>

#include "aten/Missing.h"
#include "aten/Statistics.h"
#include "runtime/Error.h"
#include "runtime/chip/Loader.h"

namespace kunlun::aten {

namespace detail {
void noDevice() {
  TORCH_INTERNAL_ASSERT(false, "a kunlun operator was called without a kunlun tensor");
}
} // namespace detail

void OpHandle::resolve() {
  kl_operator found{nullptr, nullptr};
  const auto* table = chip::operators();
  const bool present = table != nullptr && table->lookup(schema_, &found) == KL_SUCCESS;
  // Concurrent first launches write the same values.
  static std::atomic_flag writing = ATOMIC_FLAG_INIT;
  while (writing.test_and_set(std::memory_order_acquire)) {
  }
  if (state_.load(std::memory_order_relaxed) == Unknown) {
    op_ = found;
    state_.store(present ? Present : Absent, std::memory_order_release);
  }
  writing.clear(std::memory_order_release);
}

namespace {

bool dtypesSupported(const kl_operators_table& table, const kl_frame* frame) {
  c10::SmallVector<int32_t, 8> dtypes;
  for (const auto* value = kl_frame_args(frame); value != kl_frame_args(frame) + frame->nargs + frame->nouts; ++value) {
    if (value->tag == KL_TAG_TENSOR) {
      dtypes.push_back(value->v.t.dtype);
    }
  }
  return table.supports(frame->schema, dtypes.data(), static_cast<uint32_t>(dtypes.size())) != 0;
}

} // namespace

void OpHandle::launch(const kl_frame* frame, c10::Device device) {
  if (C10_UNLIKELY(state_.load(std::memory_order_acquire) == Unknown)) {
    resolve();
  }
  const auto* table = chip::operators();
  if (C10_LIKELY(
          state_.load(std::memory_order_relaxed) == Present &&
          (table->supports == nullptr || dtypesSupported(*table, frame)))) {
    countLaunch();
    trace(Tier::Launcher, schema_);
    check(op_.launch(op_.context, frame), schema_);
    return;
  }
  launchMissing(frame, device);
}

} // namespace kunlun::aten
