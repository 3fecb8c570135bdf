// Failures that a test asks for.
#include <atomic>

#include "vendor_collectives.h"

namespace vendor {
namespace {

std::atomic<int> calls_before{-1};
std::atomic<int> failure{0};

} // namespace

int dueFailure() {
  return calls_before >= 0 && calls_before-- == 0 ? failure.load() : 0;
}

// The process's next collective, send or receive but `before` does nothing and answers `result`.
EXPORT void fake_fail(int before, int result) {
  failure = result;
  calls_before = before;
}

} // namespace vendor
