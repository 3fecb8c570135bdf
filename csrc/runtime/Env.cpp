// Strict parsing of every environment variable that the C++ side reads.
#include "runtime/Env.h"

#include <atomic>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <string_view>

#include "runtime/EnvParse.h"
#include "runtime/EnvSim.h"
#include "runtime/EnvXccl.h"

namespace kunlun {
namespace {

using env_parse::refuse;
using env_parse::split;
using env_parse::trim;
using env_parse::wholeNumber;

std::mutex parse_lock; // guards parsing and discarding
constinit std::atomic<const Env*> parsed{nullptr};

constexpr int kMaxDevices = 64;
constexpr int kMaxXcclBuffer = 1 << 20;
constexpr int kMaxThreads = 1024;
constexpr int kMaxXcclTimeout = 1'000'000'000;
constexpr int kMaxXcclTrace = 1 << 20;
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
constexpr const char* kCustomOps = "KUNLUN_CUSTOM_OPS";
constexpr const char* kSimPoison = "KUNLUN_SIM_POISON";
constexpr const char* kSimFault = "KUNLUN_SIM_FAULT";
constexpr const char* kSimOperators = "KUNLUN_SIM_OPERATORS";
constexpr const char* kSimDtypes = "KUNLUN_SIM_DTYPES";
constexpr const char* kSimCopySpeed = "KUNLUN_SIM_COPY_SPEED";
constexpr const char* kSimLinkSpeed = "KUNLUN_SIM_LINK_SPEED";
constexpr const char* kLaunchBlocking = "KUNLUN_LAUNCH_BLOCKING";
constexpr const char* kFallback = "KUNLUN_FALLBACK";
constexpr const char* kAutocompare = "KUNLUN_AUTOCOMPARE";
constexpr const char* kAutocompareDir = "KUNLUN_AUTOCOMPARE_DIR";
constexpr const char* kLogLevel = "KUNLUN_LOG_LEVEL";
constexpr const char* kXcclBufferBytes = "XCCL_BUFFER_BYTES";
constexpr const char* kXcclAlgorithm = "XCCL_ALGORITHM";
constexpr const char* kXcclAccumulate = "XCCL_ACCUMULATE";
constexpr const char* kXcclTimeout = "XCCL_TIMEOUT";
constexpr const char* kXcclBlockingWait = "XCCL_BLOCKING_WAIT";
constexpr const char* kXcclHostId = "XCCL_HOST_ID";
constexpr const char* kXcclNanCheck = "XCCL_NAN_CHECK";
constexpr const char* kXcclTiming = "XCCL_TIMING";
constexpr const char* kXcclTraceEntries = "XCCL_TRACE_ENTRIES";
constexpr const char* kXcclTraceFile = "XCCL_TRACE_FILE";

constexpr const char* kFallbackGrammar =
    "warn, allow or error, optionally followed by lists of operators that differ, as in "
    "\"error;allow=aten::nonzero,aten::unique_dim;warn=aten::add.Tensor\"";

// An empty value means the same as an unset variable, except for the list of visible devices.
std::optional<std::string> get(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') {
    return std::nullopt;
  }
  return std::string(value);
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

// The place in `words` of the value; 0 where the variable is not set.
size_t parseWord(const char* name, const std::vector<const char*>& words) {
  const auto text = get(name);
  if (!text) {
    return 0;
  }
  std::string accepted;
  for (size_t i = 0; i < words.size(); ++i) {
    if (*text == words[i]) {
      return i;
    }
    accepted += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + std::string(words[i]);
  }
  refuse(name, *text, accepted);
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
  if (const auto text = get(kSimFault)) {
    e.sim_faults = env_parse::simFaults(kSimFault, *text);
  }
  if (const auto text = get(kSimOperators)) {
    e.sim_operators = env_parse::simOperators(kSimOperators, *text);
  }
  if (const auto text = get(kSimDtypes)) {
    e.sim_missing_dtypes = env_parse::simMissingDtypes(kSimDtypes, *text);
  }
  e.sim_copy_speed = parseSpeed(kSimCopySpeed);
  e.sim_link_speed = parseSpeed(kSimLinkSpeed);
  e.launch_blocking = parseSwitch(kLaunchBlocking, e.launch_blocking);
  if (const auto text = get(kFallback)) {
    e.fallback = parseFallbackPolicy(*text);
  }
  e.autocompare = parseAutocompare();
  e.custom_ops = parseSwitch(kCustomOps, e.custom_ops);
  e.log_level = parseLogLevel();
  return e;
}

} // namespace

Autocompare parseAutocompare() {
  Autocompare settings;
  if (const auto directory = get(kAutocompareDir)) {
    settings.directory = *directory;
  }
  const auto text = get(kAutocompare);
  if (!text || *text == "0") {
    return settings;
  }
  if (*text != "1" && *text != "warn") {
    refuse(kAutocompare, *text, "0, 1 or warn");
  }
  settings.mode = *text == "1" ? Autocompare::Mode::Raise : Autocompare::Mode::Warn;
  return settings;
}

XcclEnv xcclEnv() {
  XcclEnv e;
  e.buffer_bytes =
      static_cast<uint32_t>(parseInt(kXcclBufferBytes, static_cast<int>(e.buffer_bytes), 0, kMaxXcclBuffer));
  e.algorithm = static_cast<XcclAlgorithm>(parseWord(kXcclAlgorithm, {"auto", "one_shot", "two_shot"}));
  e.accumulate = static_cast<XcclAccumulate>(parseWord(kXcclAccumulate, {"float32", "native"}));
  e.timeout_seconds = parseInt(kXcclTimeout, e.timeout_seconds, 1, kMaxXcclTimeout);
  e.blocking_wait = parseSwitch(kXcclBlockingWait, e.blocking_wait);
  e.nan_check = parseSwitch(kXcclNanCheck, e.nan_check);
  e.timing = parseSwitch(kXcclTiming, e.timing);
  e.trace_entries = parseInt(kXcclTraceEntries, e.trace_entries, 0, kMaxXcclTrace);
  e.trace_file = get(kXcclTraceFile).value_or("");
  e.host_id = get(kXcclHostId).value_or("");
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
      {kAutocompare,
       "0, 1 or warn",
       "0",
       "Compares the result of every operator with the CPU's as it runs. At a difference it saves a case that can be "
       "run; "
       "1 then raises, warn warns, once for each operator."},
      {kAutocompareDir, "a folder", "kunlun_autocompare", "Where KUNLUN_AUTOCOMPARE saves its cases."},
      {kCustomOps,
       "0 or 1",
       "1",
       "Whether the plug-ins of vLLM and SGLang run the fused operators, or torch's own in place of every one."},
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
      {kXcclAlgorithm,
       "auto, one_shot or two_shot",
       "auto",
       "Collectives: how all_reduce goes. one_shot: each rank reads everything and reduces all of it. two_shot: each "
       "reduces a part and hands it out. auto: one_shot up to XCCL_BUFFER_BYTES. Rank 0's value counts for all."},
      {kXcclAccumulate,
       "float32 or native",
       "float32",
       "Collectives: in what reductions of half types and 8-bit floats accumulate. native rounds after each rank, as a "
       "chip that adds in the dtype itself. Rank 0's value counts for all."},
      {kXcclTimeout,
       "seconds from 1 to 1000000000",
       "torch's, 30 minutes",
       "Collectives: timeout of groups that are made without `timeout=`."},
      {kXcclBlockingWait, "0 or 1", "0", "Collectives: Work.wait() makes the host wait, and raises what went wrong."},
      {kXcclHostId,
       "any text",
       "the machine and its name spaces",
       "Collectives: ranks with the same text share memory, others talk by TCP."},
      {kXcclNanCheck, "0 or 1", "0", "Collectives: refuses inputs that contain NaN."},
      {kXcclTiming, "0 or 1", "0", "Collectives: takes the time of each, for Work._get_duration() and the recorder."},
      {kXcclTraceEntries, "0 to 1048576", "2000", "Collectives: operations that the flight recorder keeps; 0 is off."},
      {kXcclTraceFile,
       "the beginning of a path, to which the rank is added",
       "no file",
       "Collectives: where a timeout writes the flight recorder, for torch.distributed.flight_recorder."},
  };
  return table;
}

} // namespace kunlun
