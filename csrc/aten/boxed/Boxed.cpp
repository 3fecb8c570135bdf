// The boxed tier: every operator with a CPU kernel, synchronous and zero copy.
#include "aten/boxed/Boxed.h"

#include <atomic>
#include <mutex>
#include <unordered_map>

#include <ATen/core/Generator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/ivalue.h>
#include <c10/util/flat_hash_map.h>

#include "aten/Fallback.h"
#include "aten/Statistics.h"
#include "aten/boxed/Aliases.h"
#include "aten/boxed/BoxedFrame.h"
#include "aten/boxed/HostCall.h"
#include "aten/boxed/HostCopies.h"
#include "aten/boxed/PureCall.h"
#include "aten/random/Philox.h"
#include "runtime/Device.h"
#include "runtime/chip/Loader.h"
#include "runtime/frame/Unpack.h"

namespace kunlun::aten {

std::string qualifiedName(const c10::OperatorHandle& op) {
  const auto& name = op.operator_name();
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

namespace {

// How an operator uses an argument.
Aliases::Use useOf(const c10::Argument& argument) {
  if (argument.is_out()) {
    return Aliases::Use::Out;
  }
  // The schemas of batch normalisation do not say that these are updated.
  const bool updated = argument.name() == "running_mean" || argument.name() == "running_var";
  const auto* alias = argument.alias_info();
  return updated || (alias != nullptr && alias->isWrite()) ? Aliases::Use::Written : Aliases::Use::Read;
}

// What is looked up once per operator. Lives for ever: errors and traces point to the name.
struct OpInfo {
  explicit OpInfo(const c10::OperatorHandle& op) : name(qualifiedName(op)), calls(callCounter(Tier::Boxed, name)) {
    const auto* table = chip::operators();
    if (table == nullptr || table->lookup(name.c_str(), &driver) != KL_SUCCESS) {
      driver = {nullptr, nullptr};
    }
    pure = isPure(op.schema());
    const auto& arguments = op.schema().arguments();
    for (size_t i = 0; i < arguments.size(); ++i) {
      auto type = arguments[i].type();
      if (const auto optional = type->cast<c10::OptionalType>()) {
        type = optional->getElementType();
      }
      if (type->kind() == c10::TypeKind::GeneratorType) {
        generators.push_back(i);
      }
      uses.push_back(useOf(arguments[i]));
    }
  }
  std::string name;
  std::atomic<uint64_t>& calls;
  kl_operator driver{nullptr, nullptr};
  mutable std::atomic<bool> pure; // goes over as plain data (PureCall.h)
  std::vector<size_t> generators; // positions of generator arguments
  std::vector<Aliases::Use> uses; // of each argument
};

const OpInfo& makeInfo(const c10::OperatorHandle& op) {
  static auto* mutex = new std::mutex(); // guards infos
  static auto* infos = new std::unordered_map<c10::OperatorName, std::unique_ptr<OpInfo>>();
  std::lock_guard<std::mutex> lock(*mutex);
  auto& info = (*infos)[op.operator_name()];
  if (info == nullptr) {
    info = std::make_unique<OpInfo>(op);
  }
  return *info;
}

const OpInfo& infoOf(const c10::OperatorHandle& op) {
  // Per thread, so that the lookup of every call takes no lock and hashes no string.
  thread_local ska::flat_hash_map<c10::OperatorHandle, const OpInfo*> known;
  auto& info = known[op];
  if (info == nullptr) {
    info = &makeInfo(op);
  }
  return *info;
}

bool takeDevice(const c10::IValue& value, std::optional<c10::Device>& device) {
  if (value.isTensor()) {
    const auto& tensor = value.toTensor();
    if (tensor.defined() && tensor.device().is_privateuseone()) {
      device = tensor.device();
    }
  } else if (value.isTensorList() || value.isOptionalTensorList() || (value.isList() && !value.isIntList())) {
    for (const auto& element : value.toListRef()) {
      if (takeDevice(element, device)) {
        break;
      }
    }
  } else if (value.isDevice() && value.toDevice().is_privateuseone()) {
    device = c10::Device(c10::DeviceType::PrivateUse1, resolveDevice(value.toDevice().index()));
  } else if (value.isGenerator() && value.toGenerator().device().is_privateuseone()) {
    device = value.toGenerator().device();
  }
  return device.has_value();
}

c10::Device deviceOfCall(at::ArrayRef<c10::IValue> arguments) {
  std::optional<c10::Device> device;
  for (const auto& argument : arguments) {
    if (takeDevice(argument, device)) {
      return *device;
    }
  }
  return {c10::DeviceType::PrivateUse1, currentDevice()};
}

int64_t workOf(at::ArrayRef<c10::IValue> arguments) {
  int64_t work = 0;
  for (const auto& argument : arguments) {
    if (argument.isTensor() && argument.toTensor().defined()) {
      const auto& tensor = argument.toTensor();
      work += tensor.layout() == c10::kStrided ? tensor.numel() : tensor._nnz();
    } else if (argument.isTensorList()) {
      for (const at::Tensor& tensor : argument.toTensorVector()) {
        work += tensor.defined() && tensor.layout() == c10::kStrided ? tensor.numel() : 0;
      }
    }
  }
  return work;
}

// Random kernels draw from a CPU generator that is made from the device's
// generator; without one in the arguments, from the device's default.
void replaceGenerators(const OpInfo& info, c10::Device device, torch::jit::Stack& stack, size_t first) {
  for (const auto position : info.generators) {
    auto& value = stack[first + position];
    const auto philox =
        drawPhilox(value.isNone() ? std::nullopt : std::optional<at::Generator>(value.toGenerator()), device);
    value = frame::philoxCpuGenerator(philox.seed, philox.offset);
  }
}

void runAliased(const c10::OperatorHandle& op, const OpInfo& info, c10::Device device, torch::jit::Stack* stack) {
  const auto arguments = op.schema().arguments().size();
  const size_t first = stack->size() - arguments;
  Aliases aliases(device);
  // In place: the caller's own stack goes over and comes back with the results.
  for (size_t i = first; i < stack->size(); ++i) {
    auto& value = (*stack)[i];
    value = aliases.toHost(value, info.name.c_str());
  }
  replaceGenerators(info, device, *stack, first);
  // Of the aliases: asking a sparse kunlun tensor for its size would come here again.
  const auto work = workOf(torch::jit::last(*stack, arguments));
  runOnChip(device, info.name.c_str(), work, [&] { op.callBoxed(stack); });
  aliases.writeBack();
  for (size_t i = first; i < stack->size(); ++i) {
    auto& value = (*stack)[i];
    value = aliases.toDevice(value);
  }
}

// On a chip whose memory the host cannot reach: the caller computes on copies, under the policy.
void runOnCopies(const c10::OperatorHandle& op, const OpInfo& info, c10::Device device, torch::jit::Stack* stack) {
  const auto arguments = op.schema().arguments().size();
  const size_t first = stack->size() - arguments;
  permitFallback(info.name, device, torch::jit::last(*stack, arguments));
  HostCopies copies(device);
  Aliases aliases(device, &copies);
  for (size_t i = 0; i < arguments; ++i) {
    auto& value = (*stack)[first + i];
    value = aliases.toHost(value, info.name.c_str(), info.uses[i]);
  }
  replaceGenerators(info, device, *stack, first);
  {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    op.callBoxed(stack);
  }
  aliases.writeBack();
  for (size_t i = first; i < stack->size(); ++i) {
    auto& value = (*stack)[i];
    value = aliases.toDevice(value);
  }
}

} // namespace

void boxedTier(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  lazyInit();
  const auto& info = infoOf(op);
  const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
  const auto device = deviceOfCall(arguments);
  std::optional<c10::DeviceGuard> guard;
  if (device.index() != currentDevice()) {
    guard.emplace(device);
  }
  if (info.driver.launch != nullptr && launchBoxedFrame(op, info.name.c_str(), info.driver, device, stack)) {
    return;
  }
  if (hasCapability(device.index(), KL_CAP_HOST_ADDRESSABLE)) {
    trace(Tier::Boxed, info.name.c_str());
    info.calls.fetch_add(1, std::memory_order_relaxed);
    if (!info.pure.load(std::memory_order_relaxed) || !runPure(op, info.name.c_str(), device, stack, info.pure)) {
      runAliased(op, info, device, stack);
    }
    return;
  }
  runOnCopies(op, info, device, stack);
}

} // namespace kunlun::aten
