// Available memory of the host: /proc/meminfo and the limits of control groups.
#include "runtime/sim/HostInfo.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace kunlun::sim {
namespace {

std::optional<uint64_t> readNumber(const std::string& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  if (file >> value) {
    return value;
  }
  return std::nullopt; // no such file, or "max"
}

uint64_t memAvailable() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  uint64_t kibibytes = 0;
  std::string unit;
  while (file >> key >> kibibytes) {
    if (key == "MemAvailable:") {
      return kibibytes << 10;
    }
    std::getline(file, unit);
  }
  // No /proc: what is free now.
  return static_cast<uint64_t>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// Room below the limit of a control group, without bound where none is set.
uint64_t roomInGroup(const std::string& limit, const std::string& usage) {
  const auto most = readNumber(limit);
  const auto used = readNumber(usage);
  if (!most || !used) {
    return std::numeric_limits<uint64_t>::max();
  }
  return *most > *used ? *most - *used : 0;
}

// Path of the process in the unified hierarchy: the line "0::/path".
std::string ownGroup() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("0::/")) {
      return line.substr(3);
    }
  }
  return "/";
}

} // namespace

uint64_t availableHostMemory() {
  uint64_t room = memAvailable();
  // Every group from the process's own up to the root may set a limit.
  for (std::string group = ownGroup();; group.resize(group.rfind('/'))) {
    const std::string folder = "/sys/fs/cgroup" + (group == "/" ? std::string() : group);
    room = std::min(room, roomInGroup(folder + "/memory.max", folder + "/memory.current"));
    if (group.empty() || group == "/") {
      break;
    }
  }
  const std::string first_version = "/sys/fs/cgroup/memory/";
  return std::min(room, roomInGroup(first_version + "memory.limit_in_bytes", first_version + "memory.usage_in_bytes"));
}

} // namespace kunlun::sim
