// Counts which tier served how many operator calls.
#include "aten/Statistics.h"

#include <mutex>

namespace kunlun::aten {

namespace detail {
std::array<std::atomic<uint64_t>, static_cast<size_t>(Tier::Count)> tier_counts{};
}

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
  count(tier);
  callCounter(tier, op).fetch_add(1, std::memory_order_relaxed);
}

std::atomic<uint64_t>& callCounter(Tier tier, const std::string& op) {
  std::lock_guard<std::mutex> lock(opsMutex());
  return opCounts()[static_cast<size_t>(tier)][op];
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

Statistics statistics() {
  Statistics result;
  for (size_t i = 0; i < detail::tier_counts.size(); ++i) {
    result.tiers[toString(static_cast<Tier>(i))] = detail::tier_counts[i].load(std::memory_order_relaxed);
  }
  result.boxed_ops = called(Tier::Boxed);
  result.host_call_ops = called(Tier::HostCall);
  result.fallback_ops = called(Tier::Fallback);
  return result;
}

void resetStatistics() {
  for (auto& tier : detail::tier_counts) {
    tier.store(0, std::memory_order_relaxed);
  }
  std::lock_guard<std::mutex> lock(opsMutex());
  for (auto& counts : opCounts()) {
    for (auto& [op, calls] : counts) {
      calls.store(0, std::memory_order_relaxed);
    }
  }
}

} // namespace kunlun::aten
