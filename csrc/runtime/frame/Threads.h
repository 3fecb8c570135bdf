// How many cores a kernel may use that runs on the host as the silicon.
#pragma once

#include <cstdint>
#include <mutex>

#include "runtime/chip/frame.h"

namespace kunlun::frame {

// Elements that a frame's tensors hold together: the measure of its work.
int64_t workOf(const kl_frame* frame);

// For the duration of one kernel: small work runs on the stream's own thread;
// large work takes the process's token and all of the chip's cores, so that
// several streams do not each start a team of all cores.
class TeamScope {
 public:
  explicit TeamScope(int64_t work);
  ~TeamScope();
  TeamScope(const TeamScope&) = delete;
  TeamScope& operator=(const TeamScope&) = delete;

 private:
  std::unique_lock<std::mutex> token_;
};

// Whether work of this size would get all of the chip's cores.
bool wantsTeam(int64_t work);

// For a small kernel that runs on a thread of the host's own: one thread for the
// duration, whatever the user has set.
class GuestScope {
 public:
  GuestScope();
  ~GuestScope();
  GuestScope(const GuestScope&) = delete;
  GuestScope& operator=(const GuestScope&) = delete;

 private:
  int threads_;
  int mkl_threads_ = 0;
};

// Threads of a large kernel: KUNLUN_SIM_THREADS, else what torch would use.
int teamSize();

} // namespace kunlun::frame
