// Checks and registration for the test program of the simulated chip.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "runtime/sim/Sim.h"

namespace test {

struct Case {
  const char* name;
  void (*run)();
  bool alone; // needs an environment or a process of its own: only run when named
};

inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

struct Register {
  Register(const char* name, void (*run)(), bool alone) {
    cases().push_back({name, run, alone});
  }
};

inline const kl_runtime_table& rt() {
  static const kl_chip chip = kunlun::sim::chip();
  return *chip.runtime;
}

inline kl_error lastError() {
  kl_error error{};
  rt().last_error(&error);
  return error;
}

[[noreturn]] inline void failCheck(const char* file, int line, const char* what) {
  const kl_error error = lastError();
  std::fprintf(
      stderr,
      "%s:%d: check failed: %s\n  last error: code %d, op \"%s\", sequence %llu: %s\n",
      file,
      line,
      what,
      error.code,
      error.op,
      static_cast<unsigned long long>(error.sequence),
      error.text);
  std::_Exit(1);
}

inline bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

// Streams and events that end with their scope.
class Stream {
 public:
  explicit Stream(int device = 0) {
    if (rt().stream_create(device, 0, &handle) != KL_SUCCESS) {
      failCheck(__FILE__, __LINE__, "stream_create");
    }
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() {
    rt().stream_destroy(handle);
  }
  operator kl_stream() const {
    return handle;
  }
  kl_stream handle = nullptr;
};

class Event {
 public:
  explicit Event(int device = 0, uint32_t flags = 0) {
    if (rt().event_create(device, flags, &handle) != KL_SUCCESS) {
      failCheck(__FILE__, __LINE__, "event_create");
    }
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() {
    rt().event_destroy(handle);
  }
  operator kl_event() const {
    return handle;
  }
  kl_event handle = nullptr;
};

class Memory {
 public:
  explicit Memory(uint64_t bytes, int device = 0) : device_(device) {
    if (rt().memory_alloc(device, bytes, KL_MEMORY_MAIN, &ptr) != KL_SUCCESS) {
      failCheck(__FILE__, __LINE__, "memory_alloc");
    }
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    rt().memory_free(device_, ptr);
  }
  char* bytes() const {
    return static_cast<char*>(ptr);
  }
  void* ptr = nullptr;

 private:
  int device_;
};

// Enqueues a callable as work of the stream. It must stay alive until the stream has passed it.
template <class Callable>
kl_result enqueue(kl_stream stream, const char* name, Callable& callable) {
  return kunlun::sim::enqueue(
      stream,
      name,
      [](void* context, void*, kl_error* error) { return (*static_cast<Callable*>(context))(error); },
      &callable,
      nullptr,
      0);
}

} // namespace test

#define TEST(name)                                                        \
  static void test_##name();                                              \
  static const test::Register register_##name(#name, test_##name, false); \
  static void test_##name()

#define TEST_ALONE(name)                                                 \
  static void test_##name();                                             \
  static const test::Register register_##name(#name, test_##name, true); \
  static void test_##name()

#define CHECK(condition)                               \
  do {                                                 \
    if (!(condition)) {                                \
      test::failCheck(__FILE__, __LINE__, #condition); \
    }                                                  \
  } while (false)

#define OK(call) CHECK((call) == KL_SUCCESS)
