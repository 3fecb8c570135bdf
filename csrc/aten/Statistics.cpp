// Counts which tier served how many operator calls.
#include "aten/Statistics.h"

#include <array>
#include <mutex>

#include <c10/util/Exception.h>

namespace kunlun::aten {

namespace detail {
std::atomic<uint64_t> launches{0};
std::atomic<int> open_traces{0};
} // namespace detail

namespace {

using Counts = std::map<std::string, std::atomic<uint64_t>>; // nodes never move

std::mutex& opsMutex() { // guards opCounts()
  static auto* mutex = new std::mutex();
  return *mutex;
}

std::array<Counts, static_cast<size_t>(Tier::Count)>& opCounts() {
  static auto* counts = new std::array<Counts, static_cast<size_t>(Tier::Count)>();
  return *counts;
}

} // namespace

const char* toString(Tier tier) {
  switch (tier) {
    case Tier::Launcher:
      return "launcher";
    case Tier::HostCall:
      return "host_call";
    case Tier::Boxed:
      return "boxed";
    default:
      return "fallback";
  }
}

void count(Tier tier, const std::string& op) {
  trace(tier, op.c_str());
  callCounter(tier, op).fetch_add(1, std::memory_order_relaxed);
}

std::atomic<uint64_t>& callCounter(Tier tier, const std::string& op) {
  std::lock_guard<std::mutex> lock(opsMutex());
  return opCounts()[static_cast<size_t>(tier)][op];
}

namespace {

struct Trace {
  std::vector<TracedCall> calls;
  std::vector<size_t> begins; // of the open traces, the innermost last
};

Trace& threadTrace() {
  thread_local Trace current;
  return current;
}

} // namespace

void detail::addToTrace(Tier tier, const char* op) {
  auto& current = threadTrace();
  if (!current.begins.empty()) {
    current.calls.push_back({tier, op});
  }
}

void startTrace() {
  auto& current = threadTrace();
  current.begins.push_back(current.calls.size());
  detail::open_traces.fetch_add(1, std::memory_order_relaxed);
}

std::vector<TracedCall> stopTrace() {
  auto& current = threadTrace();
  TORCH_CHECK(!current.begins.empty(), "no trace of operators has been started on this thread");
  const auto begin = current.calls.begin() + static_cast<std::ptrdiff_t>(current.begins.back());
  std::vector<TracedCall> calls(begin, current.calls.end());
  current.begins.pop_back();
  if (current.begins.empty()) {
    current.calls.clear();
  }
  detail::open_traces.fetch_sub(1, std::memory_order_relaxed);
  return calls;
}

namespace {
std::map<std::string, uint64_t> called(Tier tier) {
  std::map<std::string, uint64_t> result;
  std::lock_guard<std::mutex> lock(opsMutex());
  for (const auto& [op, calls] : opCounts()[static_cast<size_t>(tier)]) {
    if (const auto number = calls.load(std::memory_order_relaxed)) {
      result[op] = number;
    }
  }
  return result;
}
} // namespace

namespace {

uint64_t total(const std::map<std::string, uint64_t>& calls) {
  uint64_t sum = 0;
  for (const auto& [op, count] : calls) {
    sum += count;
  }
  return sum;
}

} // namespace

Statistics statistics() {
  Statistics result;
  result.boxed_ops = called(Tier::Boxed);
  result.host_call_ops = called(Tier::HostCall);
  result.fallback_ops = called(Tier::Fallback);
  result.tiers = {
      {toString(Tier::Launcher), detail::launches.load(std::memory_order_relaxed)},
      {toString(Tier::HostCall), total(result.host_call_ops)},
      {toString(Tier::Boxed), total(result.boxed_ops)},
      {toString(Tier::Fallback), total(result.fallback_ops)}};
  return result;
}

void resetStatistics() {
  detail::launches.store(0, std::memory_order_relaxed);
  std::lock_guard<std::mutex> lock(opsMutex());
  for (auto& counts : opCounts()) {
    for (auto& [op, calls] : counts) {
      calls.store(0, std::memory_order_relaxed);
    }
  }
}

} // namespace kunlun::aten
