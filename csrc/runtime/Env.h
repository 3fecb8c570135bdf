// Environment variables: parsed strictly, once, in one place.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace kunlun {

// A variable whose value is not understood. The text names the variable, the value and what is accepted.
class EnvError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

// What happens when an operator has no kernel on the chip and a copying CPU fallback could serve it.
enum class FallbackAction { Warn, Allow, Error };

// The general action and the operators that differ from it. An operator is named "aten::add" (every overload) or
// "aten::add.Tensor" (that overload, which wins over the former).
struct FallbackPolicy {
  struct Exception {
    std::string op;
    FallbackAction action;
  };
  FallbackAction general = FallbackAction::Warn;
  std::vector<Exception> exceptions;

  // `overload` is the part after the dot, empty for the default overload.
  FallbackAction actionFor(const std::string& name, const std::string& overload) const;
};

// A fault that the simulated chip is to show, once.
struct SimFault {
  enum class Kind {
    Launch, // the launch is refused
    Kernel, // the operator fails on its stream
    Poison, // the operator breaks the device, which stays unusable until it is reset
    Hang    // the stream stops before the operator
  };
  Kind kind = Kind::Launch;
  uint64_t after = 0;                 // operators that are launched unharmed before it
  std::optional<int> device;          // none: the first device on which its turn comes
  std::optional<int64_t> nanoseconds; // when a hang gives up; none: never
};

// Operators that the simulated chip has kernels for. Names as in FallbackPolicy.
struct SimOperators {
  bool only = false; // whether `names` are those it has, or those it lacks
  std::vector<std::string> names;

  bool all() const {
    return !only && names.empty();
  }
  bool has(std::string_view schema) const; // "aten::add.out"
};

enum class LogLevel { Silent = 0, Warn = 1, Info = 2, Debug = 3 };

// Whether operators are compared with the CPU as they run, and what happens where one differs.
struct Autocompare {
  enum class Mode { Off, Raise, Warn };
  Mode mode = Mode::Off;
  std::string directory = "kunlun_autocompare"; // where minimal cases are saved
};

struct Env {
  enum class Protect { Auto, On, Off };

  std::string chip; // "", "sim", "xre" or a path that ends in .so
  std::optional<std::vector<int>> visible_devices;
  int sim_devices = 2;
  std::optional<uint64_t> sim_memory; // bytes of each device
  int sim_threads = 0;                // 0: as many as the process would use
  Protect sim_protect = Protect::Auto;
  bool sim_host_addressable = true;
  bool sim_poison = false;
  std::vector<SimFault> sim_faults;
  SimOperators sim_operators;
  uint32_t sim_missing_dtypes = 0;        // one bit for each kl_dtype
  std::optional<uint64_t> sim_copy_speed; // bytes a second between host and device
  std::optional<uint64_t> sim_link_speed; // and between devices
  bool launch_blocking = false;
  FallbackPolicy fallback;
  Autocompare autocompare;
  bool custom_ops = true; // engines run the fused operators, not torch's own in their place
  LogLevel log_level = LogLevel::Warn;
};

// Parsed on the first call. Throws EnvError, and parses again on the next call after that, so that a corrected
// os.environ works in the same process.
const Env& env();

// The import of the package asks for these two variables alone, so that no other can make it fail. Throws EnvError.
Autocompare parseAutocompare();

// For a value that turned out to be wrong later, such as a driver that cannot be loaded: the next env() parses again.
// References handed out before stay valid.
void discardEnv();

// Hands KUNLUN_VISIBLE_DEVICES on to the vendor's runtime, as XPU_VISIBLE_DEVICES. Throws EnvError when that variable
// is set already and says something else. To be called before the vendor's runtime is loaded.
void exportVisibleDevices();

// The one table of variables, from which the documentation is printed.
struct EnvVariable {
  const char* name;
  const char* values;
  const char* fallback_value;
  const char* meaning;
};
const std::vector<EnvVariable>& envVariables();

// Kind named as in KUNLUN_SIM_FAULT, for a fault that is injected at run time. Throws EnvError.
SimFault::Kind parseSimFaultKind(const std::string& text);

// Grammar of KUNLUN_FALLBACK, for a policy that is set at run time. Throws EnvError.
FallbackPolicy parseFallbackPolicy(const std::string& text);

} // namespace kunlun
