// Loads the chip that KUNLUN_CHIP names and prints what came of it, for the tests of the loader.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "runtime/Env.h"
#include "runtime/chip/Loader.h"

namespace {

int attempt() {
  try {
    const kl_runtime_table& rt = kunlun::chip::runtime();
    kl_driver_info info{};
    rt.driver_info(&info);
    kl_device_properties properties{};
    rt.device_properties(0, &properties);
    std::printf(
        "loaded %s from %s, timing %d, operators %d\n",
        info.name,
        kunlun::chip::chipSource().c_str(),
        (properties.capabilities & KL_CAP_EVENT_TIMING) != 0,
        kunlun::chip::operators() != nullptr);
    double milliseconds = 0;
    if (rt.event_elapsed(nullptr, nullptr, &milliseconds) != KL_SUCCESS) {
      kl_error error{};
      rt.last_error(&error);
      std::printf("elapsed %d: %s\n", error.code, error.text);
    }
    // A failure of the driver's own after one of the loader's.
    if (rt.stream_synchronize(nullptr) != KL_SUCCESS) {
      kl_error error{};
      rt.last_error(&error);
      std::printf("synchronize %d: %s\n", error.code, error.text);
    }
    return 0;
  } catch (const kunlun::chip::ChipError& e) {
    std::printf("ChipError %d: %s\n", e.error.code, e.what());
  } catch (const kunlun::EnvError& e) {
    std::printf("EnvError: %s\n", e.what());
  }
  return 1;
}

} // namespace

// With a second argument: after a failure, tries again with that chip.
int main(int argc, char** argv) {
  int result = attempt();
  if (result != 0 && argc > 1) {
    setenv("KUNLUN_CHIP", argv[1], 1);
    result = attempt();
  }
  return result;
}
