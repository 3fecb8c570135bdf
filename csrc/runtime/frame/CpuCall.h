// Runs the operator of a call frame with ATen's CPU kernel, over device memory
// that the calling thread may dereference.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "runtime/chip/frame.h"

namespace kunlun::frame {

// The operator that a frame names. Throws NotImplementedError when torch has no such operator.
c10::OperatorHandle findOperator(const char* schema);

// In-place and out variants write where the frame says. The results of
// functional operators are copied into the frame's outputs; outputs that the
// frame leaves absent are allocated through it.
void callCpu(const c10::OperatorHandle& op, const kl_frame* frame);

// Fills `error` with the current exception, in the interface's terms, and
// returns its code. To be called from a catch block.
kl_result describeException(kl_error* error);

} // namespace kunlun::frame
