// The chip of this process: chosen by KUNLUN_CHIP, loaded and hand-shaken at first use.
#pragma once

#include <atomic>
#include <stdexcept>
#include <string>

#include "runtime/chip/chip.h"

namespace kunlun::chip {

// A chip that cannot be loaded; `error` has the code and the whole text.
class ChipError : public std::runtime_error {
 public:
  explicit ChipError(const kl_error& e) : std::runtime_error(e.text), error(e) {}
  kl_error error;
};

// Loads the chip on the first call and keeps it for the life of the process. Throws ChipError (or EnvError); a failed
// load is tried again on the next call. Every entry of the runtime table may be called: what the driver lacks refuses.
const kl_chip& chip();

// Where the driver came from: "sim", "xre" or the path of its file.
const std::string& chipSource();

// Whether the driver calls the host in stream order: its launch_host is then more than a refusal.
bool hasHostCalls();

namespace detail {
// NULL until chip() has succeeded.
extern std::atomic<const kl_runtime_table*> runtime_table;
} // namespace detail

inline const kl_runtime_table& runtime() {
  const kl_runtime_table* table = detail::runtime_table.load(std::memory_order_acquire);
  return table != nullptr ? *table : *chip().runtime;
}

inline const kl_operators_table* operators() {
  return chip().operators;
}

inline const kl_collectives_table* collectives() {
  return chip().collectives;
}

} // namespace kunlun::chip
