// Ranks find each other through the store.
#include "distributed/Members.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <thread>

#include "runtime/EnvXccl.h"
#include "runtime/Interrupt.h"

namespace kunlun::distributed {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLook{100};        // between two looks at whether the others still live
constexpr std::chrono::milliseconds kLongestPause{20}; // between two questions to the store

std::string linkOf(const char* path) {
  char target[256];
  const ssize_t length = readlink(path, target, sizeof(target));
  return length < 0 ? std::string() : std::string(target, static_cast<size_t>(length));
}

// Processes with the same one can share memory, reach each other's abstract sockets and see each other's numbers: the
// same boot of a machine, and the same name spaces.
std::string hostIdentity() {
  const XcclEnv env = xcclEnv();
  if (!env.host_id.empty()) {
    return env.host_id;
  }
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  return boot + " " + linkOf("/proc/self/ns/net") + " " + linkOf("/proc/self/ns/pid");
}

std::string memberKey(int rank) {
  return "xccl/member/" + std::to_string(rank);
}

std::string placeKey(const std::string& place, int rank) {
  return "xccl/" + place + "/here/" + std::to_string(rank);
}

std::string listed(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) {
    text += (text.empty() ? "" : ", ") + std::to_string(rank);
  }
  return text;
}

} // namespace

Members::Members(c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::string purpose)
    : store_(std::move(store)),
      rank_(rank),
      size_(size),
      purpose_(std::move(purpose)),
      self_{hostIdentity(), currentProcess()} {
  std::ostringstream record;
  record << self_.process.pid << ' ' << self_.process.start << ' ' << self_.host;
  store_->set(memberKey(rank), record.str());
  known_[rank] = self_;
}

const Members::Member* Members::find(int rank) {
  std::lock_guard lock(lock_);
  if (const auto known = known_.find(rank); known != known_.end()) {
    return &known->second;
  }
  if (!store_->check({memberKey(rank)})) {
    return nullptr;
  }
  std::istringstream record(store_->get_to_str(memberKey(rank)));
  Member member;
  record >> member.process.pid >> member.process.start;
  record.get();
  std::getline(record, member.host);
  return &(known_[rank] = member);
}

std::string Members::deaths(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) {
    const Member* member = find(rank);
    if (member != nullptr && member->host == self_.host && !isAlive(member->process)) {
      text += c10::str(
          text.empty() ? "" : ", ", "rank ", rank, " of ", size_, " (process ", member->process.pid, ") has died");
    }
  }
  return text;
}

void Members::checkAlive(const std::vector<int>& ranks) {
  const std::string dead = deaths(ranks);
  TORCH_CHECK_WITH(DistBackendError, dead.empty(), dead, " before it joined the ", purpose_);
}

void Members::waitUntil(
    const std::function<bool()>& done,
    const std::vector<int>& ranks,
    std::chrono::milliseconds timeout,
    const std::function<std::string()>& missing) {
  const auto began = Clock::now();
  auto next_look = began + kLook;
  for (std::chrono::microseconds pause{100}; !done();
       pause = std::min<std::chrono::microseconds>(pause * 2, kLongestPause)) {
    std::this_thread::sleep_for(pause);
    if (Clock::now() < next_look) {
      continue;
    }
    next_look = Clock::now() + kLook;
    checkAlive(ranks);
    TORCH_CHECK_WITH(
        DistBackendError,
        Clock::now() < began + timeout,
        "rank ",
        rank_,
        " waited ",
        timeout.count(),
        " ms for the ",
        purpose_,
        "; ",
        missing());
    if (interruptPending()) {
      raiseInterrupted();
    }
  }
}

void Members::meet(const std::string& place, const std::vector<int>& ranks, std::chrono::milliseconds timeout) {
  comeTo(place, ranks, "here", timeout);
}

std::vector<std::string> Members::exchange(
    const std::string& place,
    const std::vector<int>& ranks,
    const std::string& value,
    std::chrono::milliseconds timeout) {
  comeTo(place, ranks, value, timeout);
  std::vector<std::string> values;
  for (const int rank : ranks) {
    values.push_back(rank == rank_ ? value : store_->get_to_str(placeKey(place, rank)));
  }
  return values;
}

void Members::comeTo(
    const std::string& place,
    const std::vector<int>& ranks,
    const std::string& value,
    std::chrono::milliseconds timeout) {
  store_->set(placeKey(place, rank_), value);
  std::vector<int> missing = ranks;
  const auto all_here = [&] {
    std::erase_if(missing, [&](int rank) { return rank == rank_ || store_->check({placeKey(place, rank)}); });
    return missing.empty();
  };
  waitUntil(all_here, ranks, timeout, [&] { return "ranks of the group that have not come: " + listed(missing); });
}

void Members::await(const std::string& key, const std::vector<int>& ranks, std::chrono::milliseconds timeout) {
  waitUntil(
      [&] { return store_->check({key}); },
      ranks,
      timeout,
      [&] {
        return c10::str("rank ", ranks.front(), ", the first of it, has not put its id into the store (", key, ")");
      });
}

ProcessId Members::processOf(int rank) {
  const Member* member = find(rank);
  TORCH_CHECK_WITH(DistBackendError, member != nullptr, "rank ", rank, " has not published itself in the store");
  return member->process;
}

std::vector<int> Members::hostsOf(const std::vector<int>& ranks) {
  std::vector<std::string> names;
  std::vector<int> hosts;
  for (const int rank : ranks) {
    const Member* member = find(rank);
    TORCH_CHECK_WITH(DistBackendError, member != nullptr, "rank ", rank, " has not published itself in the store");
    const auto place = std::find(names.begin(), names.end(), member->host);
    hosts.push_back(static_cast<int>(place - names.begin()));
    if (place == names.end()) {
      names.push_back(member->host);
    }
  }
  return hosts;
}

} // namespace kunlun::distributed
