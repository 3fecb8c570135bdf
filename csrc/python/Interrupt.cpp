// Python's signal handlers, KeyboardInterrupt among them, during a wait for the chip.
#include "runtime/Interrupt.h"

#include <torch/csrc/Exceptions.h>

#include "python/Module.h"

namespace kunlun::python {

namespace {

// Python runs signal handlers on its main thread only, and other threads may not wait for the GIL here: whoever holds
// it may be waiting for them.
unsigned long main_thread = 0;

// The handler's exception, between the check and the moment it is raised. Only the main thread uses it.
python_error& raised() {
  static auto* value = new python_error();
  return *value;
}

int32_t check() {
  if (PyThread_get_thread_ident() != main_thread || Py_IsInitialized() == 0) {
    return 0;
  }
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() == 0) {
    return 0;
  }
  raised().persist();
  return 1;
}

void raise() {
  throw python_error(std::move(raised()));
}

} // namespace

void bindInterrupt() {
  main_thread = py::module_::import("threading").attr("main_thread")().attr("ident").cast<unsigned long>();
  setInterruptHooks({&check, &raise});
}

} // namespace kunlun::python
