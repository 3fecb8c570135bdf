// How many cores a kernel may use that runs on the host as the silicon.
#include "runtime/frame/Threads.h"

#include <ATen/Parallel.h>
#include <omp.h>

#include "runtime/Env.h"

// ATen's BLAS keeps a thread count of its own per thread. Present in builds of
// torch that contain MKL; weak, because others lack it. This is the C entry:
// the lower-case name is the Fortran one and takes a pointer.
extern "C" int MKL_Set_Num_Threads_Local(int threads) __attribute__((weak));

namespace kunlun::frame {

namespace {

// ATen's own loops stay serial below this many elements, so a team would idle.
constexpr int64_t kTeamWork = 32768;

std::mutex& teamToken() { // held by the one kernel that may use all cores
  static auto* token = new std::mutex();
  return *token;
}

// The OpenMP setting of the calling thread alone. at::set_num_threads would
// also change the default of threads that the user starts, and drop caches.
void setThreads(int threads) {
  thread_local int current = 0;
  if (current == threads) {
    return;
  }
  if (current == 0) {
    at::get_num_threads(); // ATen's lazy per-thread setup would undo ours later
  }
  omp_set_num_threads(threads);
  if (MKL_Set_Num_Threads_Local != nullptr) {
    MKL_Set_Num_Threads_Local(threads);
  }
  current = threads;
}

void addWork(const kl_frame* frame, const kl_value* values, uint32_t count, int64_t& work) {
  for (uint32_t i = 0; i < count; ++i) {
    const auto& value = values[i];
    if (value.tag == KL_TAG_TENSOR) {
      int64_t elements = 1;
      for (uint32_t d = 0; d < value.v.t.ndim; ++d) {
        elements *= kl_tensor_sizes(frame, &value.v.t)[d];
      }
      work += elements;
    } else if (value.tag == KL_TAG_TENSOR_LIST) {
      addWork(frame, static_cast<const kl_value*>(kl_frame_at(frame, value.v.tail)), value.count, work);
    }
  }
}

} // namespace

int64_t workOf(const kl_frame* frame) {
  int64_t work = 0;
  addWork(frame, kl_frame_args(frame), frame->nargs + frame->nouts, work);
  return work;
}

int teamSize() {
  static const int size = env().sim_threads > 0 ? env().sim_threads : at::get_num_threads();
  return size;
}

bool wantsTeam(int64_t work) {
  return work >= kTeamWork && teamSize() > 1;
}

GuestScope::GuestScope() {
  at::get_num_threads(); // ATen's lazy per-thread setup would undo ours later
  threads_ = omp_get_max_threads();
  if (threads_ != 1) {
    omp_set_num_threads(1);
    if (MKL_Set_Num_Threads_Local != nullptr) {
      mkl_threads_ = MKL_Set_Num_Threads_Local(1);
    }
  }
}

GuestScope::~GuestScope() {
  if (threads_ != 1) {
    omp_set_num_threads(threads_);
    if (MKL_Set_Num_Threads_Local != nullptr) {
      MKL_Set_Num_Threads_Local(mkl_threads_);
    }
  }
}

TeamScope::TeamScope(int64_t work) {
  if (wantsTeam(work)) {
    token_ = std::unique_lock<std::mutex>(teamToken());
    setThreads(teamSize());
  } else {
    setThreads(1);
  }
}

TeamScope::~TeamScope() = default;

} // namespace kunlun::frame
