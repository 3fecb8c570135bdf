// Environment variables: parsed strictly, once, in one place.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
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

enum class LogLevel { Silent = 0, Warn = 1, Info = 2, Debug = 3 };

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
  bool launch_blocking = false;
  FallbackPolicy fallback;
  LogLevel log_level = LogLevel::Warn;
};

// Parsed on the first call. Throws EnvError, and parses again on the next call after that, so that a corrected
// os.environ works in the same process.
const Env& env();

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

// Grammar of KUNLUN_FALLBACK, for a policy that is set at run time. Throws EnvError.
FallbackPolicy parseFallbackPolicy(const std::string& text);

} // namespace kunlun
