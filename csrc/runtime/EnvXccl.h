// The environment variables of collectives. Parsed in Env.cpp with all others; a header of its own, because few files
// need it.
#pragma once

#include <cstdint>

namespace kunlun {

struct XcclEnv {
  uint32_t buffer_bytes = 16384; // payload that a rank hands over together with its call
  bool blocking_wait = false;
  bool nan_check = false;
  bool timing = false;
};

// Parsed on each call, which is once for each process group. Throws EnvError.
XcclEnv xcclEnv();

} // namespace kunlun
