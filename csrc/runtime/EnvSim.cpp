// Grammars of what the simulated chip can be made to show.
#include "runtime/EnvSim.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include "runtime/EnvParse.h"
#include "runtime/chip/frame.h"

namespace kunlun {
namespace {

constexpr int kMaxDevices = 64;
constexpr int64_t kMaxHangSeconds = 86400;

constexpr const char* kSimFaultGrammar =
    "faults separated by commas, each a kind (launch, kernel, poison, hang) and the number of operators before it, for "
    "a "
    "hang also the seconds (1 to 86400) after which it gives up, and @ with a device, as in \"launch:100,hang:7:3@1\"";

std::optional<SimFault::Kind> simFaultKindNamed(std::string_view word) {
  using Kind = SimFault::Kind;
  constexpr std::pair<std::string_view, Kind> kKinds[] = {
      {"launch", Kind::Launch}, {"kernel", Kind::Kernel}, {"poison", Kind::Poison}, {"hang", Kind::Hang}};
  for (const auto& [name, kind] : kKinds) {
    if (name == word) {
      return kind;
    }
  }
  return std::nullopt;
}

constexpr std::pair<std::string_view, kl_dtype> kDtypes[] = {
    {"bool", KL_BOOL},
    {"uint8", KL_UINT8},
    {"int8", KL_INT8},
    {"int16", KL_INT16},
    {"int32", KL_INT32},
    {"int64", KL_INT64},
    {"uint16", KL_UINT16},
    {"uint32", KL_UINT32},
    {"uint64", KL_UINT64},
    {"float16", KL_FLOAT16},
    {"bfloat16", KL_BFLOAT16},
    {"float32", KL_FLOAT32},
    {"float64", KL_FLOAT64},
    {"complex32", KL_COMPLEX32},
    {"complex64", KL_COMPLEX64},
    {"complex128", KL_COMPLEX128},
    {"float8_e4m3fn", KL_FLOAT8_E4M3FN},
    {"float8_e5m2", KL_FLOAT8_E5M2},
    {"float8_e4m3fnuz", KL_FLOAT8_E4M3FNUZ},
    {"float8_e5m2fnuz", KL_FLOAT8_E5M2FNUZ},
    {"float8_e8m0fnu", KL_FLOAT8_E8M0FNU},
};
static_assert(std::size(kDtypes) == KL_DTYPE_COUNT - 1);

} // namespace

SimFault::Kind parseSimFaultKind(const std::string& text) {
  const auto kind = simFaultKindNamed(text);
  if (!kind) {
    throw EnvError("\"" + text + "\" is not a kind of fault; accepted: launch, kernel, poison or hang");
  }
  return *kind;
}

bool SimOperators::has(std::string_view schema) const {
  const std::string_view name = schema.substr(0, schema.find('.'));
  const bool named =
      std::any_of(names.begin(), names.end(), [&](const auto& each) { return each == schema || each == name; });
  return named == only;
}

namespace env_parse {

namespace {

// "kind:after", then ":seconds" for a hang that gives up and "@device".
SimFault simFault(const char* name, std::string_view part, std::string_view whole) {
  SimFault fault;
  auto check = [&](bool good) {
    if (!good) {
      refuse(name, whole, kSimFaultGrammar);
    }
  };
  if (const size_t at = part.find('@'); at != std::string_view::npos) {
    fault.device = wholeNumber<int>(part.substr(at + 1));
    check(fault.device && *fault.device >= 0 && *fault.device < kMaxDevices);
    part = part.substr(0, at);
  }
  const auto fields = split(part, ':');
  check(fields.size() == 2 || fields.size() == 3);
  const auto kind = simFaultKindNamed(fields[0]);
  const auto after = wholeNumber<uint64_t>(fields[1]);
  check(kind && after);
  fault.kind = *kind;
  fault.after = *after;
  if (fields.size() == 3) {
    const auto seconds = wholeNumber<int64_t>(fields[2]);
    check(*kind == SimFault::Kind::Hang && seconds && *seconds > 0 && *seconds <= kMaxHangSeconds);
    fault.nanoseconds = *seconds * 1'000'000'000;
  }
  return fault;
}

} // namespace

std::vector<SimFault> simFaults(const char* name, const std::string& text) {
  std::vector<SimFault> faults;
  for (const auto part : split(text, ',')) {
    faults.push_back(simFault(name, trim(part), text));
  }
  return faults;
}

SimOperators simOperators(const char* name, const std::string& text) {
  SimOperators operators;
  if (text == "all") {
    return operators;
  }
  const size_t equals = text.find('=');
  const std::string_view word = std::string_view(text).substr(0, equals);
  const char* accepted = "all, or only= or without= and operators, as in \"without=aten::mm,aten::add.out\"";
  if (equals == std::string::npos || (word != "only" && word != "without")) {
    refuse(name, text, accepted);
  }
  operators.only = word == "only";
  for (const auto part : split(std::string_view(text).substr(equals + 1), ',')) {
    const auto op = trim(part);
    const size_t colons = op.find("::");
    if (colons == std::string_view::npos || colons == 0 || colons + 2 == op.size()) {
      refuse(name, text, accepted);
    }
    operators.names.emplace_back(op);
  }
  return operators;
}

uint32_t simMissingDtypes(const char* name, const std::string& text) {
  if (text == "all") {
    return 0;
  }
  std::string accepted = "all, or without= and dtypes, as in \"without=float64,complex128\"; the dtypes are";
  for (const auto& [dtype, number] : kDtypes) {
    accepted.append(" ").append(dtype);
  }
  constexpr std::string_view kWithout = "without=";
  if (!text.starts_with(kWithout)) {
    refuse(name, text, accepted);
  }
  uint32_t missing = 0;
  for (const auto part : split(std::string_view(text).substr(kWithout.size()), ',')) {
    const auto* found = std::find_if(
        std::begin(kDtypes), std::end(kDtypes), [&](const auto& dtype) { return dtype.first == trim(part); });
    if (found == std::end(kDtypes)) {
      refuse(name, text, accepted);
    }
    missing |= 1u << found->second;
  }
  return missing;
}

} // namespace env_parse
} // namespace kunlun
