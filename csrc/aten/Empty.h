// Uninitialised tensors on a kunlun device.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/MemoryFormat.h>

#include "runtime/chip/chip.h"

namespace kunlun::aten {

// Memory comes from the caching allocator, for work on the thread's current
// stream of `device`; the current device does not matter and does not change.
at::Tensor empty(
    at::IntArrayRef sizes,
    c10::ScalarType dtype,
    c10::Device device,
    std::optional<c10::MemoryFormat> format = std::nullopt);

at::Tensor emptyStrided(at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType dtype, c10::Device device);

// Contiguous, for a caller that has looked up its stream already and whose sizes are those of a tensor.
at::Tensor emptyOnStream(at::IntArrayRef sizes, c10::ScalarType dtype, c10::Device device, kl_stream stream);

// For work on the chip's own thread (CachingAllocator::HostCallScope): memory for `stream` that was free when the
// stream's newest item was `sequence`.
at::Tensor emptyStridedOnStream(
    at::IntArrayRef sizes,
    at::IntArrayRef strides,
    c10::ScalarType dtype,
    c10::Device device,
    kl_stream stream,
    uint64_t sequence);

// The shape and, where dense, the strides of `like`.
at::Tensor emptyLike(const at::Tensor& like, std::optional<c10::ScalarType> dtype = std::nullopt);

// "kunlun" without index is the current device; any other device type raises.
c10::Device resolve(std::optional<c10::Device> device);

} // namespace kunlun::aten
