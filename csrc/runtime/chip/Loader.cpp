// Choice, loading and version handshake of the chip driver.
#include "runtime/chip/Loader.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>

#include "runtime/Env.h"
#include "runtime/chip/Refuse.h"
#include "runtime/chip/collectives.h"
#include "runtime/sim/Sim.h"
#include "runtime/xre/Xre.h"

#ifndef KUNLUN_VERSION
#define KUNLUN_VERSION "0.0.0"
#endif

namespace kunlun::chip {

namespace detail {
constinit std::atomic<const kl_runtime_table*> runtime_table{nullptr};
} // namespace detail

namespace {

// The tables as this build knows them, whatever the driver was built with.
struct Loaded {
  kl_runtime_table runtime{};
  kl_operators_table operators{};
  kl_collectives collectives{};
  kl_chip chip{};
  std::string source;
  bool has_host_calls = false;
};

std::mutex load_lock; // guards loading
constinit std::atomic<const Loaded*> loaded{nullptr};

[[noreturn]] void refuse(kl_result code, const std::string& text) {
  discardEnv(); // so that a corrected KUNLUN_CHIP is seen by the next attempt
  kl_error error{code, -1, 0, {}, {}};
  std::snprintf(error.op, sizeof(error.op), "load");
  std::snprintf(error.text, sizeof(error.text), "%s", text.c_str());
  throw ChipError(error);
}

std::string version(unsigned major, unsigned minor) {
  return std::to_string(major) + "." + std::to_string(minor);
}

// Checks the version of a driver's table and copies as much as both sides know. The rest stays NULL.
template <class Table>
void adopt(Table& to, const Table& from, const char* which, unsigned major, unsigned minor, const std::string& source) {
  const kl_table_header header = from.header;
  if (header.abi_major != major) {
    refuse(
        KL_ERROR_RUNTIME,
        "the chip driver " + source + " was built for version " + version(header.abi_major, header.abi_minor) +
            " of the " + which + " interface, this torch_xpu_kunlun " KUNLUN_VERSION " speaks version " +
            version(major, minor) + "; build the driver against this version's chip.h, or install the " +
            "torch_xpu_kunlun that speaks version " + std::to_string(header.abi_major));
  }
  if (header.size < sizeof(kl_table_header)) {
    refuse(
        KL_ERROR_RUNTIME,
        "the chip driver " + source + " hands back a " + which + " table of " + std::to_string(header.size) +
            " bytes, which is less than its header; set header.size to " + "sizeof the table");
  }
  std::memcpy(static_cast<void*>(&to), &from, header.size < sizeof(Table) ? header.size : sizeof(Table));
}

kl_result builtin(const char* name, kl_chip* out) {
  if (name == nullptr || out == nullptr) {
    return KL_ERROR_VALUE;
  }
  if (std::strcmp(name, "sim") == 0) {
    *out = sim::chip();
    return KL_SUCCESS;
  }
  if (std::strcmp(name, "xre") == 0) {
    kl_error error{};
    return xre::open(out, &error);
  }
  return KL_ERROR_VALUE;
}

constexpr kl_loader kLoader = {
    .header = {sizeof(kl_loader), KL_RUNTIME_ABI_MAJOR, KL_RUNTIME_ABI_MINOR},
    .builtin = builtin,
};

kl_chip openFile(const std::string& path) {
  if (access(path.c_str(), F_OK) != 0) {
    refuse(
        KL_ERROR_RUNTIME,
        "KUNLUN_CHIP=" + path + ": there is no such file; give the path of a chip driver, or " +
            "KUNLUN_CHIP=sim for the simulated chip");
  }
  // A bare file name would be looked for in the library path instead of here.
  const std::string file = path.find('/') == std::string::npos ? "./" + path : path;
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    refuse(KL_ERROR_RUNTIME, "KUNLUN_CHIP=" + path + ": the chip driver cannot be loaded: " + dlerror());
  }
  auto open = reinterpret_cast<kl_chip_open_fn>(dlsym(library, KL_CHIP_OPEN_SYMBOL));
  if (open == nullptr) {
    dlclose(library);
    refuse(
        KL_ERROR_RUNTIME,
        "KUNLUN_CHIP=" + path +
            ": the file does not export " KL_CHIP_OPEN_SYMBOL
            ", so it is not a chip driver (see csrc/runtime/chip/chip.h)");
  }
  // From here on the library stays: threads of its own may run.
  kl_chip chip{};
  kl_error error{};
  const kl_result result = open(&kLoader, &chip, &error);
  if (result != KL_SUCCESS) {
    refuse(
        result,
        "KUNLUN_CHIP=" + path +
            ": the chip driver refused to open: " + (error.text[0] != '\0' ? error.text : "it gives no reason"));
  }
  return chip;
}

struct Opened {
  kl_chip chip;
  std::string source;
};

Opened open() {
  const std::string& wish = env().chip;
  kl_error error{};
  if (wish == "sim") {
    return {sim::chip(), "sim"};
  }
  if (wish == "xre") {
    kl_chip chip{};
    if (const kl_result result = xre::open(&chip, &error); result != KL_SUCCESS) {
      refuse(result, std::string("KUNLUN_CHIP=xre: ") + error.text);
    }
    return {chip, "xre"};
  }
  if (!wish.empty()) {
    return {openFile(wish), wish};
  }
  if (xre::isPresent()) {
    kl_chip chip{};
    if (xre::open(&chip, &error) == KL_SUCCESS) {
      return {chip, "xre"};
    }
    if (env().log_level >= LogLevel::Warn) {
      std::fprintf(
          stderr, "kunlun: a Kunlun device is present but cannot be used, so the simulated chip is: %s\n", error.text);
    }
  }
  return {sim::chip(), "sim"};
}

// The vendor's string, without the risk of a missing terminator.
template <size_t N>
std::string text(const char (&field)[N]) {
  return std::string(field, strnlen(field, N));
}

void announce(const Loaded& l) {
  kl_driver_info info{};
  if (l.runtime.driver_info(&info) != KL_SUCCESS) {
    kl_error error{};
    l.runtime.last_error(&error);
    std::fprintf(stderr, "kunlun: the chip driver %s cannot say what it is: %s\n", l.source.c_str(), error.text);
    return;
  }
  const std::string operators =
      l.chip.operators == nullptr ? "none" : version(l.operators.header.abi_major, l.operators.header.abi_minor);
  const std::string collectives =
      l.chip.collectives == nullptr ? "none" : version(l.collectives.header.abi_major, l.collectives.header.abi_minor);
  const std::string note = text(info.note);
  std::fprintf(
      stderr,
      "kunlun: torch_xpu_kunlun %s; interface: runtime %s, operators %s, collectives %s; driver %s %s (%s), "
      "runtime %s%s%s\n",
      KUNLUN_VERSION,
      version(l.runtime.header.abi_major, l.runtime.header.abi_minor).c_str(),
      operators.c_str(),
      collectives.c_str(),
      text(info.name).c_str(),
      text(info.driver_version).c_str(),
      l.source.c_str(),
      text(info.runtime_version).c_str(),
      note.empty() ? "" : "; ",
      note.c_str());
}

const Loaded& load() {
  std::lock_guard lock(load_lock);
  if (const Loaded* done = loaded.load(std::memory_order_acquire)) {
    return *done;
  }
  Opened opened = open();
  auto fresh = std::make_unique<Loaded>();
  fresh->source = std::move(opened.source);
  if (opened.chip.runtime == nullptr) {
    refuse(
        KL_ERROR_RUNTIME,
        "the chip driver " + fresh->source + " hands back no runtime table; a driver that only " +
            "brings operators takes the runtime table of a built-in driver from its kl_loader");
  }
  adopt(fresh->runtime, *opened.chip.runtime, "runtime", KL_RUNTIME_ABI_MAJOR, KL_RUNTIME_ABI_MINOR, fresh->source);
  if (opened.chip.operators != nullptr) {
    adopt(
        fresh->operators,
        *opened.chip.operators,
        "operators",
        KL_OPERATORS_ABI_MAJOR,
        KL_OPERATORS_ABI_MINOR,
        fresh->source);
    if (fresh->operators.lookup == nullptr) {
      refuse(KL_ERROR_RUNTIME, "the operators table of the chip driver " + fresh->source + " has no lookup");
    }
    fresh->chip.operators = &fresh->operators;
  }
  if (opened.chip.collectives != nullptr) {
    adopt(
        fresh->collectives,
        *reinterpret_cast<const kl_collectives*>(opened.chip.collectives),
        "collectives",
        KL_COLLECTIVES_ABI_MAJOR,
        KL_COLLECTIVES_ABI_MINOR,
        fresh->source);
    fresh->chip.collectives = reinterpret_cast<const kl_collectives_table*>(&fresh->collectives);
  }
  fresh->has_host_calls = fresh->runtime.launch_host != nullptr;
  completeTable(fresh->runtime, fresh->source.c_str());
  fresh->chip.runtime = &fresh->runtime;
  if (env().log_level >= LogLevel::Info) {
    announce(*fresh);
  }
  const Loaded& result = *fresh.release(); // for the life of the process
  loaded.store(&result, std::memory_order_release);
  detail::runtime_table.store(&result.runtime, std::memory_order_release);
  return result;
}

const Loaded& get() {
  const Loaded* done = loaded.load(std::memory_order_acquire);
  return done != nullptr ? *done : load();
}

} // namespace

const kl_chip& chip() {
  return get().chip;
}

const std::string& chipSource() {
  return get().source;
}

bool hasHostCalls() {
  return get().has_host_calls;
}

} // namespace kunlun::chip
