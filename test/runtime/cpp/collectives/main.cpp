// Collectives of the simulated chip without torch: ranks are threads of this process, each with a device of its own, or
// processes. With --bench, prints the time of all_reduce over its size.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "runtime/chip/collectives.h"
#include "sim/check.h"

namespace {

using test::contains;
using test::failCheck;
using test::lastError;
using test::rt;

const kl_collectives& table() {
  static const kl_chip chip = kunlun::sim::chip();
  return *reinterpret_cast<const kl_collectives*>(chip.collectives);
}

struct Rank {
  int device;
  int rank;
  int size;
  kl_comm comm;
  kl_stream stream;

  float* allocate(uint64_t count) const {
    void* memory = nullptr;
    OK(rt().memory_alloc(device, count * sizeof(float), KL_MEMORY_MAIN, &memory));
    return static_cast<float*>(memory);
  }
  void fill(float* memory, const std::vector<float>& values) const {
    OK(rt().memcpy_async(memory, values.data(), values.size() * sizeof(float), KL_COPY_HOST_TO_DEVICE, 0, stream));
  }
  std::vector<float> read(const float* memory, uint64_t count) const {
    std::vector<float> values(count);
    OK(rt().memcpy_async(values.data(), memory, count * sizeof(float), KL_COPY_DEVICE_TO_HOST, 0, stream));
    return values;
  }
};

constexpr kl_reduction kSum{KL_REDUCE_SUM, 0, 1.0, nullptr};

float element(int rank, uint64_t i) {
  return static_cast<float>((static_cast<uint64_t>(rank) + 1) * (i % 97));
}

void sums(const Rank& me) {
  for (const uint64_t count : {0ul, 1ul, 5ul, 1000ul, 4096ul, 4097ul, 100000ul, 1000003ul}) {
    float* memory = me.allocate(count + 1);
    std::vector<float> values(count);
    for (uint64_t i = 0; i < count; ++i) {
      values[i] = element(me.rank, i);
    }
    me.fill(memory, values);
    OK(table().all_reduce(me.comm, memory, memory, count, KL_FLOAT32, &kSum, me.stream));
    const float ranks = static_cast<float>(me.size * (me.size + 1) / 2);
    const auto result = me.read(memory, count);
    for (uint64_t i = 0; i < count; ++i) {
      CHECK(result[i] == ranks * static_cast<float>(i % 97));
    }
    OK(rt().memory_free(me.device, memory));
  }
}

void gathers(const Rank& me) {
  for (const uint64_t count : {1ul, 100ul, 50000ul}) {
    const auto size = static_cast<uint64_t>(me.size);
    float* part = me.allocate(count);
    float* whole = me.allocate(count * size);
    me.fill(part, std::vector<float>(count, static_cast<float>(me.rank)));
    OK(table().all_gather(me.comm, part, whole, count, KL_FLOAT32, me.stream));
    const auto gathered = me.read(whole, count * size);
    for (uint64_t i = 0; i < gathered.size(); ++i) {
      CHECK(gathered[i] == static_cast<float>(i / count));
    }
    OK(table().reduce_scatter(me.comm, whole, part, count, KL_FLOAT32, &kSum, me.stream));
    for (const float value : me.read(part, count)) {
      CHECK(value == static_cast<float>(me.rank * me.size));
    }
    OK(rt().memory_free(me.device, part));
    OK(rt().memory_free(me.device, whole));
  }
}

void disagreement(const Rank& me) {
  float* memory = me.allocate(64);
  const uint64_t count = me.rank == 0 ? 16 : 32;
  OK(table().all_reduce(me.comm, memory, memory, count, KL_FLOAT32, &kSum, me.stream));
  CHECK(rt().stream_synchronize(me.stream) == KL_ERROR_VALUE);
  CHECK(contains(
      lastError().text,
      "rank 0 called all_reduce(SUM, float32, 16 elements), rank 1 called all_reduce(SUM, float32, 32 elements)"));
  // The group goes on.
  me.fill(memory, {static_cast<float>(me.rank)});
  OK(table().all_reduce(me.comm, memory, memory, 1, KL_FLOAT32, &kSum, me.stream));
  CHECK(me.read(memory, 1)[0] == static_cast<float>(me.size * (me.size - 1) / 2));
  OK(rt().memory_free(me.device, memory));
}

void failedRank(const Rank& me) {
  float* memory = me.allocate(1);
  if (me.rank == 1) {
    OK(rt().launch_host(
        me.stream,
        "bad item",
        [](void*, const kl_error*, kl_error* result) {
          std::snprintf(result->text, sizeof(result->text), "on purpose");
          return KL_ERROR_RUNTIME;
        },
        nullptr));
    // Enqueued before anybody can be told.
  }
  kl_result code = table().all_reduce(me.comm, memory, memory, 1, KL_FLOAT32, &kSum, me.stream);
  if (code == KL_SUCCESS) {
    code = rt().stream_synchronize(me.stream);
    CHECK(code == KL_ERROR_RUNTIME);
    CHECK(contains(lastError().text, "on purpose"));
  } else {
    // The failure was delivered to the call, which enqueued nothing: once more, as the others wait.
    OK(table().all_reduce(me.comm, memory, memory, 1, KL_FLOAT32, &kSum, me.stream));
    OK(rt().stream_synchronize(me.stream));
  }
  OK(rt().memory_free(me.device, memory));
}

void transfers(const Rank& me) {
  for (const uint64_t count : {1ul, 1000ul, 300000ul}) {
    float* sent = me.allocate(count);
    float* received = me.allocate(count);
    const int next = (me.rank + 1) % me.size;
    const int previous = (me.rank + me.size - 1) % me.size;
    for (int repeat = 0; repeat < 40; ++repeat) {
      me.fill(sent, std::vector<float>(count, static_cast<float>(me.rank + repeat)));
      OK(table().group_start());
      OK(table().send(me.comm, sent, count, KL_FLOAT32, next, me.stream));
      OK(table().recv(me.comm, received, count, KL_FLOAT32, previous, me.stream));
      OK(table().group_end());
      CHECK(me.read(received, count)[count - 1] == static_cast<float>(previous + repeat));
    }
    // More in one group than a channel holds.
    OK(table().group_start());
    for (int i = 0; i < 50; ++i) {
      OK(table().send(me.comm, sent, count, KL_FLOAT32, next, me.stream));
      OK(table().recv(me.comm, received, count, KL_FLOAT32, previous, me.stream));
    }
    OK(table().group_end());
    OK(rt().stream_synchronize(me.stream));
    OK(rt().memory_free(me.device, sent));
    OK(rt().memory_free(me.device, received));
  }
}

void bench(const Rank& me) {
  using Clock = std::chrono::steady_clock;
  for (uint64_t bytes = 4096; bytes <= uint64_t{256} << 20; bytes *= 4) {
    const uint64_t count = bytes / sizeof(float);
    float* memory = me.allocate(count);
    OK(table().set_patience(100'000));
    const int repeats = bytes <= (1 << 20) ? 200 : 10;
    std::vector<double> times;
    for (int i = 0; i < repeats; ++i) {
      OK(table().barrier(me.comm, me.stream));
      OK(rt().stream_synchronize(me.stream));
      const auto start = Clock::now();
      OK(table().all_reduce(me.comm, memory, memory, count, KL_FLOAT32, &kSum, me.stream));
      OK(rt().stream_synchronize(me.stream));
      times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
    }
    std::sort(times.begin(), times.end());
    if (me.rank == 0) {
      std::printf("%10lu bytes %10.1f us\n", bytes, times[times.size() / 2]);
    }
    OK(rt().memory_free(me.device, memory));
  }
}

void run(int rank, int size, int device, const kl_comm_id& id, const std::function<void(const Rank&)>& body) {
  Rank me{device, rank, size, nullptr, nullptr};
  OK(table().comm_init(device, rank, size, &id, 20000, &me.comm));
  OK(rt().stream_create(device, 0, &me.stream));
  body(me);
  OK(table().barrier(me.comm, me.stream));
  OK(rt().stream_synchronize(me.stream));
  OK(table().comm_destroy(me.comm));
  OK(rt().stream_destroy(me.stream));
}

void everything(const Rank& me) {
  // By the stream alone; left to it in the middle, more often than not; by the callers.
  for (const uint64_t patience : {0ul, 1ul, 100'000ul, 1'000'000'000ul}) {
    OK(table().set_patience(patience));
    sums(me);
    gathers(me);
    if (me.size > 1) {
      disagreement(me);
    }
  }
  if (me.size > 1) {
    transfers(me);
  }
}

void asThreads(int size, const std::function<void(const Rank&)>& body) {
  kl_comm_id id;
  OK(table().unique_id(&id));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] { run(rank, size, rank, id, body); });
  }
  for (auto& thread : threads) {
    thread.join();
  }
}

// Forked before the chip is started; the id goes through pipes.
void asProcesses(int size, const std::function<void(const Rank&)>& body) {
  std::vector<std::array<int, 2>> pipes(static_cast<size_t>(size));
  std::vector<pid_t> children;
  for (auto& pipe_ends : pipes) {
    CHECK(pipe(pipe_ends.data()) == 0);
  }
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      kl_comm_id id;
      if (rank == 0) {
        OK(table().unique_id(&id));
        for (auto& pipe_ends : pipes) {
          CHECK(write(pipe_ends[1], &id, sizeof(id)) == sizeof(id));
        }
      }
      CHECK(read(pipes[static_cast<size_t>(rank)][0], &id, sizeof(id)) == sizeof(id));
      run(rank, size, 0, id, body);
      std::exit(0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
}

} // namespace

int main(int argc, char** argv) {
  const std::string how = argc > 1 ? argv[1] : "threads";
  const int size = argc > 2 ? std::atoi(argv[2]) : 2;
  const auto body = argc > 3 && std::strcmp(argv[3], "--bench") == 0 ? bench
      : argc > 3 && std::strcmp(argv[3], "--failed") == 0            ? failedRank
                                                                     : everything;
  if (how == "threads") {
    asThreads(size, body);
  } else {
    asProcesses(size, body);
  }
  return 0;
}
