// Life of a communicator of the vendor's library.
#include "runtime/xre/collectives/Comm.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

#include "runtime/xre/Interrupt.h"
#include "runtime/xre/Memory.h"
#include "runtime/xre/Status.h"

namespace kunlun::xre {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kInterruptSlice{100};

// The library's wait for the other ranks cannot be given up, so a thread of its own waits. Contexts are not bound to
// the thread that made them: Paddle makes them in threads of their own, too.
struct Joining {
  std::mutex lock; // guards the rest
  std::condition_variable changed;
  bool is_done = false;
  bool is_given_up = false;
  int result = 0;
  NativeComm comm = nullptr;
  kl_comm_id id{};

  void giveUp() {
    std::lock_guard guard(lock);
    is_given_up = true;
    destroyUnwanted();
  }
  // With the lock held.
  void destroyUnwanted() {
    if (is_given_up && comm != nullptr) {
      bkcl().destroy_context(std::exchange(comm, nullptr));
    }
  }
};

NativeComm join(int device, int rank, int nranks, const kl_comm_id& id, Clock::time_point deadline) {
  bkcl();
  const auto joining = std::make_shared<Joining>();
  joining->id = id;
  std::thread([=] {
    NativeComm comm = nullptr;
    int result = library().set_device(device);
    if (result == 0) {
      result = bkcl().init_rank(&comm, rank, nranks, joining->id.bytes);
    }
    std::lock_guard lock(joining->lock);
    joining->result = result;
    joining->comm = comm;
    joining->is_done = true;
    joining->destroyUnwanted();
    joining->changed.notify_all();
  }).detach();
  const auto hasCome = [&] {
    std::unique_lock lock(joining->lock);
    const auto slice = std::min(deadline, Clock::now() + kInterruptSlice);
    return joining->changed.wait_until(lock, slice, [&] { return joining->is_done; });
  };
  try {
    while (!hasCome()) {
      checkInterrupt(device);
      if (Clock::now() >= deadline) {
        raise(
            KL_ERROR_RUNTIME,
            device,
            "rank %d waited for the other ranks of the communicator (bkcl_init_rank) until its time was over; not all "
            "of the %d ranks have come",
            rank,
            nranks);
      }
    }
  } catch (const Failure&) {
    joining->giveUp();
    throw;
  }
  if (joining->result == kNativeInvalidArgument) {
    raise(
        KL_ERROR_RUNTIME,
        device,
        "the vendor's library of collectives failed in bkcl_init_rank with code 1: an invalid argument; where its log "
        "speaks of addr_window, the cards have none configured, and BKCL_CHECK_AW=0 makes it do without");
  }
  checkBkcl(joining->result, "bkcl_init_rank", device);
  return joining->comm;
}

} // namespace

DeviceBlock::DeviceBlock(int device, uint64_t bytes)
    : device_(device), data_(allocate(device, bytes, KL_MEMORY_MAIN)) {}

DeviceBlock::~DeviceBlock() {
  try {
    release(device_, data_);
  } catch (const Failure&) {
    // A destructor has nobody to tell; a device that is broken says so at the next call.
  }
}

// Pinned memory, its copy on the device, and when both may be used again.
struct Comm::Loan {
  Loan(int device, uint64_t bytes) : host(allocateHost(bytes)), block(device, bytes), passed(device) {}
  ~Loan() {
    try {
      releaseHost(host);
    } catch (const Failure&) {
      // As for device memory.
    }
  }
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;

  void* const host;
  DeviceBlock block;
  Event passed;
};

std::shared_mutex& groupLock() {
  static std::shared_mutex& lock = *new std::shared_mutex;
  return lock;
}

Comm::Comm(int device, int rank, int nranks, const kl_comm_id& id, uint64_t timeout_ms)
    : device_(device), rank_(rank), nranks_(nranks), scratch_(device, Trial::kBytes), last_(device) {
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  native_ = join(device, rank, nranks, id, deadline);
  try {
    trial_.emplace(native_, device, rank, nranks, scratch_.data(), deadline);
  } catch (const Failure&) {
    if (bkcl().comm_abort != nullptr) {
      bkcl().comm_abort(native_); // not destroyed, because its reductions may still wait for a peer
    }
    throw;
  }
}

Comm::~Comm() {
  // Assumed: abort gives the context back, as in the library that BKCL is modelled on.
  if (!is_aborted_) {
    library().set_device(device_);
    bkcl().destroy_context(native_);
  }
}

void Comm::checkRank(int rank, const char* what) const {
  if (rank < 0 || rank >= nranks_) {
    raise(KL_ERROR_VALUE, device_, "%s %d is not one of the %d ranks", what, rank, nranks_);
  }
}

Carried Comm::carriedForMove(int32_t dtype) const {
  const Carried natural = xre::carriedForMove(dtype);
  if (trial_->has(natural.type)) {
    return natural;
  }
  const uint64_t bytes = bytesOf(dtype);
  for (const NativeType type : {kNativeInt64, kNativeInt32, kNativeUInt8}) {
    if (trial_->has(type) && bytes % bytesOf(type) == 0) {
      return {type, bytes / bytesOf(type)};
    }
  }
  raise(
      KL_ERROR_NOT_IMPLEMENTED,
      device_,
      "elements of %llu bytes cannot be sent: the vendor's library of collectives did not do what it should with "
      "number "
      "%d for %s when that was tried; the numbers are in csrc/runtime/xre/collectives/Bkcl.h",
      static_cast<unsigned long long>(bytes),
      natural.type,
      nameOf(natural.type));
}

Reduced Comm::carriedForReduction(int32_t dtype, const kl_reduction& reduction) const {
  const Reduced reduced = xre::carriedForReduction(dtype, reduction);
  if (!trial_->has(reduced.op)) {
    raise(
        KL_ERROR_NOT_IMPLEMENTED,
        device_,
        "the vendor's library of collectives did not do what it should with number %d for %s when that was tried; %s",
        reduced.op,
        nameOf(reduced.op),
        reduced.op == kNativeAverage ? "older ones have no average: reduce with SUM and divide by the number of ranks"
                                     : "the numbers are in csrc/runtime/xre/collectives/Bkcl.h");
  }
  if (!trial_->has(reduced.as.type)) {
    raise(
        KL_ERROR_NOT_IMPLEMENTED,
        device_,
        "the vendor's library of collectives did not reduce %s (number %d) as it should when that was tried; convert "
        "the tensor to another dtype, or see csrc/runtime/xre/collectives/Bkcl.h for the numbers",
        nameOf(reduced.as.type),
        reduced.as.type);
  }
  const bool is_modular = reduced.op == kNativeAdd || reduced.op == kNativeProduct;
  if (reduced.as.type == kNativeUInt8 && is_modular && !trial_->wrapsAround()) {
    raise(
        KL_ERROR_NOT_IMPLEMENTED,
        device_,
        "the vendor's library of collectives did not add UINT8 modulo 256, as torch does, when that was tried; convert "
        "the tensor to int32");
  }
  return reduced;
}

void Comm::checkReady(NativeStream stream) const {
  if (const auto failed = error()) {
    raise(KL_ERROR_RUNTIME, device_, "the communicator cannot be used any more: %s", failed->text);
  }
  if (deviceOfStream(stream) != device_) {
    raise(KL_ERROR_VALUE, device_, "the stream is not one of the communicator's device %d", device_);
  }
}

void Comm::begin(NativeStream stream) {
  if (last_stream_ != nullptr && last_stream_ != stream) {
    last_.makeWait(stream);
  }
  useDevice(device_);
}

void Comm::end(NativeStream stream) {
  last_.record(stream);
  last_stream_ = stream;
  std::lock_guard guard(state_lock_);
  marks_.try_emplace(stream, device_).first->second.share(last_);
}

void Comm::fail(NativeStream stream, const kl_error& error) noexcept {
  {
    std::lock_guard guard(state_lock_);
    if (!error_) {
      error_ = error;
    }
  }
  try {
    end(stream); // the library may have enqueued something, during which the communicator must not be destroyed
  } catch (const Failure&) {
    // The first failure says more; a device without marks is broken, and passes for idle.
  }
}

const size_t* Comm::lend(const std::vector<uint64_t>& values, NativeStream stream) {
  static_assert(sizeof(size_t) == sizeof(uint64_t));
  const uint64_t bytes = values.size() * sizeof(uint64_t); // the same at each call: four arrays
  auto free = std::find_if(loans_.begin(), loans_.end(), [](const auto& loan) { return loan->passed.query(); });
  if (free == loans_.end()) {
    loans_.push_back(std::make_unique<Loan>(device_, bytes));
    free = loans_.end() - 1;
  }
  Loan& loan = **free;
  std::memcpy(loan.host, values.data(), bytes);
  copy(loan.block.data(), loan.host, bytes, KL_COPY_HOST_TO_DEVICE, KL_COPY_ASYNC, stream);
  return reinterpret_cast<const size_t*>(loan.block.data());
}

void Comm::giveBack(const size_t* lent, NativeStream stream) {
  for (const auto& loan : loans_) {
    if (loan->block.data() == reinterpret_cast<const char*>(lent)) {
      loan->passed.record(stream);
    }
  }
}

std::optional<kl_error> Comm::error() const {
  std::lock_guard guard(state_lock_);
  return error_;
}

void Comm::abort(const char* reason) {
  {
    std::lock_guard guard(state_lock_);
    if (!error_) {
      error_ = kl_error{KL_ERROR_RUNTIME, device_, 0, {}, {}};
      std::snprintf(error_->text, sizeof(error_->text), "%s", reason);
    }
    if (std::exchange(is_aborted_, true)) {
      return;
    }
    // What runs ends as if it had been carried out.
    for (const auto& [stream, mark] : marks_) {
      mark.failPending(*error_);
    }
  }
  // Not in turn: a call of another thread may be what has to end.
  if (bkcl().comm_abort == nullptr) {
    raise(
        KL_ERROR_NOT_IMPLEMENTED,
        device_,
        "the vendor's library of collectives has no bkcl_comm_abort: what runs on the device goes on waiting for the "
        "other ranks; end the process to stop it");
  }
  useDevice(device_);
  checkBkcl(bkcl().comm_abort(native_), "bkcl_comm_abort", device_);
}

bool Comm::isIdle() const {
  try {
    return last_.query();
  } catch (const Failure&) {
    return true; // nothing of a broken device will ever pass
  }
}

} // namespace kunlun::xre
