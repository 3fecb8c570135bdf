// An in-order stream with a thread of its own.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/sim/Event.h"
#include "runtime/sim/Interrupt.h"
#include "runtime/sim/Protect.h"
#include "runtime/sim/Queue.h"
#include "runtime/sim/Status.h"

namespace kunlun::sim {

class Device;

// Failures. An item that fails leaves its fault on the stream; later work is skipped as failed, while event records and
// host calls still happen and carry the fault. The fault is reported once: to the next launch, copy or synchronisation
// on the stream. Everything enqueued before the report is skipped, whether the thread has reached it or not; then the
// stream is clean. A fault of the whole device poisons it instead, and is reported by every call until the reset.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(Device& device, int id) : device_(device), id_(id) {}

  Device& device() const {
    return device_;
  }

  // ---- callers

  // Returns the sequence number. The payload consists of a head and, optionally, of bulk data behind it.
  uint64_t work(
      const char* name,
      WorkFn run,
      void* context,
      const void* head,
      size_t head_bytes,
      const void* bulk = nullptr,
      size_t bulk_bytes = 0);
  void host(const char* name, kl_host_fn fn, void* arg);
  // Runs the call on the calling thread, if the stream is idle and in order. Saves the way to the stream's thread and
  // back, which takes longer than a small kernel. What is enqueued meanwhile comes behind it.
  bool tryHost(const char* name, kl_host_fn fn, void* arg);
  // A host call whose beginning may run on the calling thread: where the stream is idle and in order, `begin` does, and
  // unless it returns KL_NOT_READY, that was all of it. Otherwise `rest` follows on the stream's thread.
  void hostFromHere(const char* name, kl_host_fn begin, kl_host_fn rest, void* arg);
  void record(const std::shared_ptr<EventRecord>& record);
  void waitFor(const std::shared_ptr<EventRecord>& record);

  uint64_t enqueued() const {
    return enqueued_.load(std::memory_order_acquire);
  }
  bool isIdle() const {
    return completed_.get() >= enqueued();
  }
  // May be interrupted, which raises.
  void waitUntil(uint64_t sequence) {
    waitInterruptibly(completed_, sequence);
  }
  // The same for work that begins with claim(), which uses the caller's memory: when the wait is interrupted before the
  // work has begun, it never will.
  void waitForClaimed(uint64_t sequence);
  // Raises when called on the stream's own thread, which would wait for itself.
  void refuseOwnThread(const char* call) const;

  // Delivers a fault that nobody has been told of yet: stores it as the thread's last error and returns its code. With
  // `only`, just that fault. KL_SUCCESS when there is none.
  kl_result report(const kl_error* only = nullptr) {
    return (state_.load(std::memory_order_acquire) & (kUnreported | kPoisoned)) == 0 ? KL_SUCCESS : reportSlowly(only);
  }
  // The fault that report() would deliver.
  Fault unreported() const;

  // ---- device

  void setPoisoned(bool poisoned);
  // Drops what is enqueued, undelivered faults included; then waits until the thread has passed it. Two steps, so that
  // every stream of the device has been told before the first is waited for.
  void beginReset(const Fault& why);
  void endReset();
  // Waits for the work, then stops the thread.
  void destroy();
  // At process exit: tells the thread to stop after its current item; then waits for it, but not beyond the deadline.
  void stop();
  void join(const timespec& deadline);

  // The stream whose item the calling thread is running.
  static Stream* current() {
    return current_;
  }

  // ---- work, on the stream's thread

  // Stops the stream until `progress` has reached `target` or the deadline (as in Progress::waitFor) has come, holding
  // no lock and no core. Cancelled when the device is reset or the process exits.
  Progress::Waited pause(Progress& progress, uint64_t target, int64_t deadline);
  // Whether an item that waits by other means than pause() is to give up, because the device is reset or poisoned or
  // the process exits. What it returns then makes no difference.
  bool isGivenUp() const {
    return interrupted_.load(std::memory_order_relaxed) || (state_.load(std::memory_order_acquire) & kPoisoned) != 0;
  }
  // Whether the running item may go on: its caller still waits for it.
  bool claim();

 private:
  enum : uint32_t {
    kFault = 1u << 0,      // fault_ is set
    kUnreported = 1u << 1, // and nobody has been told
    kPoisoned = 1u << 2    // the device is poisoned
  };

  // Payload of a host call. The name is copied: the caller's need not outlive the call.
  struct HostCall {
    HostCall(const char* called, kl_host_fn function, void* argument);
    kl_host_fn fn;
    void* arg;
    char name[sizeof(kl_error::op)];
  };

  template <class Fill>
  uint64_t push(Queue::Kind kind, const char* name, WorkFn run, void* context, size_t bytes, Fill&& fill);
  // Whether a call may run on the calling thread now; under producer_. If so, its number; 0 otherwise.
  uint64_t beginVisit();
  kl_result runVisit(const char* name, kl_host_fn fn, void* arg, uint64_t sequence);
  void startThread();
  kl_result reportSlowly(const kl_error* only);

  // The stream's thread.
  void loop();
  void execute(Queue::Record& record);
  void runWork(Queue::Record& record);
  void runHost(Queue::Record& record);
  kl_result callHost(const char* name, kl_host_fn fn, void* arg, const Fault& fault, uint64_t sequence);
  static void finish(EventRecord& record, const Fault& fault);
  void completeRecord(Queue::Record& record);
  void awaitRecord(Queue::Record& record);
  // A record that another process has made.
  void awaitForeign(const EventRecord& record, uint64_t sequence);
  // The fault behind which the item lies, if any.
  Fault faultFor(uint64_t sequence);
  void fail(const kl_error& error);
  void taint(const Fault& fault);

  static constinit inline thread_local Stream* current_ = nullptr;

  Device& device_;
  const int id_;

  std::mutex producer_; // guards the producing side of queue_, thread_, started_, guest_ and growth of enqueued_
  bool guest_ = false;  // a caller runs an item: what is enqueued meanwhile is published after it
  Queue queue_;
  std::atomic<uint64_t> enqueued_{0};
  pthread_t thread_{};
  bool started_ = false;

  alignas(64) Progress completed_;
  Access access_; // the thread's own

  alignas(64) std::atomic<uint32_t> state_{0}; // the one word that the fast paths look at
  mutable std::mutex fault_lock_; // guards the three below and the bits kFault and kUnreported; taken after producer_
  Fault fault_;
  bool reported_ = false;
  uint64_t skip_through_ = 0; // last item skipped because of a reported fault

  std::atomic<bool> stopping_{false};    // what is still enqueued is dropped, host calls too
  std::atomic<bool> interrupted_{false}; // waits for events are given up
  std::mutex wait_lock_;                 // guards awaited_
  Progress* awaited_ = nullptr;          // what the thread waits for now

  uint64_t running_ = 0;            // the thread's own: the item it is at
  std::mutex claim_lock_;           // guards the two below
  uint64_t claimed_ = 0;            // last item that called claim()
  std::vector<uint64_t> abandoned_; // items whose callers have gone
};

} // namespace kunlun::sim
