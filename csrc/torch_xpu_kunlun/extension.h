// The public C++ interface, for operators of one's own: devices, streams, events, memory, and two ways to put work on
// a stream. Include it as <torch_xpu_kunlun/extension.h>; it brings no Python and no torch/extension.h with it.
//
//   kunlun::aten::empty, emptyLike          uninitialised tensors on a device
//   kunlun::aten::OpHandle and launch       a call of the chip's kernel of this name, else of the host's CPU kernel
//   kunlun::launchHostFunction              a C++ function, run by the chip's thread in stream order
//   kunlun::getCurrentKunlunStream().handle()   the driver's stream, for code of the vendor's own compiler
#pragma once

#include <functional>

#include "aten/Empty.h"
#include "aten/Launch.h"
#include "runtime/CachingAllocator.h"
#include "runtime/Device.h"
#include "runtime/Error.h"
#include "runtime/Event.h"
#include "runtime/Stream.h"

namespace kunlun {

using KunlunStream = Stream;

// device -1 is the current device.
inline KunlunStream getCurrentKunlunStream(c10::DeviceIndex device = -1) {
  return getCurrentStream(device);
}
inline KunlunStream getDefaultKunlunStream(c10::DeviceIndex device = -1) {
  return getDefaultStream(device);
}
inline void setCurrentKunlunStream(KunlunStream stream) {
  setCurrentStream(stream);
}

// Whether a host function may dereference device memory; true on the simulated chip, false on most cards.
bool isHostAddressable(c10::DeviceIndex device = -1);

// Enqueues `function` and returns. It runs on the chip's thread when the stream gets there, and not at all where the
// stream carries an earlier failure. An exception that it throws becomes the stream's failure: raised with its type,
// `name` and the number of the work item at the next synchronisation, copy to the host, or launch on the stream.
//
// Capture addresses, sizes and numbers, not tensors: memory that is freed meanwhile is not handed out before the stream
// has passed this point, but only if the tensor belongs to this stream (else tensor.record_stream). `name` must be
// static text. `work`, the number of elements, decides whether at::parallel_for inside gets all of the chip's cores.
void launchHostFunction(const KunlunStream& stream, const char* name, std::function<void()> function, int64_t work = 0);

} // namespace kunlun
