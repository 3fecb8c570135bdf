// Boxed calls through the driver's operator table.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/Device.h>

#include "runtime/chip/chip.h"

namespace kunlun::aten {

// Packs the arguments into a call frame whose outputs the driver allocates,
// launches it and waits. Returns false, with the stack untouched, when the
// driver does not take these dtypes or answers KL_ERROR_NOT_IMPLEMENTED.
bool launchBoxedFrame(
    const c10::OperatorHandle& op,
    const char* name,
    const kl_operator& driver,
    c10::Device device,
    torch::jit::Stack* stack);

} // namespace kunlun::aten
