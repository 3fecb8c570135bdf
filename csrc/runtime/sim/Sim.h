// The simulated chip: a driver that executes on the CPU.
#pragma once

#include <cstddef>

#include "runtime/chip/chip.h"

namespace kunlun::sim {

// The built-in tables. Asking for them starts nothing.
kl_chip chip();

// The operator library registers itself here from a static initialiser. The function is called when the chip is opened,
// because what the table holds depends on the environment; the table must live for ever.
using OperatorsFn = const kl_operators_table* (*)();
void setOperators(OperatorsFn table);

// Work of a stream. Runs on the stream's own thread with a copy of the payload, which is aligned to 16 bytes.
// A failure is reported by filling `error` (text at least) and returning its code; device, sequence number and, where
// empty, `op` are filled in by the caller.
using WorkFn = kl_result (*)(void* context, void* payload, kl_error* error);

// Enqueues work and returns. Work behind a failure on its stream is skipped. `name` is static text. As every launch,
// this call takes delivery of an earlier failure of the stream: it then returns that failure's code and enqueues
// nothing.
kl_result enqueue(kl_stream stream, const char* name, WorkFn run, void* context, const void* payload, size_t bytes);

// On a stream's thread, for data that go from device `source` to another one by other ways than memcpy_async, such as a
// collective: waits, using no core, as long as they would be on their way (KUNLUN_SIM_LINK_SPEED). Returns early when
// the stream's device is reset or the process exits.
kl_result passLink(int source, uint64_t bytes);

// Records a failure of the calling thread, for entries of a table other than the runtime's: last_error returns it.
kl_result fail(kl_result code, const char* op, const char* text);

// The stream whose thread is calling, NULL on every other thread. Only chip threads may touch device memory.
kl_stream currentStream();

// Stops the stream threads, each after its current item, and waits for them for a bounded time. Called at process
// exit; afterwards every call but the destroying ones fails. Safe to call twice.
void shutdown();

} // namespace kunlun::sim
