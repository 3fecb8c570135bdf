// torch's accelerator hooks: what generic code asks of the device beyond the guard.
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>

#include "runtime/CachingAllocator.h"
#include "runtime/Device.h"
#include "runtime/Error.h"
#include "runtime/Generator.h"
#include "runtime/HostAllocator.h"
#include "runtime/Stream.h"
#include "runtime/chip/Loader.h"

namespace kunlun {

namespace {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

struct Hooks final : public at::PrivateUse1HooksInterface {
  void init() const override {
    lazyInit();
  }

  bool isBuilt() const override {
    return true;
  }

  bool isAvailable() const override {
    return kunlun::deviceCount() > 0;
  }

  bool hasPrimaryContext(c10::DeviceIndex device) const override {
    return kunlun::hasPrimaryContext(device);
  }

  c10::DeviceIndex deviceCount() const override {
    return kunlun::deviceCount();
  }

  void setCurrentDevice(c10::DeviceIndex device) const override {
    setDevice(device);
  }

  c10::DeviceIndex getCurrentDevice() const override {
    return currentDevice();
  }

  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return kunlun::exchangeDevice(device);
  }

  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return kunlun::maybeExchangeDevice(device);
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return kunlun::getDefaultGenerator(device);
  }

  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return createGenerator(device);
  }

  at::Device getDeviceFromPtr(void* data) const override {
    lazyInit();
    kl_pointer_info info{};
    check(chip::runtime().pointer_info(data, &info), "pointer_info");
    TORCH_CHECK_VALUE(
        info.type == KL_POINTER_DEVICE, "the pointer ", data, " is not in the memory of any kunlun device");
    return at::Device(kType, static_cast<c10::DeviceIndex>(info.device));
  }

  bool isPinnedPtr(const void* data) const override {
    return kunlun::isPinnedPtr(data);
  }

  at::Allocator* getPinnedMemoryAllocator() const override {
    return getHostAllocator();
  }

  // storage.resize_(), which FSDP uses to free and re-create parameters. The contents are kept up to the new size.
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
    TORCH_CHECK(impl->resizable(), "trying to resize a kunlun storage that is not resizable");
    TORCH_CHECK(
        impl->allocator() != nullptr, "trying to resize a kunlun storage that does not know how to allocate memory");
    const c10::Device device = impl->device();
    const c10::DeviceGuard guard(device);
    c10::DataPtr fresh = impl->allocator()->allocate(bytes);
    const size_t kept = std::min(bytes, impl->nbytes());
    if (kept > 0 && impl->data() != nullptr) {
      CachingAllocator::checkAwake(impl->data());
      const Stream stream = getCurrentStream(device.index());
      check(
          chip::runtime().memcpy_async(
              fresh.mutable_get(), impl->data(), kept, KL_COPY_DEVICE_TO_DEVICE, 0, stream.handle()),
          "memcpy_async");
      CachingAllocator::recordStream(impl->data_ptr(), stream);
      afterLaunch(stream.handle());
    }
    impl->set_data_ptr_noswap(std::move(fresh));
    impl->set_nbytes(bytes);
  }
};

// Leaked, like every object that torch keeps by pointer until the end of the process.
[[maybe_unused]] const bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

} // namespace

} // namespace kunlun
