// The counter-based random generator of a device: a seed and an offset into its stream of numbers.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

namespace kunlun {

// As for every generator, mutex_ guards the state and callers hold it around anything that changes the state.
class GeneratorImpl final : public c10::GeneratorImpl {
 public:
  explicit GeneratorImpl(c10::DeviceIndex device);

  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  // State: 16 bytes on the host, {seed, offset}, both 64-bit little-endian.
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  // As on CUDA, a generator shares its state with what graphsafe_get_state returned and with what took that over: both
  // draw from one sequence of numbers.
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& state) override;
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override;

  // {seed, offset} for work that draws at most `increment` numbers per element; moves the offset on, rounded up to a
  // multiple of 4 because the generator makes four numbers at a time.
  std::pair<uint64_t, uint64_t> philoxState(uint64_t increment);

  static c10::DeviceType device_type() {
    return c10::DeviceType::PrivateUse1;
  }

 private:
  GeneratorImpl* clone_impl() const override;

  struct State {
    uint64_t seed = c10::default_rng_seed_val;
    uint64_t offset = 0;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// The generator that random operators of `device` use when none is given; -1 is the current device.
const at::Generator& getDefaultGenerator(c10::DeviceIndex device = -1);
at::Generator createGenerator(c10::DeviceIndex device = -1);

} // namespace kunlun
