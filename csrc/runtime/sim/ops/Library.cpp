// The simulated chip's operator table: looks kernels up by schema and runs
// frames on the threads of the simulated streams.
#include <algorithm>
#include <limits>
#include <optional>
#include <string_view>
#include <unordered_map>

#include <c10/core/InferenceMode.h>

#include "runtime/Env.h"
#include "runtime/frame/CpuCall.h"
#include "runtime/frame/Threads.h"
#include "runtime/sim/Sim.h"
#include "runtime/sim/ops/HostKernels.h"
#include "runtime/sim/ops/Kernels.h"

namespace kunlun::sim {

namespace {

// What a table entry's context points to.
struct Entry {
  void (*run)(const kl_frame* frame) = nullptr; // NULL: through the dispatcher
  std::optional<c10::OperatorHandle> op;
  bool whole_team = false; // splits its sums by the number of threads, so it gets them all, as on the CPU
};

void run(const Entry& entry, const kl_frame* frame) {
  if (entry.run != nullptr) {
    entry.run(frame);
  } else {
    frame::callCpu(*entry.op, frame);
  }
}

kl_result runFrame(void* context, void* payload, kl_error* error) {
  // Frames hold plain numbers: nothing on a chip thread is recorded for autograd. For the thread's life, because
  // setting it up costs a fifth of a small kernel.
  thread_local const c10::InferenceMode inference;
  const auto* frame = static_cast<const kl_frame*>(payload);
  try {
    const auto& entry = *static_cast<const Entry*>(context);
    frame::TeamScope team(entry.whole_team ? std::numeric_limits<int64_t>::max() : frame::workOf(frame));
    run(entry, frame);
    return KL_SUCCESS;
  } catch (...) {
    return frame::describeException(error);
  }
}

// Direct kernels write into outputs that the caller has made; they cannot ask for them.
bool lacksOutputs(const Entry& entry, const kl_frame* frame) {
  if (entry.run == nullptr || (frame->flags & KL_FRAME_WAITED) == 0) {
    return false;
  }
  const auto* outs = kl_frame_outs(frame);
  return std::any_of(outs, outs + frame->nouts, [](const kl_value& out) { return out.tag == KL_TAG_ABSENT; });
}

kl_result launchFrame(void* context, const kl_frame* frame) {
  if (lacksOutputs(*static_cast<const Entry*>(context), frame)) {
    return fail(KL_ERROR_NOT_IMPLEMENTED, frame->schema, "the simulated chip's kernel needs outputs of known shape");
  }
  return enqueue(frame->stream, frame->schema, &runFrame, context, frame, frame->bytes);
}

using Entries = std::unordered_map<std::string_view, Entry>;

Entries buildEntries() {
  Entries entries;
  auto add = [&](c10::ArrayRef<Kernel> kernels) {
    for (const auto& kernel : kernels) {
      entries[kernel.schema].run = kernel.run;
    }
  };
  visitGeneratedKernels(add);
  add(directKernels());
  add(attentionKernels());
  visitFusedKernels(add);
  for (const auto schemas : {boxedKernels(), generatedBoxedKernels()}) {
    for (const char* schema : schemas) {
      entries[schema].op = frame::findOperator(schema);
    }
  }
  entries["aten::native_layer_norm_backward"].whole_team = true;
  return entries;
}

const Entry* find(const char* schema) {
  static const auto* entries = new Entries(buildEntries());
  const auto found = entries->find(schema);
  return found == entries->end() ? nullptr : &found->second;
}

kl_result lookup(const char* schema, kl_operator* out) {
  const auto* entry = find(schema);
  if (entry == nullptr || !env().sim_operators.has(schema)) {
    return KL_ERROR_NOT_IMPLEMENTED;
  }
  *out = {&launchFrame, const_cast<Entry*>(entry)};
  return KL_SUCCESS;
}

// Only in the table where some are missing: whoever launches asks for each call.
int32_t supports(const char*, const int32_t* dtypes, uint32_t count) {
  const uint32_t missing = env().sim_missing_dtypes;
  return std::none_of(dtypes, dtypes + count, [&](int32_t dtype) { return (missing >> dtype & 1u) != 0; }) ? 1 : 0;
}

constexpr kl_table_header kHeader{sizeof(kl_operators_table), KL_OPERATORS_ABI_MAJOR, KL_OPERATORS_ABI_MINOR};
constexpr kl_operators_table kAllDtypes{kHeader, &lookup, nullptr};
constexpr kl_operators_table kSomeDtypes{kHeader, &lookup, &supports};

const kl_operators_table* table() {
  return env().sim_missing_dtypes == 0 ? &kAllDtypes : &kSomeDtypes;
}

[[maybe_unused]] const bool registered = (setOperators(&table), true);

} // namespace

} // namespace kunlun::sim

namespace kunlun {

void runHostKernel(const kl_frame* frame) {
  c10::InferenceMode inference;
  if (const auto* entry = sim::find(frame->schema)) {
    sim::run(*entry, frame);
    return;
  }
  frame::callCpu(frame::findOperator(frame->schema), frame);
}

} // namespace kunlun
