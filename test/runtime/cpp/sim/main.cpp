// Test program of the simulated chip: runs the cases named on the command line, or all that need no process of their
// own.
#include <cstring>

#include "check.h"

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--list") == 0) {
    for (const auto& each : test::cases()) {
      std::printf("%s%s\n", each.name, each.alone ? " alone" : "");
    }
    return 0;
  }
  int ran = 0;
  for (const auto& each : test::cases()) {
    bool wanted = argc == 1 && !each.alone;
    for (int i = 1; i < argc; ++i) {
      wanted |= std::strcmp(argv[i], each.name) == 0;
    }
    if (wanted) {
      std::fprintf(stderr, "%s\n", each.name);
      each.run();
      ++ran;
    }
  }
  std::fprintf(stderr, "%d passed\n", ran);
  return ran == 0 ? 2 : 0;
}
