// The parts of the Python module; each adds its functions to `module`.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include "runtime/Device.h"

namespace kunlun::python {

// Device numbers arrive as int, so that one out of c10::DeviceIndex's range is refused and not cut off.
inline c10::DeviceIndex narrow(int64_t device) {
  TORCH_CHECK(device >= -1 && device < kMaxDevices, "invalid kunlun device ordinal ", device);
  return static_cast<c10::DeviceIndex>(device);
}

void bindDevice(py::module_& module);
void bindEvents(py::module_& module);
void bindIpc(py::module_& module);
void bindMemory(py::module_& module);
void bindMemorySnapshot(py::module_& module);
void bindOperators(py::module_& module);
void bindInterrupt(); // hooks, no functions
void bindSim(py::module_& module);
void bindDistributed(py::module_& module);

} // namespace kunlun::python
