// The watchdog's thread.
#include "distributed/Watchdog.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "distributed/FlightRecorder.h"
#include "distributed/ProcessGroupXCCL.h"

namespace kunlun::distributed::watchdog {
namespace {

struct State {
  std::mutex lock; // guards everything here; held while a group is looked at
  std::condition_variable changed;
  std::vector<ProcessGroupXCCL*> groups;
  bool has_news = false;
  bool is_running = false;
  pid_t process = 0;
};

State& state() {
  static State& value = *new State; // the thread may outlive static objects
  return value;
}

void run() {
  pthread_setname_np(pthread_self(), "xccl-watchdog");
  State& s = state();
  std::unique_lock lock(s.lock);
  while (!s.groups.empty()) {
    s.has_news = false;
    std::optional<Completion::Clock::time_point> next;
    std::vector<c10::intrusive_ptr<Work>> ended;
    std::optional<uint64_t> dumping_rank;
    for (ProcessGroupXCCL* group : s.groups) {
      bool has_expired = false;
      const auto wish = group->watch(Completion::Clock::now(), ended, has_expired);
      if (has_expired) {
        dumping_rank = group->globalRank(group->getRank());
      }
      if (wish && (!next || *wish < *next)) {
        next = wish;
      }
    }
    if (!ended.empty() || dumping_rank) {
      // Tensors and callbacks may need the interpreter's lock, whose holder may wait for ours.
      lock.unlock();
      if (dumping_rank) {
        FlightRecorder::get().dumpToFile(*dumping_rank);
      }
      for (const auto& work : ended) {
        work->retire();
      }
      ended.clear();
      lock.lock();
    }
    const auto is_due = [&] { return s.has_news || s.groups.empty(); };
    if (next) {
      s.changed.wait_until(lock, *next, is_due);
    } else {
      s.changed.wait(lock, is_due);
    }
  }
  s.is_running = false;
}

} // namespace

void add(ProcessGroupXCCL* group) {
  State& s = state();
  std::lock_guard lock(s.lock);
  s.groups.push_back(group);
  // In a forked child the thread is gone.
  if (!s.is_running || s.process != getpid()) {
    s.is_running = true;
    s.process = getpid();
    std::thread(run).detach();
  }
}

void remove(ProcessGroupXCCL* group) {
  State& s = state();
  std::lock_guard lock(s.lock);
  std::erase(s.groups, group);
  s.changed.notify_all();
}

void notify() {
  State& s = state();
  {
    std::lock_guard lock(s.lock);
    s.has_news = true;
  }
  s.changed.notify_all();
}

} // namespace kunlun::distributed::watchdog
