// Takes a seed and an offset for one random operator from a kunlun generator.
#include "aten/random/Philox.h"

#include "runtime/Generator.h"

namespace kunlun::aten {

namespace {
// Numbers that one call may draw per element. On the simulated chip the offset
// only has to differ between calls; a real chip counts on the range.
constexpr uint64_t kIncrement = 4;
} // namespace

frame::Philox drawPhilox(const std::optional<at::Generator>& generator, c10::Device device) {
  const auto& chosen = generator.has_value() && generator->defined() ? *generator : getDefaultGenerator(device.index());
  TORCH_CHECK(
      chosen.device() == device, "Expected a '", device, "' generator device but found '", chosen.device(), "'");
  auto* impl = chosen.get<GeneratorImpl>();
  std::lock_guard<std::mutex> lock(impl->mutex_);
  const auto [seed, offset] = impl->philoxState(kIncrement);
  return {seed, offset};
}

} // namespace kunlun::aten
