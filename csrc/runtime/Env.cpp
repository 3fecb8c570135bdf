// Strict parsing of every environment variable that the C++ side reads.
#include "runtime/Env.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <deque>
#include <iterator>
#include <mutex>
#include <string_view>

#include <utility>
#include "runtime/EnvXccl.h"

#include "runtime/chip/frame.h"

namespace kunlun {
namespace {

std::mutex parse_lock; // guards parsing and discarding
constinit std::atomic<const Env*> parsed{nullptr};

constexpr int kMaxDevices = 64;
constexpr int kMaxThreads = 1024;
constexpr int64_t kMaxHangSeconds = 86400;
constexpr int kMaxXcclBuffer = 1 << 20;
constexpr uint64_t kMinMemory = uint64_t{2} << 20;
constexpr uint64_t kMaxMemory = uint64_t{4} << 40;

constexpr const char* kChip = "KUNLUN_CHIP";
constexpr const char* kVisibleDevices = "KUNLUN_VISIBLE_DEVICES";
constexpr const char* kVendorVisibleDevices = "XPU_VISIBLE_DEVICES";
constexpr const char* kSimDevices = "KUNLUN_SIM_DEVICES";
constexpr const char* kSimMemory = "KUNLUN_SIM_MEMORY";
constexpr const char* kSimThreads = "KUNLUN_SIM_THREADS";
constexpr const char* kSimProtect = "KUNLUN_SIM_PROTECT";
constexpr const char* kSimHostAddressable = "KUNLUN_SIM_HOST_ADDRESSABLE";
constexpr const char* kSimPoison = "KUNLUN_SIM_POISON";
constexpr const char* kSimFault = "KUNLUN_SIM_FAULT";
constexpr const char* kSimOperators = "KUNLUN_SIM_OPERATORS";
constexpr const char* kSimDtypes = "KUNLUN_SIM_DTYPES";
constexpr const char* kSimCopySpeed = "KUNLUN_SIM_COPY_SPEED";
constexpr const char* kSimLinkSpeed = "KUNLUN_SIM_LINK_SPEED";
constexpr const char* kLaunchBlocking = "KUNLUN_LAUNCH_BLOCKING";
constexpr const char* kFallback = "KUNLUN_FALLBACK";
constexpr const char* kLogLevel = "KUNLUN_LOG_LEVEL";
constexpr const char* kXcclBufferBytes = "XCCL_BUFFER_BYTES";
constexpr const char* kXcclBlockingWait = "XCCL_BLOCKING_WAIT";
constexpr const char* kXcclNanCheck = "XCCL_NAN_CHECK";
constexpr const char* kXcclTiming = "XCCL_TIMING";

constexpr const char* kFallbackGrammar =
    "warn, allow or error, optionally followed by lists of operators that differ, as in "
    "\"error;allow=aten::nonzero,aten::unique_dim;warn=aten::add.Tensor\"";

constexpr const char* kSimFaultGrammar =
    "faults separated by commas, each a kind (launch, kernel, poison, hang) and the number of operators before it, for "
    "a "
    "hang also the seconds (1 to 86400) after which it gives up, and @ with a device, as in \"launch:100,hang:7:3@1\"";

[[noreturn]] void refuse(const char* name, std::string_view value, const std::string& accepted) {
  throw EnvError(std::string(name) + "=\"" + std::string(value) + "\" is not understood; accepted: " + accepted);
}

// An empty value means the same as an unset variable, except for the list of visible devices.
std::optional<std::string> get(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') {
    return std::nullopt;
  }
  return std::string(value);
}

template <class T>
std::optional<T> wholeNumber(std::string_view text) {
  T value{};
  auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || code != std::errc{} || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

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

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  size_t start = 0;
  for (size_t at; (at = text.find(separator, start)) != std::string_view::npos; start = at + 1) {
    parts.push_back(text.substr(start, at - start));
  }
  parts.push_back(text.substr(start));
  return parts;
}

std::string_view trim(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) {
    return {};
  }
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

int parseInt(const char* name, int fallback_value, int low, int high) {
  const auto text = get(name);
  if (!text) {
    return fallback_value;
  }
  const auto value = wholeNumber<int>(*text);
  if (!value || *value < low || *value > high) {
    refuse(name, *text, "a whole number from " + std::to_string(low) + " to " + std::to_string(high));
  }
  return *value;
}

bool parseSwitch(const char* name, bool fallback_value) {
  const auto text = get(name);
  if (!text) {
    return fallback_value;
  }
  if (*text != "0" && *text != "1") {
    refuse(name, *text, "0 or 1");
  }
  return *text == "1";
}

std::string parseChip() {
  const auto text = get(kChip);
  if (!text) {
    return {};
  }
  const bool is_path = text->size() > 3 && text->ends_with(".so");
  if (*text != "sim" && *text != "xre" && !is_path) {
    refuse(kChip, *text, "sim, xre or the path of a driver that ends in .so");
  }
  return *text;
}

std::optional<std::vector<int>> parseVisibleDevices() {
  const char* value = std::getenv(kVisibleDevices);
  if (value == nullptr) {
    return std::nullopt;
  }
  std::vector<int> devices;
  if (trim(value).empty()) {
    return devices;
  }
  const std::string accepted =
      "device numbers separated by commas, each named once, as in \"1,0\"; empty for no device";
  for (const auto part : split(value, ',')) {
    const auto device = wholeNumber<int>(trim(part));
    if (!device || *device < 0) {
      refuse(kVisibleDevices, value, accepted);
    }
    for (const int seen : devices) {
      if (seen == *device) {
        refuse(kVisibleDevices, value, accepted + " (device " + std::to_string(seen) + " is named twice)");
      }
    }
    devices.push_back(*device);
  }
  return devices;
}

std::optional<uint64_t> parseBytes(const char* name, uint64_t low, uint64_t high, const std::string& accepted) {
  const auto text = get(name);
  if (!text) {
    return std::nullopt;
  }
  std::string_view digits = *text;
  unsigned shift = 0;
  switch (digits.back()) {
    case 'K':
    case 'k':
      shift = 10;
      break;
    case 'M':
    case 'm':
      shift = 20;
      break;
    case 'G':
    case 'g':
      shift = 30;
      break;
    case 'T':
    case 't':
      shift = 40;
      break;
    default:
      break;
  }
  if (shift != 0) {
    digits.remove_suffix(1);
  }
  const auto value = wholeNumber<uint64_t>(digits);
  if (!value || *value > (high >> shift) || (*value << shift) < low) {
    refuse(name, *text, accepted);
  }
  return *value << shift;
}

std::optional<uint64_t> parseSpeed(const char* name) {
  return parseBytes(
      name, 1, kMaxMemory, "bytes a second from 1 to 4T, with K, M, G or T for powers of 1024, as in 100M");
}

// "kind:after", then ":seconds" for a hang that gives up and "@device".
SimFault parseSimFault(std::string_view part, std::string_view whole) {
  SimFault fault;
  auto check = [&](bool good) {
    if (!good) {
      refuse(kSimFault, whole, kSimFaultGrammar);
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

std::vector<SimFault> parseSimFaults() {
  std::vector<SimFault> faults;
  if (const auto text = get(kSimFault)) {
    for (const auto part : split(*text, ',')) {
      faults.push_back(parseSimFault(trim(part), *text));
    }
  }
  return faults;
}

SimOperators parseSimOperators() {
  SimOperators operators;
  const auto text = get(kSimOperators);
  if (!text || *text == "all") {
    return operators;
  }
  const size_t equals = text->find('=');
  const std::string_view word = std::string_view(*text).substr(0, equals);
  const char* accepted = "all, or only= or without= and operators, as in \"without=aten::mm,aten::add.out\"";
  if (equals == std::string::npos || (word != "only" && word != "without")) {
    refuse(kSimOperators, *text, accepted);
  }
  operators.only = word == "only";
  for (const auto part : split(std::string_view(*text).substr(equals + 1), ',')) {
    const auto name = trim(part);
    const size_t colons = name.find("::");
    if (colons == std::string_view::npos || colons == 0 || colons + 2 == name.size()) {
      refuse(kSimOperators, *text, accepted);
    }
    operators.names.emplace_back(name);
  }
  return operators;
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

uint32_t parseMissingDtypes() {
  const auto text = get(kSimDtypes);
  if (!text || *text == "all") {
    return 0;
  }
  std::string accepted = "all, or without= and dtypes, as in \"without=float64,complex128\"; the dtypes are";
  for (const auto& [name, dtype] : kDtypes) {
    accepted.append(" ").append(name);
  }
  constexpr std::string_view kWithout = "without=";
  if (!text->starts_with(kWithout)) {
    refuse(kSimDtypes, *text, accepted);
  }
  uint32_t missing = 0;
  for (const auto part : split(std::string_view(*text).substr(kWithout.size()), ',')) {
    const auto* found = std::find_if(
        std::begin(kDtypes), std::end(kDtypes), [&](const auto& dtype) { return dtype.first == trim(part); });
    if (found == std::end(kDtypes)) {
      refuse(kSimDtypes, *text, accepted);
    }
    missing |= 1u << found->second;
  }
  return missing;
}

Env::Protect parseProtect() {
  const auto text = get(kSimProtect);
  if (!text || *text == "auto") {
    return Env::Protect::Auto;
  }
  if (*text != "on" && *text != "off") {
    refuse(kSimProtect, *text, "auto, on or off");
  }
  return *text == "on" ? Env::Protect::On : Env::Protect::Off;
}

LogLevel parseLogLevel() {
  const auto text = get(kLogLevel);
  if (!text || *text == "warn") {
    return LogLevel::Warn;
  }
  if (*text == "silent") {
    return LogLevel::Silent;
  }
  if (*text == "info") {
    return LogLevel::Info;
  }
  if (*text == "debug") {
    return LogLevel::Debug;
  }
  refuse(kLogLevel, *text, "silent, warn, info or debug");
}

std::optional<FallbackAction> actionNamed(std::string_view word) {
  if (word == "warn") {
    return FallbackAction::Warn;
  }
  if (word == "allow") {
    return FallbackAction::Allow;
  }
  if (word == "error") {
    return FallbackAction::Error;
  }
  return std::nullopt;
}

Env parse() {
  Env e;
  e.chip = parseChip();
  e.visible_devices = parseVisibleDevices();
  e.sim_devices = parseInt(kSimDevices, e.sim_devices, 0, kMaxDevices);
  e.sim_memory = parseBytes(
      kSimMemory,
      kMinMemory,
      kMaxMemory,
      "bytes from 2M to 4T, with K, M, G or T for powers of 1024, as in 512M or 1073741824");
  e.sim_threads = parseInt(kSimThreads, e.sim_threads, 0, kMaxThreads);
  e.sim_protect = parseProtect();
  e.sim_host_addressable = parseSwitch(kSimHostAddressable, e.sim_host_addressable);
  e.sim_poison = parseSwitch(kSimPoison, e.sim_poison);
  e.sim_faults = parseSimFaults();
  e.sim_operators = parseSimOperators();
  e.sim_missing_dtypes = parseMissingDtypes();
  e.sim_copy_speed = parseSpeed(kSimCopySpeed);
  e.sim_link_speed = parseSpeed(kSimLinkSpeed);
  e.launch_blocking = parseSwitch(kLaunchBlocking, e.launch_blocking);
  if (const auto text = get(kFallback)) {
    e.fallback = parseFallbackPolicy(*text);
  }
  e.log_level = parseLogLevel();
  return e;
}

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

XcclEnv xcclEnv() {
  XcclEnv e;
  e.buffer_bytes =
      static_cast<uint32_t>(parseInt(kXcclBufferBytes, static_cast<int>(e.buffer_bytes), 0, kMaxXcclBuffer));
  e.blocking_wait = parseSwitch(kXcclBlockingWait, e.blocking_wait);
  e.nan_check = parseSwitch(kXcclNanCheck, e.nan_check);
  e.timing = parseSwitch(kXcclTiming, e.timing);
  return e;
}

FallbackPolicy parseFallbackPolicy(const std::string& text) {
  FallbackPolicy policy;
  const auto clauses = split(text, ';');
  const auto general = actionNamed(trim(clauses.front()));
  if (!general) {
    refuse(kFallback, text, kFallbackGrammar);
  }
  policy.general = *general;
  for (size_t i = 1; i < clauses.size(); ++i) {
    const size_t equals = clauses[i].find('=');
    if (equals == std::string_view::npos) {
      refuse(kFallback, text, kFallbackGrammar);
    }
    const auto action = actionNamed(trim(clauses[i].substr(0, equals)));
    if (!action) {
      refuse(kFallback, text, kFallbackGrammar);
    }
    for (const auto part : split(clauses[i].substr(equals + 1), ',')) {
      const std::string op(trim(part));
      const size_t colons = op.find("::");
      if (colons == std::string::npos || colons == 0 || colons + 2 == op.size()) {
        refuse(kFallback, text, std::string(kFallbackGrammar) + " (\"" + op + "\" does not name an operator)");
      }
      for (const auto& seen : policy.exceptions) {
        if (seen.op == op) {
          refuse(kFallback, text, std::string(kFallbackGrammar) + " (" + op + " is named twice)");
        }
      }
      policy.exceptions.push_back({op, *action});
    }
  }
  return policy;
}

FallbackAction FallbackPolicy::actionFor(const std::string& name, const std::string& overload) const {
  const std::string full = overload.empty() ? name : name + "." + overload;
  FallbackAction action = general;
  for (const auto& exception : exceptions) {
    if (exception.op == full) {
      return exception.action;
    }
    if (exception.op == name) {
      action = exception.action;
    }
  }
  return action;
}

const Env& env() {
  if (const Env* known = parsed.load(std::memory_order_acquire)) {
    return *known;
  }
  std::lock_guard lock(parse_lock);
  if (parsed.load(std::memory_order_relaxed) == nullptr) {
    // Never freed: it outlives every static object, and references stay valid when it is discarded.
    static std::deque<Env>& all = *new std::deque<Env>;
    parsed.store(&all.emplace_back(parse()), std::memory_order_release);
  }
  return *parsed.load(std::memory_order_relaxed);
}

void discardEnv() {
  std::lock_guard lock(parse_lock);
  parsed.store(nullptr, std::memory_order_release);
}

void exportVisibleDevices() {
  const auto& visible = env().visible_devices;
  if (!visible) {
    return;
  }
  std::string list;
  for (const int device : *visible) {
    list += (list.empty() ? "" : ",") + std::to_string(device);
  }
  const char* already = std::getenv(kVendorVisibleDevices);
  if (already != nullptr && list != already) {
    throw EnvError(
        std::string(kVisibleDevices) + "=\"" + list + "\" and " + kVendorVisibleDevices + "=\"" + already +
        "\" say different things; set only the former");
  }
  setenv(kVendorVisibleDevices, list.c_str(), 1);
}

const std::vector<EnvVariable>& envVariables() {
  static const std::vector<EnvVariable>& table = *new std::vector<EnvVariable>{
      {kChip,
       "sim, xre or a path ending in .so",
       "xre where the vendor's runtime and a device are present, else sim",
       "The chip driver."},
      {kVisibleDevices,
       "numbers separated by commas; empty for none",
       "every device",
       "Selects and reorders the devices of the process."},
      {kLaunchBlocking, "0 or 1", "0", "Waits for each operator, so that an error is raised at the call itself."},
      {kFallback,
       "warn, allow or error, then per-operator lists such as error;allow=aten::nonzero",
       "warn",
       "What to do with an operator that only a copying CPU fallback could serve."},
      {kLogLevel, "silent, warn, info or debug", "warn", "What is written to stderr."},
      {kSimDevices, "0 to 64", "2", "Number of simulated devices."},
      {kSimMemory,
       "bytes from 2M to 4T with K, M, G or T, such as 512M",
       "4G, or less on a small host",
       "Memory of each simulated device."},
      {kSimThreads, "0 to 1024", "0 (as many as the process would use)", "Threads that one simulated kernel may use."},
      {kSimProtect,
       "auto, on or off",
       "auto (on where the CPU has memory protection keys)",
       "Whether host code that touches device memory is stopped with a message."},
      {kSimHostAddressable,
       "0 or 1",
       "1",
       "Whether the simulated chip claims that host calls may dereference device memory."},
      {kSimPoison, "0 or 1", "0", "Fills fresh device memory with 0xCB, to expose reads of uninitialised memory."},
      {kSimFault,
       "faults such as launch:100, kernel:0, poison:3@1, hang:7 or hang:7:3, separated by commas",
       "none",
       "Faults that the simulated chip shows, each once: what happens, after how many operators, for a hang the "
       "seconds "
       "until it gives up, and on which device."},
      {kSimOperators,
       "all, or only= or without= and operators, such as without=aten::mm,aten::add.out",
       "all",
       "Operators that the simulated chip has kernels for."},
      {kSimDtypes,
       "all, or without= and dtypes, such as without=float64,complex128",
       "all",
       "Dtypes that the simulated chip's kernels take."},
      {kSimCopySpeed,
       "bytes a second from 1 to 4T with K, M, G or T, such as 100M",
       "no limit",
       "How fast the simulated chip copies between host and device."},
      {kSimLinkSpeed,
       "bytes a second from 1 to 4T with K, M, G or T, such as 100M",
       "no limit",
       "How fast simulated devices send to each other."},
      {kXcclBufferBytes,
       "0 to 1048576",
       "16384",
       "Collectives: up to this size a rank's data travels with its call; larger data is read where it lies. Rank 0's "
       "value counts for all."},
      {kXcclBlockingWait, "0 or 1", "0", "Collectives: Work.wait() makes the host wait, and raises what went wrong."},
      {kXcclNanCheck, "0 or 1", "0", "Collectives: refuses inputs that contain NaN."},
      {kXcclTiming, "0 or 1", "0", "Collectives: takes the time of each, for Work._get_duration() and the recorder."},
  };
  return table;
}

} // namespace kunlun
