// The Python module torch_xpu_kunlun._C.
#include "python/Module.h"

PYBIND11_MODULE(_C, module) {
  module.doc() = "Native part of torch_xpu_kunlun; its functions are private, torch.kunlun is the interface.";
  kunlun::python::bindDevice(module);
  kunlun::python::bindEvents(module);
  kunlun::python::bindIpc(module);
  kunlun::python::bindMemory(module);
  kunlun::python::bindMemorySnapshot(module);
  kunlun::python::bindOperators(module);
  kunlun::python::bindInterrupt();
  kunlun::python::bindSim(module);
  kunlun::python::bindDistributed(module);
}
