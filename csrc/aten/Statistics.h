// Counts which tier served how many operator calls.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <c10/macros/Macros.h>

namespace kunlun::aten {

enum class Tier : uint8_t {
  Launcher, // asynchronous launch through the driver's operator table
  HostCall, // asynchronous launch that the host's kernel executes on the chip's thread
  Boxed,    // synchronous, zero copy, on the chip's thread
  Fallback, // copies to the host and back
  Count
};

const char* toString(Tier tier);

namespace detail {
extern std::atomic<uint64_t> launches;
extern std::atomic<int> open_traces; // of all threads
void addToTrace(Tier tier, const char* op);
} // namespace detail

// Relaxed: a total that nobody orders anything by.
inline void countLaunch() {
  detail::launches.fetch_add(1, std::memory_order_relaxed);
}

// By operator, for the other tiers, each call of which is worth a look.
void count(Tier tier, const std::string& op);
// The counter behind that, for callers that keep it. Valid for ever.
std::atomic<uint64_t>& callCounter(Tier tier, const std::string& op);

// ---- traces: which tier served which operator, in order, for tools that look at single calls ----

struct TracedCall {
  Tier tier;
  std::string op; // as the chip's table names it: add.Tensor launches aten::add.out
};

// From now on, notes what the operators of the calling thread do. Traces nest.
void startTrace();
// What was noted since the thread's last startTrace.
std::vector<TracedCall> stopTrace();

inline void trace(Tier tier, const char* op) {
  if (C10_UNLIKELY(detail::open_traces.load(std::memory_order_relaxed) != 0)) {
    detail::addToTrace(tier, op);
  }
}

struct Statistics {
  std::map<std::string, uint64_t> tiers;
  std::map<std::string, uint64_t> boxed_ops;
  std::map<std::string, uint64_t> host_call_ops;
  std::map<std::string, uint64_t> fallback_ops;
};

Statistics statistics();
void resetStatistics();

} // namespace kunlun::aten
