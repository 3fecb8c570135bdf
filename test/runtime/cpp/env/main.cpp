// Parses the environment and prints it, for the tests of the variables. With arguments (name, value): after a failure,
// corrects that variable and tries again.
#include <cstdio>
#include <cstdlib>

#include "runtime/Env.h"
#include "runtime/EnvXccl.h"

namespace {

const char* word(kunlun::FallbackAction action) {
  switch (action) {
    case kunlun::FallbackAction::Warn:
      return "warn";
    case kunlun::FallbackAction::Allow:
      return "allow";
    case kunlun::FallbackAction::Error:
      return "error";
  }
  return "?";
}

int attempt() {
  try {
    const kunlun::Env& e = kunlun::env();
    std::printf("chip=%s\n", e.chip.c_str());
    std::printf("visible=");
    if (e.visible_devices) {
      for (const int device : *e.visible_devices) {
        std::printf("%d,", device);
      }
    } else {
      std::printf("all");
    }
    std::printf(
        "\ndevices=%d\nmemory=%llu\nthreads=%d\nprotect=%d\naddressable=%d\npoison=%d\nblocking=%d\ncustom_ops=%d\nlog="
        "%d\n",
        e.sim_devices,
        static_cast<unsigned long long>(e.sim_memory.value_or(0)),
        e.sim_threads,
        static_cast<int>(e.sim_protect),
        e.sim_host_addressable,
        e.sim_poison,
        e.launch_blocking,
        e.custom_ops,
        static_cast<int>(e.log_level));
    std::printf("faults=");
    for (const auto& fault : e.sim_faults) {
      std::printf(
          "%d:%llu:%lld@%d,",
          static_cast<int>(fault.kind),
          static_cast<unsigned long long>(fault.after),
          static_cast<long long>(fault.nanoseconds.value_or(-1)),
          fault.device.value_or(-1));
    }
    std::printf(
        "\noperators=add.out:%d add.Tensor:%d mm.out:%d\ndtypes=%x\ncopy=%llu\nlink=%llu\n",
        e.sim_operators.has("aten::add.out"),
        e.sim_operators.has("aten::add.Tensor"),
        e.sim_operators.has("aten::mm.out"),
        e.sim_missing_dtypes,
        static_cast<unsigned long long>(e.sim_copy_speed.value_or(0)),
        static_cast<unsigned long long>(e.sim_link_speed.value_or(0)));
    kunlun::xcclEnv();
    std::printf("autocompare=%d:%s\n", static_cast<int>(e.autocompare.mode), e.autocompare.directory.c_str());
    std::printf(
        "fallback=%s add.Tensor=%s add.out=%s nonzero=%s\n",
        word(e.fallback.general),
        word(e.fallback.actionFor("aten::add", "Tensor")),
        word(e.fallback.actionFor("aten::add", "out")),
        word(e.fallback.actionFor("aten::nonzero", "")));
    return 0;
  } catch (const kunlun::EnvError& error) {
    std::printf("EnvError: %s\n", error.what());
    return 1;
  }
}

} // namespace

int main(int argc, char** argv) {
  if (argc == 2) { // the names of all variables
    for (const auto& variable : kunlun::envVariables()) {
      std::printf("%s\n", variable.name);
    }
    return 0;
  }
  int result = attempt();
  if (result != 0 && argc == 3) {
    setenv(argv[1], argv[2], 1);
    result = attempt();
  }
  return result;
}
