// The environment variables of collectives. Parsed in Env.cpp with all others; a header of its own, because few files
// need it.
#pragma once

#include <cstdint>
#include <string>

namespace kunlun {

enum class XcclAlgorithm : uint32_t { Auto, OneShot, TwoShot };
enum class XcclAccumulate : uint32_t { Float32, Native };

struct XcclEnv {
  uint32_t buffer_bytes = 16384;                       // payload that a rank hands over together with its call
  XcclAlgorithm algorithm = XcclAlgorithm::Auto;       // of all_reduce
  XcclAccumulate accumulate = XcclAccumulate::Float32; // of half types
  int timeout_seconds = 0;                             // of groups that are made without one; 0: torch's
  bool blocking_wait = false;
  bool nan_check = false;
  bool timing = false;
  int trace_entries = 2000; // that the flight recorder keeps
  std::string host_id;      // what tells this host from others; empty: found out
  std::string trace_file;   // prefix of the file that a timeout writes; empty for none
};

// Parsed on each call, which is once for each process group. Throws EnvError.
XcclEnv xcclEnv();

} // namespace kunlun
