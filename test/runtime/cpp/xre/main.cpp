// The adapter over the vendor's runtime, against a stand-in for the vendor's library (test/chip/vendor_runtime.cpp).
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/chip/Loader.h"
#include "runtime/chip/collectives.h"

namespace {

const kl_runtime_table& rt() {
  return kunlun::chip::runtime();
}

kl_error lastError() {
  kl_error error{};
  rt().last_error(&error);
  return error;
}

#define CHECK(condition)                                                                                            \
  do {                                                                                                              \
    if (!(condition)) {                                                                                             \
      std::fprintf(                                                                                                 \
          stderr, "%s:%d: check failed: %s\n  last error: %s\n", __FILE__, __LINE__, #condition, lastError().text); \
      std::exit(1);                                                                                                 \
    }                                                                                                               \
  } while (false)
#define OK(call) CHECK((call) == KL_SUCCESS)

bool says(const char* part) {
  return std::strstr(lastError().text, part) != nullptr;
}

std::vector<char> pattern(size_t bytes, int seed) {
  std::vector<char> data(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    data[i] = static_cast<char>(i * 131 + static_cast<size_t>(seed));
  }
  return data;
}

void testInformation() {
  kl_driver_info info{};
  OK(rt().driver_info(&info));
  CHECK(std::string(info.name) == "xre" && std::string(info.driver_version) == "5.21");
  int32_t count = 0;
  OK(rt().device_count(&count));
  CHECK(count == 2);
  kl_device_properties properties{};
  OK(rt().device_properties(0, &properties));
  CHECK(properties.physical_id == 2 && properties.major == 3 && properties.multi_processor_count == 12);
  CHECK(properties.total_memory == uint64_t{96} << 30 && properties.l3_memory == uint64_t{96} << 20);
  CHECK(properties.capabilities == KL_CAP_PEER_ACCESS);
  CHECK(rt().device_properties(2, &properties) == KL_ERROR_INDEX);
}

void testWhatIsMissing() {
  uint64_t a = 0, b = 0;
  CHECK(rt().memory_info(0, &a, &b) == KL_ERROR_NOT_IMPLEMENTED);
  CHECK(says("has no memory information"));
  CHECK(rt().launch_host(nullptr, "", nullptr, nullptr) == KL_ERROR_NOT_IMPLEMENTED);
  CHECK(says("host calls in stream order"));
  CHECK(rt().device_reset(0) == KL_ERROR_NOT_IMPLEMENTED);
  kl_event event = nullptr;
  CHECK(rt().event_create(0, KL_EVENT_TIMING, &event) == KL_ERROR_NOT_IMPLEMENTED);
  CHECK(says("no event timing"));
}

void testMemory() {
  void* ptr = nullptr;
  OK(rt().memory_alloc(1, 1000, KL_MEMORY_MAIN, &ptr));
  kl_pointer_info info{};
  OK(rt().pointer_info(static_cast<char*>(ptr) + 999, &info));
  CHECK(info.type == KL_POINTER_DEVICE && info.device == 1 && info.base == ptr && info.size == 1000);
  CHECK(rt().memory_free(0, ptr) == KL_ERROR_VALUE);
  OK(rt().memory_free(1, ptr));
  CHECK(rt().memory_free(1, ptr) == KL_ERROR_VALUE);
  CHECK(rt().memory_alloc(0, uint64_t{1} << 40, KL_MEMORY_MAIN, &ptr) == KL_ERROR_OUT_OF_MEMORY);
  CHECK(says("xpu_malloc") && says("the device is out of memory"));
  OK(rt().host_malloc(100, &ptr));
  OK(rt().pointer_info(ptr, &info));
  CHECK(info.type == KL_POINTER_HOST);
  OK(rt().host_free(ptr));
}

void testCopies() {
  constexpr size_t kBytes = (size_t{5} << 20) + 12345; // more than the vendor's runtime copies at once
  kl_stream stream = nullptr;
  OK(rt().stream_create(0, 0, &stream));
  void *first = nullptr, *second = nullptr, *elsewhere = nullptr, *pinned = nullptr;
  OK(rt().memory_alloc(0, kBytes, KL_MEMORY_MAIN, &first));
  OK(rt().memory_alloc(0, kBytes, KL_MEMORY_MAIN, &second));
  OK(rt().memory_alloc(1, kBytes, KL_MEMORY_MAIN, &elsewhere));
  OK(rt().host_malloc(kBytes, &pinned));
  const auto data = pattern(kBytes, 1);
  std::vector<char> back(kBytes);

  std::memcpy(pinned, data.data(), kBytes);
  OK(rt().memcpy_async(first, pinned, kBytes, KL_COPY_HOST_TO_DEVICE, KL_COPY_ASYNC, stream));
  OK(rt().memcpy_async(second, first, kBytes, KL_COPY_DEVICE_TO_DEVICE, 0, stream));
  OK(rt().memcpy_async(elsewhere, second, kBytes, KL_COPY_DEVICE_TO_DEVICE, 0, stream));    // to the other device
  OK(rt().memcpy_async(back.data(), elsewhere, kBytes, KL_COPY_DEVICE_TO_HOST, 0, stream)); // from it
  CHECK(back == data);

  const auto other = pattern(kBytes, 2);
  OK(rt().memcpy_async(first, other.data(), kBytes, KL_COPY_HOST_TO_DEVICE, 0, stream)); // pageable
  std::memset(pinned, 0, kBytes);
  OK(rt().memcpy_async(pinned, first, kBytes, KL_COPY_DEVICE_TO_HOST, KL_COPY_ASYNC, stream));
  OK(rt().stream_synchronize(stream));
  CHECK(std::memcmp(pinned, other.data(), kBytes) == 0);

  OK(rt().memset_async(first, 0x5A, kBytes, stream));
  OK(rt().memset_async(static_cast<char*>(first) + 7, 1, 3, stream));
  OK(rt().memcpy_async(back.data(), first, kBytes, KL_COPY_DEVICE_TO_HOST, 0, stream));
  for (size_t i = 0; i < kBytes; ++i) {
    CHECK(back[i] == (i >= 7 && i < 10 ? 1 : 0x5A));
  }
  OK(rt().memory_free(0, first));
  OK(rt().memory_free(0, second));
  OK(rt().memory_free(1, elsewhere));
  OK(rt().host_free(pinned));
  OK(rt().stream_destroy(stream));
}

void testStreamsAndEvents() {
  kl_stream a = nullptr, b = nullptr;
  OK(rt().stream_create(0, 0, &a));
  OK(rt().stream_create(1, 0, &b));
  uint64_t one = 0, two = 0;
  OK(rt().stream_sequence(a, &one));
  OK(rt().stream_sequence(a, &two));
  CHECK(two > one);
  OK(rt().stream_query(a));

  void* memory = nullptr;
  OK(rt().memory_alloc(0, 4096, KL_MEMORY_MAIN, &memory));
  kl_event event = nullptr;
  OK(rt().event_create(0, 0, &event));
  OK(rt().event_query(event)); // never recorded
  OK(rt().event_synchronize(event));
  OK(rt().stream_wait_event(b, event));
  CHECK(rt().event_record(event, b) == KL_ERROR_VALUE);
  CHECK(says("an event of device 0 cannot be recorded on a stream of device 1"));
  // Recorded again and again while it is pending and while the other stream waits for it.
  for (int i = 0; i < 1000; ++i) {
    OK(rt().memset_async(memory, i, 4096, a));
    OK(rt().event_record(event, a));
    OK(rt().stream_wait_event(b, event));
    if (i % 100 == 99) {
      OK(rt().stream_synchronize(b));
    }
  }
  CHECK(rt().event_query(event) == KL_NOT_READY || rt().event_query(event) == KL_SUCCESS);
  OK(rt().event_record(event, a));
  OK(rt().event_destroy(event)); // pending
  OK(rt().device_synchronize(0));
  OK(rt().device_synchronize(1));
  OK(rt().stream_query(a));
  OK(rt().memory_free(0, memory));
  OK(rt().stream_destroy(a));
  CHECK(rt().stream_synchronize(a) == KL_ERROR_VALUE);
  CHECK(rt().stream_synchronize(nullptr) == KL_ERROR_VALUE);
  OK(rt().stream_destroy(b));
}

void testFailures() {
  kl_stream stream = nullptr;
  OK(rt().stream_create(0, 0, &stream));
  auto fails = reinterpret_cast<int (*)(void*)>(dlsym(dlopen("libxpurt.so", RTLD_NOW), "fake_kernel_exception"));
  CHECK(fails != nullptr && fails(stream) == 0);
  CHECK(rt().stream_synchronize(stream) == KL_ERROR_DEVICE);
  CHECK(says("xpu_wait") && says("714") && says("a kernel failed"));
  CHECK(lastError().device == 0 && std::string(lastError().op) == "stream_synchronize");
  OK(rt().stream_destroy(stream));
}

// The library's wait for other ranks cannot be given up, the adapter's can.
void testConnectingAlone() {
  const auto& table = *reinterpret_cast<const kl_collectives*>(kunlun::chip::collectives());
  OK(table.available());
  kl_comm_id id{};
  OK(table.unique_id(&id));
  kl_comm comm = nullptr;
  CHECK(table.comm_init(0, 0, 2, &id, 200, &comm) == KL_ERROR_RUNTIME);
  CHECK(says("not all of the 2 ranks have come"));
  CHECK(table.comm_init(0, 2, 2, &id, 200, &comm) == KL_ERROR_VALUE);
  id.bytes[4099] = 'x'; // the stand-in's ids end here
  CHECK(table.comm_init(0, 0, 1, &id, 200, &comm) == KL_ERROR_RUNTIME);
  CHECK(says("bkcl_init_rank") && says("BKCL_CHECK_AW=0"));
}

} // namespace

int main() {
  try {
    testInformation();
    testWhatIsMissing();
    testMemory();
    testCopies();
    testStreamsAndEvents();
    testFailures();
    testConnectingAlone();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  return 0;
}
