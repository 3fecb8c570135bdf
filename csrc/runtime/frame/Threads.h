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

// Threads of a large kernel: KUNLUN_SIM_THREADS, else what torch would use.
int teamSize();

} // namespace kunlun::frame
