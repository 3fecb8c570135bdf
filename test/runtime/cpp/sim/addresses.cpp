// Addresses apart from memory: reserving, mapping and unmapping.
#include <cstring>

#include "check.h"

using namespace test;

namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

uint64_t freeBytes() {
  uint64_t free_bytes = 0, total = 0;
  OK(rt().memory_info(0, &free_bytes, &total));
  return free_bytes;
}

struct Addresses {
  explicit Addresses(uint64_t bytes) {
    void* out = nullptr;
    OK(rt().address_reserve(0, bytes, &unit, &out));
    base = static_cast<char*>(out);
  }
  ~Addresses() {
    OK(rt().address_release(0, base));
  }
  uint64_t unit = 0;
  char* base = nullptr;
};

} // namespace

TEST(addresses_have_memory_where_it_is_mapped) {
  Stream stream;
  const uint64_t before = freeBytes();
  {
    Addresses range(64 * kMiB);
    CHECK(range.unit == 2 * kMiB && reinterpret_cast<uintptr_t>(range.base) % range.unit == 0);
    CHECK(freeBytes() == before); // addresses are no memory
    OK(rt().memory_map(0, range.base, 4 * kMiB));
    OK(rt().memory_map(0, range.base + 10 * kMiB, 2 * kMiB));
    CHECK(before - freeBytes() == 6 * kMiB);
    kl_pointer_info info{};
    OK(rt().pointer_info(range.base + 5, &info));
    CHECK(info.type == KL_POINTER_DEVICE && info.base == range.base && info.size == 64 * kMiB);

    const char text[] = "written by the chip";
    char back[sizeof(text)] = {};
    OK(rt().memcpy_async(range.base + 10 * kMiB, text, sizeof(text), KL_COPY_HOST_TO_DEVICE, 0, stream));
    OK(rt().memcpy_async(back, range.base + 10 * kMiB, sizeof(text), KL_COPY_DEVICE_TO_HOST, 0, stream));
    OK(rt().stream_synchronize(stream));
    CHECK(std::strcmp(back, text) == 0);

    OK(rt().memory_unmap(0, range.base + 2 * kMiB, 2 * kMiB));
    CHECK(before - freeBytes() == 4 * kMiB);
    OK(rt().memory_map(0, range.base + 2 * kMiB, 8 * kMiB)); // fills the gap
    CHECK(before - freeBytes() == 12 * kMiB);
  }
  CHECK(freeBytes() == before); // releasing the addresses unmaps
}

TEST(wrong_pieces_of_addresses_are_refused) {
  Addresses range(8 * kMiB);
  CHECK(rt().memory_map(0, range.base, kMiB) == KL_ERROR_VALUE);
  CHECK(contains(lastError().text, "in units of 2097152 bytes"));
  CHECK(rt().memory_map(0, range.base + kMiB, 2 * kMiB) == KL_ERROR_VALUE);
  CHECK(rt().memory_map(0, range.base + 6 * kMiB, 4 * kMiB) == KL_ERROR_VALUE); // beyond the end
  CHECK(rt().memory_unmap(0, range.base, 2 * kMiB) == KL_ERROR_VALUE);
  CHECK(contains(lastError().text, "is not mapped"));
  OK(rt().memory_map(0, range.base, 2 * kMiB));
  CHECK(rt().memory_map(0, range.base, 4 * kMiB) == KL_ERROR_VALUE);
  CHECK(contains(lastError().text, "is mapped already"));
  CHECK(rt().address_release(0, range.base + 2 * kMiB) == KL_ERROR_VALUE);
  int local = 0;
  CHECK(rt().memory_map(0, &local, 2 * kMiB) == KL_ERROR_VALUE);
}

TEST(there_are_more_addresses_than_memory_but_not_more_memory) {
  const uint64_t total = freeBytes() / (2 * kMiB) * (2 * kMiB);
  Addresses first(total), second(total);
  OK(rt().memory_map(0, first.base, total - 2 * kMiB));
  CHECK(rt().memory_map(0, second.base, 4 * kMiB) == KL_ERROR_OUT_OF_MEMORY);
  OK(rt().memory_unmap(0, first.base, 2 * kMiB));
  OK(rt().memory_map(0, second.base, 4 * kMiB));
  void* out = nullptr;
  uint64_t unit = 0;
  CHECK(rt().address_reserve(0, uint64_t{1} << 60, &unit, &out) == KL_ERROR_OUT_OF_MEMORY);
  CHECK(contains(lastError().text, "of addresses in one piece"));
}

// Ends by SIGSEGV, with a message of its own: a kernel must not find zeros where memory has been given back.
TEST_ALONE(addresses_without_memory_are_not_touched) {
  Addresses range(4 * kMiB);
  Stream stream;
  OK(rt().memory_map(0, range.base, 4 * kMiB));
  OK(rt().memset_async(range.base, 1, 4 * kMiB, stream));
  OK(rt().stream_synchronize(stream));
  OK(rt().memory_unmap(0, range.base + 2 * kMiB, 2 * kMiB));
  OK(rt().memset_async(range.base, 2, 2 * kMiB, stream)); // what is left is not concerned
  OK(rt().stream_synchronize(stream));
  OK(rt().memset_async(range.base, 3, 4 * kMiB, stream));
  rt().stream_synchronize(stream);
}

// With KUNLUN_SIM_PROTECT=on: ends by SIGSEGV, with the message.
TEST_ALONE(host_access_to_mapped_addresses_is_explained) {
  Addresses range(2 * kMiB);
  OK(rt().memory_map(0, range.base, 2 * kMiB));
  *static_cast<volatile char*>(range.base + 4096) = 1;
}
