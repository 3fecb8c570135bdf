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

} // namespace kunlun
