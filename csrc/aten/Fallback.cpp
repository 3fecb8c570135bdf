// The policy for operators that only the host could compute, on copies.
#include "aten/Fallback.h"

#include <atomic>
#include <mutex>
#include <set>
#include <sstream>

#include <ATen/core/Tensor.h>

#include "aten/Statistics.h"
#include "runtime/Device.h"
#include "runtime/Error.h"
#include "runtime/SyncDebug.h"
#include "runtime/chip/Loader.h"

namespace kunlun::aten {

namespace {

std::mutex& policyMutex() { // guards policy() and warnedOps()
  static auto* mutex = new std::mutex();
  return *mutex;
}

std::optional<FallbackPolicy>& policy() {
  static auto* chosen = new std::optional<FallbackPolicy>();
  return *chosen;
}

std::set<std::string>& warnedOps() {
  static auto* ops = new std::set<std::string>();
  return *ops;
}

std::atomic<UnsupportedOperatorThrower> unsupported_operator_thrower{nullptr};

[[noreturn]] void throwUnsupportedOperator(std::string text) {
  if (const auto thrower = unsupported_operator_thrower.load()) {
    thrower(text);
  }
  C10_THROW_ERROR(NotImplementedError, std::move(text));
}

void describe(std::ostream& out, const c10::IValue& value) {
  if (value.isTensor() && value.toTensor().defined()) {
    const auto& tensor = value.toTensor();
    out << (out.tellp() == std::streampos(0) ? "" : ", ") << tensor.scalar_type();
    if (tensor.is_nested()) {
      out << "[nested]"; // has no single shape
    } else {
      out << tensor.sizes();
    }
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    for (const auto& element : value.toListRef()) {
      describe(out, element);
    }
  }
}

std::string chipName(c10::Device device) {
  kl_driver_info info{};
  check(chip::runtime().driver_info(&info), "driver_info");
  return std::string(deviceProperties(device.index()).name) + " (driver " + info.name + ")";
}

} // namespace

void setUnsupportedOperatorThrower(UnsupportedOperatorThrower thrower) {
  unsupported_operator_thrower.store(thrower);
}

FallbackPolicy fallbackPolicy() {
  std::lock_guard<std::mutex> lock(policyMutex());
  return policy().has_value() ? *policy() : env().fallback;
}

void setFallbackPolicy(const std::string& text) {
  auto parsed = parseFallbackPolicy(text);
  std::lock_guard<std::mutex> lock(policyMutex());
  policy() = std::move(parsed);
  warnedOps().clear();
}

void permitFallback(const std::string& op, c10::Device device, const std::string& arguments) {
  noteSynchronization(op.c_str());
  const auto dot = op.find('.');
  const auto action =
      fallbackPolicy().actionFor(op.substr(0, dot), dot == std::string::npos ? std::string() : op.substr(dot + 1));
  if (action == FallbackAction::Error) {
    throwUnsupportedOperator(
        c10::str(
            "The operator '",
            op,
            "' has no kernel on ",
            chipName(device),
            " for arguments (",
            arguments,
            "), and the fallback policy forbids computing it on the host. To allow it, set KUNLUN_FALLBACK=warn or "
            "KUNLUN_FALLBACK='error;allow=",
            op,
            "', or call torch_xpu_kunlun.set_fallback_policy; every call then copies its arguments to the host and "
            "its results back."));
  }
  if (action == FallbackAction::Warn) {
    bool first = false;
    {
      std::lock_guard<std::mutex> lock(policyMutex());
      first = warnedOps().insert(op).second;
    }
    if (first) {
      TORCH_WARN(
          "The operator '",
          op,
          "' has no kernel on ",
          chipName(device),
          " and is computed on the host, on copies of its arguments (",
          arguments,
          "). Set KUNLUN_FALLBACK=error to find such operators, or KUNLUN_FALLBACK='warn;allow=",
          op,
          "' to accept this one.");
    }
  }
  count(Tier::Fallback, op);
}

void permitFallback(const std::string& op, c10::Device device, at::ArrayRef<c10::IValue> arguments) {
  std::ostringstream text;
  for (const auto& argument : arguments) {
    describe(text, argument);
  }
  permitFallback(op, device, text.str());
}

} // namespace kunlun::aten
