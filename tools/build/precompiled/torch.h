// What nearly every source with torch reads first. Compiled once where the compiler is GCC; a source still includes
// what it needs itself (`python -m tools.build --no-precompiled --folder ...` proves it).

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>
