// Asynchronous launches: every operator call becomes a call frame on a stream.
#pragma once

#include <atomic>
#include <optional>

#include <ATen/core/IListRef.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>

#include "runtime/Stream.h"
#include "runtime/chip/chip.h"
#include "runtime/frame/FrameBuilder.h"

namespace kunlun::aten {

// One operator of the chip's table, looked up at its first launch. Where the
// driver has no kernel, or not for these dtypes, the host's kernel runs the
// frame (Missing.h): on the chip's thread if the chip is host-addressable, else
// on copies under the fallback policy.
class OpHandle {
 public:
  constexpr explicit OpHandle(const char* schema) : schema_(schema) {}
  OpHandle(const OpHandle&) = delete;
  OpHandle& operator=(const OpHandle&) = delete;

  const char* schema() const {
    return schema_;
  }
  // Enqueues and returns. Raises what the stream has to report from earlier work.
  void launch(const kl_frame* frame, c10::Device device);

 private:
  void resolve();

  const char* schema_;
  kl_operator op_{nullptr, nullptr}; // written once, before state_
  enum State : int { Unknown, Present, Absent };
  std::atomic<int> state_{Unknown};
};

// ---- the device of a call: that of its first kunlun tensor ----

namespace detail {

inline bool takeDevice(std::optional<c10::Device>& device, const at::Tensor& tensor) {
  if (tensor.defined() && tensor.device().is_privateuseone()) {
    device = tensor.device();
    return true;
  }
  return false;
}
inline bool takeDevice(std::optional<c10::Device>& device, const std::optional<at::Tensor>& tensor) {
  return tensor.has_value() && takeDevice(device, *tensor);
}
template <class List>
bool takeDeviceOfList(std::optional<c10::Device>& device, const List& list) {
  for (const auto& element : list) {
    if (takeDevice(device, element)) {
      return true;
    }
  }
  return false;
}
inline bool takeDevice(std::optional<c10::Device>& device, const at::ITensorListRef& list) {
  return takeDeviceOfList(device, list);
}
inline bool takeDevice(std::optional<c10::Device>& device, const c10::List<std::optional<at::Tensor>>& list) {
  for (const auto& element : at::IOptTensorListRef(list)) {
    if (element.has_value() && takeDevice(device, *element)) {
      return true;
    }
  }
  return false;
}

[[noreturn]] void noDevice();

} // namespace detail

template <class... Tensors>
c10::Device deviceOf(const Tensors&... tensors) {
  std::optional<c10::Device> device;
  if (!(detail::takeDevice(device, tensors) || ...)) {
    detail::noDevice();
  }
  return *device;
}

// `outs` are written by the operator; `args` follow the operator's schema.
template <class... Args>
void launchOn(
    kl_stream stream,
    OpHandle& op,
    c10::Device device,
    at::ArrayRef<const at::Tensor*> outs,
    const Args&... args) {
  frame::FrameBuilder builder(
      op.schema(), stream, device, static_cast<uint32_t>(sizeof...(args)), static_cast<uint32_t>(outs.size()));
  (builder.add(args), ...);
  for (const auto* out : outs) {
    builder.addOut(*out);
  }
  op.launch(builder.finish(), device);
  afterLaunch(stream);
}

// On the thread's current stream of `device`.
template <class... Args>
void launch(OpHandle& op, c10::Device device, at::ArrayRef<const at::Tensor*> outs, const Args&... args) {
  launchOn(currentStreamHandle(device.index()), op, device, outs, args...);
}

} // namespace kunlun::aten
