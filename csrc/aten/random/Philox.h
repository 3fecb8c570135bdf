// Takes a seed and an offset for one random operator from a kunlun generator.
#pragma once

#include <optional>

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include "runtime/frame/FrameBuilder.h"

namespace kunlun::aten {

// Without a generator, from the device's default one. Raises for a generator
// of another device. Every call moves the generator's offset on.
frame::Philox drawPhilox(const std::optional<at::Generator>& generator, c10::Device device);

} // namespace kunlun::aten
