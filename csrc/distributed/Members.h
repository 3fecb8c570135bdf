// The processes behind the ranks of a group: which host each is on, and whether it still lives.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "runtime/ipc/ProcessId.h"

namespace kunlun::distributed {

class Members {
 public:
  // Publishes the calling process as `rank` in the store. `purpose` is what the ranks come together for, in errors.
  Members(c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::string purpose = "communicator");

  // Waits until all of `ranks`, of which this rank is one, have come to `place`. Raises DistBackendError that names
  // those that have ended (this host's; within a fraction of a second) or have not come in time.
  void meet(const std::string& place, const std::vector<int>& ranks, std::chrono::milliseconds timeout);

  // The same, and hands over what each of `ranks` has brought along, in their order.
  std::vector<std::string> exchange(
      const std::string& place,
      const std::vector<int>& ranks,
      const std::string& value,
      std::chrono::milliseconds timeout);

  // Waits likewise until the first of `ranks` has put `key` into the store.
  void await(const std::string& key, const std::vector<int>& ranks, std::chrono::milliseconds timeout);

  // Raises DistBackendError that names those of `ranks` that are known to have ended.
  void checkAlive(const std::vector<int>& ranks);

  // The process behind a rank that has been met.
  ProcessId processOf(int rank);

  // The host of each of `ranks`, which have met: 0 for that of the first, then numbered as they appear.
  std::vector<int> hostsOf(const std::vector<int>& ranks);

  // Which of `ranks` are known to have ended, in words; empty where none has. Of other hosts nothing is known.
  std::string deaths(const std::vector<int>& ranks);

 private:
  struct Member {
    std::string host;
    ProcessId process;
  };
  void waitUntil(
      const std::function<bool()>& done,
      const std::vector<int>& ranks,
      std::chrono::milliseconds timeout,
      const std::function<std::string()>& missing);
  void comeTo(
      const std::string& place,
      const std::vector<int>& ranks,
      const std::string& value,
      std::chrono::milliseconds timeout);
  // nullptr while it has not published itself.
  const Member* find(int rank);

  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_;
  const int size_;
  const std::string purpose_;
  Member self_;
  std::mutex lock_; // guards known_
  std::map<int, Member> known_;
};

} // namespace kunlun::distributed
