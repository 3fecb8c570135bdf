// torch's device guard: current device, streams and events for code that does not know which accelerator it runs on.
#include <c10/core/DeviceCapability.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "runtime/CachingAllocator.h"
#include "runtime/Device.h"
#include "runtime/Error.h"
#include "runtime/Event.h"
#include "runtime/Stream.h"
#include "runtime/chip/Loader.h"

namespace kunlun {

namespace {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

struct GuardImpl final : public c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override {
    return kType;
  }

  c10::Device exchangeDevice(c10::Device device) const override {
    return c10::Device(kType, kunlun::exchangeDevice(indexOf(device)));
  }

  c10::Device getDevice() const override {
    return c10::Device(kType, currentDevice());
  }

  void setDevice(c10::Device device) const override {
    kunlun::setDevice(indexOf(device));
  }

  void uncheckedSetDevice(c10::Device device) const noexcept override {
    kunlun::uncheckedSetDevice(device.index());
  }

  c10::DeviceIndex deviceCount() const noexcept override {
    return kunlun::deviceCount();
  }

  c10::DeviceCapability getDeviceCapability(c10::Device device) const override {
    c10::DeviceCapability capability;
    capability.capability_data.capability_bits = 0;
    auto& has = capability.capability_data.supported_scalar_types;
    has.has_Bool = has.has_Byte = has.has_Char = has.has_Short = has.has_Int = has.has_Long = 1;
    has.has_UInt16 = has.has_UInt32 = has.has_UInt64 = 1;
    has.has_Half = has.has_BFloat16 = has.has_Float = 1;
    has.has_ComplexHalf = has.has_ComplexFloat = 1;
    has.has_Float8_e4m3fn = has.has_Float8_e5m2 = has.has_Float8_e4m3fnuz = has.has_Float8_e5m2fnuz = 1;
    has.has_Float8_e8m0fnu = 1;
    if (hasCapability(resolveDevice(device.index()), KL_CAP_FP64)) {
      has.has_Double = has.has_ComplexDouble = 1;
    }
    return capability;
  }

  // ---- streams ----

  c10::Stream getStream(c10::Device device) const override {
    return getCurrentStream(device.index());
  }

  c10::Stream getDefaultStream(c10::Device device) const override {
    return kunlun::getDefaultStream(device.index());
  }

  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    return getStreamFromPool(high_priority, device.index());
  }

  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return getStreamFromPool(priority, device.index());
  }

  c10::Stream exchangeStream(c10::Stream stream) const override {
    const Stream next(stream);
    const Stream previous = getCurrentStream(next.device_index());
    setCurrentStream(next);
    return previous;
  }

  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return Stream(stream).handle();
  }

  bool queryStream(const c10::Stream& stream) const override {
    return Stream(stream).query();
  }

  void synchronizeStream(const c10::Stream& stream) const override {
    Stream(stream).synchronize();
  }

  void synchronizeDevice(const c10::DeviceIndex device) const override {
    kunlun::synchronizeDevice(device);
  }

  // ---- events ----

  void record(void** event, const c10::Stream& c10_stream, const c10::DeviceIndex device, const c10::EventFlag flag)
      const override {
    const Stream stream(c10_stream);
    TORCH_CHECK_VALUE(
        device == -1 || device == stream.device_index(),
        "the event belongs to kunlun:",
        static_cast<int>(device),
        " and cannot be recorded on a stream of kunlun:",
        static_cast<int>(stream.device_index()));
    auto created = static_cast<kl_event>(*event);
    if (created == nullptr) {
      if (const kl_event existing = AdoptEventScope::take()) {
        *event = existing;
        return;
      }
    }
    const kl_stream handle = stream.handle();
    if (created == nullptr) {
      uint32_t flags = 0;
      switch (flag) {
        case c10::EventFlag::PYTORCH_DEFAULT:
          break;
        case c10::EventFlag::BACKEND_DEFAULT:
          flags = KL_EVENT_TIMING;
          break;
        default:
          TORCH_CHECK_VALUE(false, "kunlun received an unknown event flag");
      }
      check(chip::runtime().event_create(stream.device_index(), flags, &created), "event_create");
      *event = created;
    }
    check(chip::runtime().event_record(created, handle), "event_record");
  }

  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) {
      check(
          chip::runtime().stream_wait_event(Stream(stream).handle(), static_cast<kl_event>(event)),
          "stream_wait_event");
    }
  }

  bool queryEvent(void* event) const override {
    return event == nullptr ||
        (lazyInit(), checkReady(chip::runtime().event_query(static_cast<kl_event>(event)), "event_query"));
  }

  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      lazyInit();
      check(chip::runtime().event_synchronize(static_cast<kl_event>(event)), "event_synchronize");
    }
  }

  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK_VALUE(
        start != nullptr && end != nullptr, "both events must be recorded before the time between them can be taken");
    lazyInit();
    double milliseconds = 0;
    check(
        chip::runtime().event_elapsed(static_cast<kl_event>(start), static_cast<kl_event>(end), &milliseconds),
        "event_elapsed");
    return milliseconds;
  }

  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    // In a forked child and after the shutdown there is no driver left that knows the event.
    if (event != nullptr && checkUsable()) {
      chip::runtime().event_destroy(static_cast<kl_event>(event));
    }
  }

  // ---- memory ----

  void recordDataPtrOnStream(const c10::DataPtr& ptr, const c10::Stream& stream) const override {
    CachingAllocator::recordStream(ptr, stream);
  }

 private:
  static c10::DeviceIndex indexOf(c10::Device device) {
    TORCH_INTERNAL_ASSERT(device.type() == kType, "expected a kunlun device, got ", device);
    return device.index();
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, GuardImpl)

} // namespace

} // namespace kunlun
