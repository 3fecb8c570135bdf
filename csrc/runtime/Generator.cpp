// The counter-based random generator of a device: a seed and an offset into its stream of numbers.
#include "runtime/Generator.h"

#include <array>
#include <cstring>
#include <mutex>

#include <ATen/EmptyTensor.h>
#include <ATen/core/TensorBase.h>

#include "runtime/Device.h"

namespace kunlun {

namespace {

// Numbers that one step of the generator makes; offsets are whole steps.
constexpr uint64_t kStep = 4;
constexpr size_t kStateBytes = 2 * sizeof(uint64_t);

void checkOffset(uint64_t offset) {
  TORCH_CHECK_VALUE(
      offset % kStep == 0, "the offset of a kunlun generator must be a multiple of ", kStep, ", got ", offset);
}

} // namespace

GeneratorImpl::GeneratorImpl(c10::DeviceIndex device)
    : c10::GeneratorImpl(
          c10::Device(c10::DeviceType::PrivateUse1, device),
          c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

void GeneratorImpl::set_current_seed(uint64_t seed) {
  state_->seed = seed;
  state_->offset = 0;
}

void GeneratorImpl::set_offset(uint64_t offset) {
  checkOffset(offset);
  state_->offset = offset;
}

uint64_t GeneratorImpl::get_offset() const {
  return state_->offset;
}

uint64_t GeneratorImpl::current_seed() const {
  return state_->seed;
}

uint64_t GeneratorImpl::seed() {
  const uint64_t random = c10::detail::getNonDeterministicRandom(true);
  set_current_seed(random);
  return random;
}

void GeneratorImpl::set_state(const c10::TensorImpl& state) {
  at::detail::check_rng_state(state);
  TORCH_CHECK_VALUE(
      static_cast<size_t>(state.numel()) == kStateBytes,
      "the state of a kunlun generator has ",
      kStateBytes,
      " bytes, got ",
      state.numel());
  uint64_t words[2];
  std::memcpy(words, state.data(), kStateBytes);
  checkOffset(words[1]);
  *state_ = {words[0], words[1]};
}

c10::intrusive_ptr<c10::TensorImpl> GeneratorImpl::get_state() const {
  const uint64_t words[2] = {state_->seed, state_->offset};
  auto state = at::detail::empty_cpu(
      {static_cast<int64_t>(kStateBytes)}, at::kByte, std::nullopt, std::nullopt, std::nullopt, std::nullopt);
  std::memcpy(state.mutable_data_ptr(), words, kStateBytes);
  return state.getIntrusivePtr();
}

void GeneratorImpl::graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& state) {
  const auto* other = dynamic_cast<const GeneratorImpl*>(state.get());
  TORCH_CHECK_TYPE(other != nullptr, "expected the state of a kunlun generator");
  state_ = other->state_;
}

c10::intrusive_ptr<c10::GeneratorImpl> GeneratorImpl::graphsafe_get_state() const {
  auto other = c10::make_intrusive<GeneratorImpl>(device().index());
  other->state_ = state_;
  return other;
}

std::pair<uint64_t, uint64_t> GeneratorImpl::philoxState(uint64_t increment) {
  const uint64_t offset = state_->offset;
  state_->offset += (increment + kStep - 1) / kStep * kStep;
  return {state_->seed, offset};
}

GeneratorImpl* GeneratorImpl::clone_impl() const {
  auto* copy = new GeneratorImpl(device().index());
  *copy->state_ = *state_;
  return copy;
}

const at::Generator& getDefaultGenerator(c10::DeviceIndex device) {
  device = resolveDevice(device);
  deviceCountEnsureNonZero();
  // Never destroyed: Python objects may refer to a generator until the very end of the process.
  static auto* flags = new std::array<std::once_flag, kMaxDevices>;
  static auto* generators = new std::array<at::Generator, kMaxDevices>;
  std::call_once((*flags)[device], [&] {
    (*generators)[device] = at::make_generator<GeneratorImpl>(device);
    (*generators)[device].seed();
  });
  return (*generators)[device];
}

at::Generator createGenerator(c10::DeviceIndex device) {
  return at::make_generator<GeneratorImpl>(resolveDevice(device));
}

} // namespace kunlun
