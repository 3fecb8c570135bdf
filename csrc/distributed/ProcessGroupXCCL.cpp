// Life of the group: communicators, launching, pending work, the end.
#include "distributed/ProcessGroupXCCL.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/isnan.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "distributed/ChipCommunicator.h"
#include "distributed/FlightRecorder.h"
#include "distributed/Watchdog.h"
#include "runtime/CachingAllocator.h"
#include "runtime/Env.h"
#include "runtime/EnvXccl.h"
#include "runtime/Error.h"

namespace kunlun::distributed {

namespace {

constexpr std::chrono::seconds kTick{1}; // how soon memory of ended operations is given back when nothing else happens

// How long a call that is not asynchronous waits for its peers before it returns and leaves the rest to the stream.
constexpr std::chrono::microseconds kPatience{100};

// What runs with a rank that has died may have all that it needs of it, and gets this long to end.
constexpr std::chrono::milliseconds kGrace{1500};

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

} // namespace

ProcessGroupXCCL::Options::Options(bool high_priority)
    : c10d::Backend::Options("xccl", kBackendDefaultTimeout), is_high_priority_stream(high_priority) {}

ProcessGroupXCCL::ProcessGroupXCCL(
    c10::intrusive_ptr<c10d::Store> store,
    int rank,
    int size,
    c10::intrusive_ptr<Options> options)
    : Backend(rank, size),
      store_(std::move(store)),
      options_(std::move(options)),
      blocks_(xcclEnv().blocking_wait),
      checks_nan_(xcclEnv().nan_check),
      is_timed_(xcclEnv().timing),
      members_(std::make_shared<Members>(store_, rank, size)) {
  TORCH_CHECK_VALUE(rank >= 0 && rank < size, "rank ", rank, " of ", size, " ranks does not exist");
  checkCollectivesAvailable(); // here and not at the first operation, where ranks already wait for each other
  init();
  watchdog::add(this);
}

uint64_t ProcessGroupXCCL::globalRank(int rank) const {
  const auto& ranks = options_->global_ranks_in_group; // empty for the default group
  return ranks.empty() ? static_cast<uint64_t>(rank) : ranks.at(static_cast<size_t>(rank));
}

void ProcessGroupXCCL::record(
    const std::string& name,
    const std::vector<at::Tensor>& inputs,
    const std::vector<at::Tensor>& outputs,
    const Work& work,
    bool is_transfer) {
  FlightRecorder& recorder = FlightRecorder::get();
  if (!recorder.isOn()) {
    return;
  }
  const std::pair<std::string, std::string> group{
      getGroupUid().empty() ? options_->group_name : getGroupUid(), getGroupDesc()};
  if (operations_++ == 0) {
    std::vector<uint64_t> ranks;
    for (int rank = 0; rank < size_; ++rank) {
      ranks.push_back(globalRank(rank));
    }
    recorder.recordGroup(group.first, group.second, ranks);
  }
  recorder.record(
      {.group_id = 0,
       .group = group,
       .collective_sequence = collectives_.load(std::memory_order_relaxed),
       .transfer_sequence = transfers_.load(std::memory_order_relaxed),
       .operation = operations_.load(std::memory_order_relaxed),
       .name = name,
       .is_transfer = is_transfer,
       .timeout_ms = work.timeout_.count(),
       .inputs = inputs,
       .outputs = outputs,
       .completion = work.completion_});
}

ProcessGroupXCCL::~ProcessGroupXCCL() {
  watchdog::remove(this);
}

// ---- checks ---------------------------------------------------------------

void ProcessGroupXCCL::checkOpen() const {
  TORCH_CHECK(
      !is_closed_.load(std::memory_order_acquire), "the process group cannot be used any more: ", closed_because_);
}

void ProcessGroupXCCL::checkTensor(const at::Tensor& tensor) const {
  TORCH_CHECK_VALUE(
      tensor.device().type() == kType && tensor.layout() == at::kStrided,
      "Tensors must be kunlun and dense, got one on ",
      tensor.device(),
      " with layout ",
      tensor.layout());
  CachingAllocator::checkAwake(tensor.storage().data());
  TORCH_CHECK_VALUE(tensor.is_contiguous(tensor.suggest_memory_format()), "Tensors must be contiguous");
  TORCH_CHECK_VALUE(
      !tensor.is_conj() && !tensor.is_neg(),
      "Tensors must not be lazily conjugated or negated; call resolve_conj() or resolve_neg() first");
}

void ProcessGroupXCCL::checkTensors(const std::vector<at::Tensor>& tensors) const {
  TORCH_CHECK_VALUE(!tensors.empty(), "Tensor list must be nonempty");
  for (const auto& tensor : tensors) {
    checkTensor(tensor);
    TORCH_CHECK_VALUE(
        tensor.device() == tensors.front().device(),
        "Tensors must be on the same device, got ",
        tensor.device(),
        " and ",
        tensors.front().device());
  }
}

const at::Tensor& ProcessGroupXCCL::checkSingle(const std::vector<at::Tensor>& tensors) const {
  TORCH_CHECK_VALUE(tensors.size() == 1, "Expecting one tensor only but got ", tensors.size());
  checkTensor(tensors.front());
  return tensors.front();
}

void ProcessGroupXCCL::checkRoot(int64_t root) const {
  TORCH_CHECK_VALUE(root >= 0 && root < size_, "invalid root rank: ", root);
}

void ProcessGroupXCCL::checkForNan(const std::vector<at::Tensor>& inputs, const char* name) const {
  for (const auto& tensor : inputs) {
    if (!tensor.is_floating_point() && !tensor.is_complex()) {
      continue;
    }
    TORCH_CHECK(
        !at::isnan(tensor).any().item<bool>(),
        "XCCL_NAN_CHECK: rank ",
        rank_,
        " of group \"",
        options_->group_name,
        "\" calls ",
        name,
        " with an input that contains NaN (",
        tensor.sizes(),
        ", ",
        tensor.scalar_type(),
        ")");
  }
}

std::chrono::milliseconds ProcessGroupXCCL::timeoutOr(std::chrono::milliseconds timeout) const {
  return timeout == c10d::kUnsetTimeout ? options_->timeout : timeout;
}

// ---- launching ------------------------------------------------------------

c10::intrusive_ptr<Work> ProcessGroupXCCL::begin(
    const Request& request,
    const std::shared_ptr<Communicator>& communicator,
    const Stream& stream) {
  auto work = c10::make_intrusive<Work>(rank_, request.type, request.name, stream, request.timeout);
  work->is_async_ = request.is_async;
  work->blocks_ = blocks_;
  // The recorder tells apart what waits for its turn and what has begun.
  work->is_timed_ = is_timed_.load(std::memory_order_relaxed) || FlightRecorder::get().isOn();
  if (communicator != nullptr) {
    work->communicators_.push_back(communicator);
  }
  if (request.is_async) {
    // The inputs come from the caller's stream.
    work->end_.record(getCurrentStream(stream.device_index()));
    work->end_.block(stream);
  }
  if (work->is_timed_ || arePeersUnseen()) {
    work->completion_->markStart(stream);
  }
  return work;
}

void ProcessGroupXCCL::finish(const c10::intrusive_ptr<Work>& work) {
  if (work->recordFunctionEndCallback_) {
    // What a profiler sees of it ends here: the handle may outlive the profiler.
    work->recordFunctionEndCallback_();
    work->recordFunctionEndCallback_ = nullptr;
  }
  work->completion_->markEnd(work->stream_, work->communicators_);
  if (work->is_async_) {
    work->end_.record(work->stream_);
  }
  std::vector<c10::intrusive_ptr<Work>> ended; // released without the lock
  bool was_idle;
  {
    std::lock_guard lock(pending_lock_);
    while (!pending_.empty() && pending_.front()->isDone() && ended.size() < 8) {
      ended.push_back(std::move(pending_.front()));
      pending_.pop_front();
    }
    was_idle = pending_.empty() && ended.empty();
    if (work->isDone()) {
      ended.push_back(work);
      was_idle = false;
    } else {
      pending_.push_back(work);
    }
  }
  for (const auto& done : ended) {
    done->retire();
  }
  if (!work->isDone() && (was_idle || work->timeout_ < kTick)) {
    watchdog::notify();
  }
}

// What had been enqueued before the failure goes on, so its tensors stay until it has passed.
void ProcessGroupXCCL::abandon(const c10::intrusive_ptr<Work>& work) noexcept {
  try {
    finish(work);
  } catch (const std::exception& error) {
    if (env().log_level >= LogLevel::Warn) {
      std::fprintf(stderr, "kunlun: rank %d: the end of a failed operation is not known: %s\n", rank_, error.what());
    }
  }
}

void ProcessGroupXCCL::dropBatch() noexcept {
  const Batch batch = *std::exchange(batch_, std::nullopt);
  if (batch.work != nullptr) {
    abandon(batch.work);
  }
}

ProcessGroupXCCL::BatchGuard::~BatchGuard() {
  if (std::uncaught_exceptions() > exceptions_ && group_.batch_) {
    group_.dropBatch();
  }
}

c10::intrusive_ptr<c10d::Work> ProcessGroupXCCL::launch(Request request, Body body) {
  checkOpen();
  const at::Tensor& first = request.outputs.empty() ? request.inputs.front() : request.outputs.front();
  const c10::DeviceIndex device = first.device().index();
  const c10::DeviceGuard device_guard(first.device());
  if (checks_nan_) [[unlikely]] {
    checkForNan(request.inputs, request.name);
  }
  const auto communicator = this->communicator(device);
  const bool in_batch = batch_.has_value();
  request.is_async |= in_batch;
  const Stream stream = request.is_async ? communicator->stream() : getCurrentStream(device);
  c10::intrusive_ptr<Work> work;
  if (in_batch && batch_->work != nullptr) {
    work = batch_->work;
  } else {
    work = begin(request, communicator, stream);
    work->sequence_ = ++collectives_;
  }
  if (in_batch) {
    batch_->work = work; // which ends with the batch
  }
  record(request.name, request.inputs, request.outputs, *work, false);
  Communicator::setPatience(request.is_async ? std::chrono::nanoseconds{0} : kPatience);
  work->outputs_.insert(work->outputs_.end(), request.outputs.begin(), request.outputs.end());
  try {
    if (request.is_async) {
      {
        std::lock_guard lock(work->stash_lock_);
        work->stash_.insert(work->stash_.end(), request.inputs.begin(), request.inputs.end());
        work->stash_.insert(work->stash_.end(), request.outputs.begin(), request.outputs.end());
      }
      const c10::StreamGuard stream_guard(stream.unwrap());
      body(*communicator, stream.handle());
    } else {
      body(*communicator, stream.handle());
    }
  } catch (...) {
    if (!in_batch) {
      abandon(work);
    }
    throw;
  }
  if (!in_batch) {
    finish(work);
  }
  return work;
}

// ---- pending work ---------------------------------------------------------

std::optional<Completion::Clock::time_point> ProcessGroupXCCL::watch(
    Completion::Clock::time_point now,
    std::vector<c10::intrusive_ptr<Work>>& ended,
    bool& has_expired) {
  std::vector<c10::intrusive_ptr<Work>> late;
  std::vector<c10::intrusive_ptr<Work>> running; // where the dead are ours to see
  std::optional<Completion::Clock::time_point> next;
  {
    std::lock_guard lock(pending_lock_);
    for (auto& work : pending_) {
      if (work->isDone()) {
        ended.push_back(std::move(work));
      } else if (work->isExpired(now)) {
        late.push_back(std::move(work));
      } else {
        next = std::min(next.value_or(now + kTick), work->deadline_);
        if (arePeersUnseen() && work->completion_->hasStarted()) {
          running.push_back(work);
        }
      }
    }
    std::erase_if(pending_, [](const auto& work) { return work == nullptr; });
  }
  for (const auto& work : late) {
    expire(*work);
    has_expired = true;
  }
  for (const auto& work : running) {
    next = std::min(*next, endIfBereaved(*work, now).value_or(*next));
  }
  return next;
}

void ProcessGroupXCCL::expire(Work& work) {
  std::string late;
  for (const auto& communicator : work.communicators_) {
    for (const int rank : communicator->missingRanks()) {
      late += (late.empty() ? "" : ", ") + std::to_string(rank);
    }
  }
  const std::string text = c10::str(
      work.describe(),
      " of group \"",
      options_->group_name,
      "\" timed out after ",
      work.timeout_.count(),
      " ms",
      late.empty() ? "" : "; ranks of the group that have not joined it: ",
      late);
  if (env().log_level >= LogLevel::Warn) {
    std::fprintf(stderr, "kunlun: rank %d: %s\n", rank_, text.c_str());
  }
  for (const auto& communicator : work.communicators_) {
    communicator->abort(text);
  }
}

std::optional<Completion::Clock::time_point> ProcessGroupXCCL::endIfBereaved(
    Work& work,
    Completion::Clock::time_point now) {
  std::optional<Completion::Clock::time_point> next;
  for (const auto& communicator : work.communicators_) {
    if (communicator->error()) {
      continue;
    }
    const std::string deaths = communicator->deaths();
    if (deaths.empty()) {
      continue;
    }
    if (!work.death_seen_) {
      work.death_seen_ = now;
    }
    if (now < *work.death_seen_ + kGrace) {
      next = *work.death_seen_ + kGrace;
      continue;
    }
    if (env().log_level >= LogLevel::Warn) {
      std::fprintf(
          stderr,
          "kunlun: rank %d: %s of group \"%s\" is ended, because %s\n",
          rank_,
          work.describe().c_str(),
          options_->group_name.c_str(),
          deaths.c_str());
    }
    communicator->abort(deaths);
  }
  return next;
}

void ProcessGroupXCCL::waitForPendingWorks() {
  for (;;) {
    c10::intrusive_ptr<Work> last;
    {
      std::lock_guard lock(pending_lock_);
      while (!pending_.empty() && pending_.front()->isDone()) {
        pending_.pop_front();
      }
      if (pending_.empty()) {
        return;
      }
      last = pending_.back();
    }
    last->completion_->waitUntil(last->deadline_);
    if (last->isExpired(Completion::Clock::now()) && !last->isDone()) {
      return; // the watchdog's business
    }
  }
}

void ProcessGroupXCCL::close(const char* why) {
  std::lock_guard lock(lock_);
  if (!is_closed_.load(std::memory_order_relaxed)) {
    closed_because_ = why;
    is_closed_.store(true, std::memory_order_release);
  }
}

void ProcessGroupXCCL::abort() {
  close("it was aborted");
  for (const auto& communicator : allCommunicators()) {
    communicator->abort("the process group was aborted");
  }
}

void ProcessGroupXCCL::shutdown() {
  waitForPendingWorks();
  close("it was shut down");
  std::map<std::string, std::shared_ptr<Communicator>> gone;
  std::lock_guard lock(lock_);
  gone.swap(communicators_);
}

c10d::ErrorType ProcessGroupXCCL::getError() {
  for (const auto& communicator : allCommunicators()) {
    if (const auto error = communicator->error()) {
      return error->find("timed out") != std::string::npos ? c10d::ErrorType::TIMEOUT : c10d::ErrorType::COMM_ERROR;
    }
  }
  return c10d::ErrorType::SUCCESS;
}

// ---- the rest -------------------------------------------------------------

c10::intrusive_ptr<c10d::Backend> ProcessGroupXCCL::split(
    const c10::intrusive_ptr<c10d::Store>& store,
    const std::vector<int>& ranks,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts) {
  const auto place = std::find(ranks.begin(), ranks.end(), rank_);
  if (place == ranks.end()) {
    return nullptr;
  }
  auto options = c10::dynamic_intrusive_pointer_cast<Options>(opts);
  TORCH_CHECK_VALUE(options != nullptr, "split of an XCCL group needs ProcessGroupXCCL.Options");
  std::vector<uint64_t> global;
  for (const int rank : ranks) {
    const auto index = static_cast<size_t>(rank);
    global.push_back(index < options_->global_ranks_in_group.size() ? options_->global_ranks_in_group[index] : index);
  }
  options->global_ranks_in_group = std::move(global);
  return c10::make_intrusive<ProcessGroupXCCL>(
      store, static_cast<int>(place - ranks.begin()), static_cast<int>(ranks.size()), options);
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupXCCL::merge(
    const c10::intrusive_ptr<c10d::Store>& store,
    const c10::intrusive_ptr<c10d::Backend::Options>& opts,
    const int& rank,
    const int& size) {
  auto options = c10::dynamic_intrusive_pointer_cast<Options>(opts);
  TORCH_CHECK_VALUE(options != nullptr, "merge of XCCL groups needs ProcessGroupXCCL.Options");
  return c10::make_intrusive<ProcessGroupXCCL>(store, rank, size, options);
}

// Every rank counts its collectives from the first, so there is nothing to agree on.
void ProcessGroupXCCL::setSequenceNumberForGroup() {}

uint64_t ProcessGroupXCCL::getSequenceNumberForGroup() {
  return collectives_.load(std::memory_order_relaxed);
}

void ProcessGroupXCCL::setTimeout(std::chrono::milliseconds timeout) {
  options_->timeout = timeout;
}

void ProcessGroupXCCL::enableCollectivesTiming() {
  is_timed_.store(true, std::memory_order_relaxed);
}

} // namespace kunlun::distributed
