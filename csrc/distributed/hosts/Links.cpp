// What a broken connection means for everybody.
#include "distributed/hosts/Links.h"

#include <chrono>
#include <thread>
#include <utility>

#include <c10/util/Exception.h>

namespace kunlun::distributed::hosts {

namespace {

constexpr const char* kLost = "lost"; // in the store: who has died
// How long the ranks of another host are given to say who of theirs has died.
constexpr std::chrono::milliseconds kAnswer{1500};
constexpr std::chrono::milliseconds kLook{50};

} // namespace

Links::Links(
    std::shared_ptr<Communicator> local,
    Gloo leaders,
    Gloo all,
    c10::intrusive_ptr<c10d::Store> store,
    std::function<std::string()> deaths)
    : local_(std::move(local)),
      leaders_(std::move(leaders)),
      all_(std::move(all)),
      store_(std::move(store)),
      deaths_(std::move(deaths)) {}

void Links::enqueue(kl_stream stream, const Call& call, std::function<void(const Call&)> body) {
  hosts::enqueue(stream, call, [self = shared_from_this(), body = std::move(body)](const Call& mine) {
    if (const auto reason = self->error()) {
      C10_THROW_ERROR(DistBackendError, *reason);
    }
    try {
      body(mine);
    } catch (const c10::Error&) {
      throw; // what the ranks have agreed upon; the communicator goes on
    } catch (const std::exception& problem) {
      self->end(self->explain(problem.what()));
      C10_THROW_ERROR(DistBackendError, self->error().value());
    }
  });
}

std::string Links::explain(const std::string& gloo) const {
  const auto deadline = std::chrono::steady_clock::now() + kAnswer;
  try {
    for (;;) {
      // What somebody has found already comes first: whoever has reported it may have ended since.
      if (store_->check({kLost})) {
        return store_->get_to_str(kLost);
      }
      if (const std::string dead = deaths_(); !dead.empty()) {
        store_->set(kLost, dead);
        return dead;
      }
      if (std::chrono::steady_clock::now() > deadline) {
        return "a connection to another host broke: " + gloo;
      }
      std::this_thread::sleep_for(kLook);
    }
  } catch (const std::exception& problem) {
    return c10::str("a connection to another host broke: ", gloo, "; and the store: ", problem.what());
  }
}

void Links::end(const std::string& reason) {
  {
    std::lock_guard lock(lock_);
    if (!error_.empty()) {
      return;
    }
    error_ = reason + "; the communicator cannot be used any more";
  }
  local_->abort(reason);
  // Closes the connections, so that the other hosts learn of it whatever they wait for.
  if (leaders_ != nullptr) {
    leaders_->abort();
  }
  all_->abort();
}

std::optional<std::string> Links::error() const {
  std::lock_guard lock(lock_);
  return error_.empty() ? std::nullopt : std::optional(error_);
}

} // namespace kunlun::distributed::hosts
