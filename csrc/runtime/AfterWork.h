// What is to happen once a device has done the work that it has now.
#pragma once

#include <functional>

#include <c10/core/Device.h>

namespace kunlun {

// Calls `function` when every stream of the device has done what it was given so far, failed work included: on the
// thread of the last stream to get there, or at once if none has anything to do. Never if the process exits before.
// `name` labels the work in traces.
void callAfterWork(c10::DeviceIndex device, const char* name, std::function<void()> function);

} // namespace kunlun
