// An event: a mark in a stream that others can wait for or take the time of.
#pragma once

#include <utility>

#include <c10/core/Device.h>

#include "runtime/Stream.h"
#include "runtime/chip/chip.h"

namespace kunlun {

// Owns a kl_event, which is created by the first record() on that stream's device. Movable, not copyable.
class Event {
 public:
  explicit Event(bool enable_timing = false) noexcept : timing_(enable_timing) {}
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  Event(Event&& other) noexcept {
    swap(other);
  }
  Event& operator=(Event&& other) noexcept {
    Event(std::move(other)).swap(*this);
    return *this;
  }

  bool isCreated() const noexcept {
    return event_ != nullptr;
  }
  kl_event handle() const noexcept {
    return event_;
  }
  // -1 before the first record.
  c10::DeviceIndex device_index() const noexcept {
    return device_;
  }

  void record();
  void record(const Stream& stream);
  // Makes later work on `stream` wait for the last record. Does nothing if there was none.
  void block(const Stream& stream) const;
  // True if the last record has been passed, or if there was none.
  bool query() const;
  void synchronize() const;
  // Milliseconds between two recorded events, both made with enable_timing.
  double elapsed_time(const Event& end) const;

 private:
  void swap(Event& other) noexcept {
    std::swap(event_, other.event_);
    std::swap(device_, other.device_);
    std::swap(timing_, other.timing_);
  }

  kl_event event_ = nullptr;
  c10::DeviceIndex device_ = -1;
  bool timing_ = false;
};

// c10::Event makes its device event at the first record and has no way to take over one that exists. Inside this scope
// the calling thread's first record of a fresh event takes `event` over and records nothing.
class AdoptEventScope {
 public:
  explicit AdoptEventScope(kl_event event) noexcept;
  ~AdoptEventScope();
  AdoptEventScope(const AdoptEventScope&) = delete;
  AdoptEventScope& operator=(const AdoptEventScope&) = delete;

  // For the guard: the event of the innermost scope, once; NULL otherwise.
  static kl_event take() noexcept;

 private:
  kl_event outer_;
};

} // namespace kunlun
