// The simulated chip's operator library: its kernels are ATen's CPU kernels.
#pragma once

#include <functional>

#include <c10/util/ArrayRef.h>

#include "runtime/chip/frame.h"

namespace kunlun::sim {

// Runs on a chip thread; throws what the CPU kernel throws.
struct Kernel {
  const char* schema;
  void (*run)(const kl_frame* frame);
};

// Structured operators, generated.
void visitGeneratedKernels(const std::function<void(c10::ArrayRef<Kernel>)>& visit);

// Operators with a kernel of their own here (DirectKernels.cpp).
c10::ArrayRef<Kernel> directKernels();
c10::ArrayRef<Kernel> attentionKernels();

// The fused operators kunlun::* (folder fused).
void visitFusedKernels(const std::function<void(c10::ArrayRef<Kernel>)>& visit);

// Schemas that are served through the dispatcher's boxed calling convention: BoxedKernels.cpp, and generated ones.
c10::ArrayRef<const char*> boxedKernels();
c10::ArrayRef<const char*> generatedBoxedKernels();

} // namespace kunlun::sim
