// The connections of one rank of a communicator over several hosts, and how they end.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "distributed/Communicator.h"
#include "distributed/hosts/Job.h"

namespace kunlun::distributed::hosts {

// Shared by the communicator and by its work on streams.
class Links : public std::enable_shared_from_this<Links> {
 public:
  using Gloo = c10::intrusive_ptr<c10d::Backend>;

  // `local`: of this host's ranks in their order. `leaders`: of the hosts' first ranks, on these only. `all`: of all.
  // `store`: of this communicator alone. `deaths`: says which ranks of this host have ended, empty for none.
  Links(
      std::shared_ptr<Communicator> local,
      Gloo leaders,
      Gloo all,
      c10::intrusive_ptr<c10d::Store> store,
      std::function<std::string()> deaths);

  Communicator& local() const {
    return *local_;
  }
  const Gloo& leaders() const {
    return leaders_;
  }
  const Gloo& all() const {
    return all_;
  }
  c10d::Store& store() const {
    return *store_;
  }

  // Enqueues `body`, see Job.h. Where gloo fails within it the communicator ends, here and so on every other rank.
  void enqueue(kl_stream stream, const Call& call, std::function<void(const Call&)> body);

  // Ends it. Those who wait for this rank get an error.
  void end(const std::string& reason);
  std::optional<std::string> error() const;

 private:
  std::string explain(const std::string& gloo) const;

  const std::shared_ptr<Communicator> local_;
  const Gloo leaders_;
  const Gloo all_;
  const c10::intrusive_ptr<c10d::Store> store_;
  const std::function<std::string()> deaths_;
  mutable std::mutex lock_; // guards error_
  std::string error_;       // empty while it works
};

} // namespace kunlun::distributed::hosts
