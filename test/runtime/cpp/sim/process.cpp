// Start, fork, exit and protection: each case in a process of its own.
#include <dirent.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include "check.h"

using namespace test;

namespace {

int threads() {
  int count = 0;
  DIR* folder = opendir("/proc/self/task");
  while (const dirent* each = readdir(folder)) {
    count += each->d_name[0] != '.';
  }
  closedir(folder);
  return count;
}

// Exit code of a child that runs `body`.
template <class Body>
int inChild(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    std::exit(0); // with the handlers of the process
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

} // namespace

TEST_ALONE(looking_at_devices_starts_nothing) {
  const int before = threads();
  int32_t count = 0;
  OK(rt().device_count(&count));
  CHECK(count == 2);
  kl_device_properties properties{};
  OK(rt().device_properties(1, &properties));
  CHECK(std::string(properties.name) == "Kunlun XPU (simulated)" && properties.physical_id == 1);
  CHECK(properties.total_memory > 0);
  CHECK((properties.capabilities & KL_CAP_EVENT_TIMING) != 0 && (properties.capabilities & KL_CAP_IPC) != 0);
  CHECK(rt().device_properties(2, &properties) == KL_ERROR_INDEX);
  kl_driver_info info{};
  OK(rt().driver_info(&info));
  CHECK(std::string(info.name) == "sim");
  CHECK(threads() == before);
  // A child may start the chip for itself.
  CHECK(inChild([] {
          Stream stream;
          OK(rt().stream_synchronize(stream));
        }) == 0);
  Stream stream;
  CHECK(threads() == before); // a stream's thread comes with its first item
}

// With KUNLUN_VISIBLE_DEVICES=1,0 and KUNLUN_SIM_DEVICES=3.
TEST_ALONE(visible_devices_select_and_reorder) {
  int32_t count = 0;
  OK(rt().device_count(&count));
  CHECK(count == 2);
  kl_device_properties properties{};
  OK(rt().device_properties(0, &properties));
  CHECK(properties.physical_id == 1);
  OK(rt().device_properties(1, &properties));
  CHECK(properties.physical_id == 0);
}

// With KUNLUN_VISIBLE_DEVICES set to nothing.
TEST_ALONE(no_visible_device) {
  int32_t count = 9;
  OK(rt().device_count(&count));
  CHECK(count == 0);
  void* out = nullptr;
  CHECK(rt().memory_alloc(0, 1, KL_MEMORY_MAIN, &out) == KL_ERROR_INDEX);
}

// With KUNLUN_VISIBLE_DEVICES=5.
TEST_ALONE(a_visible_device_that_does_not_exist) {
  int32_t count = 0;
  CHECK(rt().device_count(&count) == KL_ERROR_VALUE);
  CHECK(contains(lastError().text, "KUNLUN_VISIBLE_DEVICES names device 5, but there are 2 simulated devices"));
}

TEST_ALONE(a_child_of_a_started_process_is_told) {
  Stream stream;
  Event event;
  Memory memory(4096);
  OK(rt().memset_async(memory.ptr, 1, 4096, stream));
  std::atomic<bool> stop{false};
  std::thread busy([&] { // so that the fork may meet any lock taken
    Stream other;
    while (!stop) {
      Memory more(4096);
      OK(rt().memset_async(more.ptr, 0, 4096, other));
      OK(rt().stream_synchronize(other));
    }
  });
  for (int i = 0; i < 20; ++i) {
    CHECK(inChild([&] {
            CHECK(rt().stream_synchronize(stream) == KL_ERROR_RUNTIME);
            CHECK(contains(lastError().text, "started before this process was forked"));
            void* out = nullptr;
            CHECK(rt().memory_alloc(0, 1, KL_MEMORY_MAIN, &out) == KL_ERROR_RUNTIME);
            CHECK(kunlun::sim::enqueue(stream, "x", nullptr, nullptr, nullptr, 0) == KL_ERROR_RUNTIME);
            int32_t count = 0;
            OK(rt().device_count(&count));
            // Destructors run there too.
            OK(rt().event_destroy(event));
            OK(rt().stream_destroy(stream));
            OK(rt().memory_free(0, memory.ptr));
            kunlun::sim::shutdown();
          }) == 0);
  }
  stop = true;
  busy.join();
  OK(rt().stream_synchronize(stream)); // the parent goes on
}

TEST_ALONE(device_memory_is_not_inherited) {
  Memory memory(4096);
  CHECK(inChild([&] { *memory.bytes() = 1; }) == 128 + SIGSEGV);
}

TEST_ALONE(shutdown_drops_what_is_left) {
  static std::atomic<bool> running{false}, open{false};
  static std::atomic<int> ran{0};
  Stream stream;
  const auto gate = [](void*, void*, kl_error*) {
    running = true;
    while (!open) {
      std::this_thread::yield();
    }
    return KL_SUCCESS;
  };
  OK(kunlun::sim::enqueue(stream, "gate", gate, nullptr, nullptr, 0));
  for (int i = 0; i < 100; ++i) {
    OK(kunlun::sim::enqueue(
        stream,
        "dropped",
        [](void*, void*, kl_error*) {
          ++ran;
          return KL_SUCCESS;
        },
        nullptr,
        nullptr,
        0));
  }
  OK(rt().launch_host(
      stream,
      "dropped",
      [](void*, const kl_error*, kl_error*) {
        ++ran;
        return KL_SUCCESS;
      },
      nullptr));
  Event event;
  OK(rt().event_record(event, stream));
  while (!running) {
    std::this_thread::yield();
  }
  std::thread waiter([&] { CHECK(rt().event_synchronize(event) == KL_ERROR_RUNTIME); });
  std::thread opener([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    open = true;
  });
  kunlun::sim::shutdown();
  kunlun::sim::shutdown();
  opener.join();
  waiter.join();
  CHECK(ran == 0);
  CHECK(rt().stream_synchronize(stream) == KL_ERROR_RUNTIME);
  CHECK(contains(lastError().text, "has been shut down because the process is exiting"));
}

TEST_ALONE(a_hanging_item_does_not_keep_the_process) {
  static std::atomic<bool> running{false};
  kl_stream stream = nullptr;
  OK(rt().stream_create(0, 0, &stream));
  const auto hang = [](void*, void*, kl_error*) -> kl_result {
    running = true;
    for (;;) {
      std::this_thread::sleep_for(std::chrono::seconds(1));
    }
  };
  OK(kunlun::sim::enqueue(stream, "hang", hang, nullptr, nullptr, 0));
  while (!running) {
    std::this_thread::yield();
  }
}

TEST_ALONE(threads_that_cannot_start_are_an_error) {
  Stream stream;
  rlimit before{};
  getrlimit(RLIMIT_AS, &before);
  const rlimit none{0, before.rlim_max}; // no room for a thread's stack
  setrlimit(RLIMIT_AS, &none);
  const kl_result refused =
      kunlun::sim::enqueue(stream, "x", [](void*, void*, kl_error*) { return KL_SUCCESS; }, nullptr, nullptr, 0);
  setrlimit(RLIMIT_AS, &before);
  CHECK(refused == KL_ERROR_RUNTIME);
  CHECK(contains(lastError().text, "cannot start the thread of a stream"));
  OK(kunlun::sim::enqueue(stream, "x", [](void*, void*, kl_error*) { return KL_SUCCESS; }, nullptr, nullptr, 0));
  OK(rt().stream_synchronize(stream));
}

// With KUNLUN_SIM_MEMORY=1T.
TEST_ALONE(addresses_that_cannot_be_reserved_are_an_error) {
  rlimit before{};
  getrlimit(RLIMIT_AS, &before);
  const rlimit little{rlim_t{8} << 30, before.rlim_max};
  setrlimit(RLIMIT_AS, &little);
  void* out = nullptr;
  CHECK(rt().memory_alloc(0, 4096, KL_MEMORY_MAIN, &out) == KL_ERROR_OUT_OF_MEMORY);
  CHECK(contains(lastError().text, "cannot reserve 1048576 MiB of addresses for simulated device 0"));
  CHECK(contains(lastError().text, "set KUNLUN_SIM_MEMORY to less"));
  setrlimit(RLIMIT_AS, &before);
  OK(rt().memory_alloc(0, 4096, KL_MEMORY_MAIN, &out));
  OK(rt().memory_free(0, out));
}

// With KUNLUN_SIM_PROTECT=on: ends by SIGSEGV, with the message.
TEST_ALONE(host_access_is_explained) {
  Stream stream;
  Memory memory(8192);
  OK(rt().memset_async(memory.ptr, 1, 8192, stream)); // the chip may
  OK(rt().stream_synchronize(stream));
  *static_cast<volatile char*>(memory.bytes() + 4096) = 1;
}

namespace {
struct sigaction saved_action;

void earlierHandler(int) {
  static constexpr char kText[] = "the earlier handler ran\n";
  if (write(STDERR_FILENO, kText, sizeof(kText) - 1) < 0) {
    _exit(3);
  }
  signal(SIGSEGV, SIG_DFL);
}
void laterHandler(int) {
  // As Python's faulthandler: gives the signal back to whom it had before, and sends it again.
  static constexpr char kText[] = "the later handler ran\n";
  if (write(STDERR_FILENO, kText, sizeof(kText) - 1) < 0) {
    _exit(3);
  }
  sigaction(SIGSEGV, &saved_action, nullptr);
  raise(SIGSEGV);
}
} // namespace

// With KUNLUN_SIM_PROTECT=on.
TEST_ALONE(host_access_with_an_earlier_handler) {
  signal(SIGSEGV, earlierHandler);
  Memory memory(4096);
  *static_cast<volatile char*>(memory.bytes()) = 1;
}

// With KUNLUN_SIM_PROTECT=on.
TEST_ALONE(host_access_with_a_later_handler) {
  Memory memory(4096);
  struct sigaction later{};
  later.sa_handler = laterHandler;
  later.sa_flags = SA_NODEFER;
  sigaction(SIGSEGV, &later, &saved_action);
  *static_cast<volatile char*>(memory.bytes()) = 1;
}

// With KUNLUN_SIM_PROTECT=on: a fault elsewhere stays what it was, without our message.
TEST_ALONE(another_fault_is_not_ours) {
  Memory memory(4096);
  *reinterpret_cast<volatile char*>(uintptr_t{16}) = 1;
}

// With KUNLUN_SIM_PROTECT=on.
TEST_ALONE(a_sent_signal_is_not_ours) {
  Memory memory(4096);
  raise(SIGSEGV);
}
