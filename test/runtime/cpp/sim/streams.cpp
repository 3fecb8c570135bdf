// Order, queueing and waiting on streams.
#include <atomic>
#include <cstring>
#include <memory>
#include <thread>

#include "check.h"

using namespace test;

TEST(work_runs_in_order_and_is_numbered) {
  Stream stream;
  uint64_t sequence = 99;
  OK(rt().stream_sequence(stream, &sequence));
  CHECK(sequence == 0);
  OK(rt().stream_synchronize(stream)); // nothing to wait for
  struct Payload {
    std::vector<int>* seen;
    int number;
  };
  std::vector<int> seen;
  for (int i = 0; i < 5000; ++i) {
    const Payload payload{&seen, i};
    OK(kunlun::sim::enqueue(
        stream,
        "append",
        [](void*, void* p, kl_error*) {
          const auto* mine = static_cast<const Payload*>(p);
          mine->seen->push_back(mine->number);
          return KL_SUCCESS;
        },
        nullptr,
        &payload,
        sizeof(payload)));
  }
  OK(rt().stream_sequence(stream, &sequence));
  CHECK(sequence == 5000);
  OK(rt().stream_synchronize(stream));
  OK(rt().stream_query(stream));
  CHECK(seen.size() == 5000);
  for (int i = 0; i < 5000; ++i) {
    CHECK(seen[static_cast<size_t>(i)] == i);
  }
}

TEST(payloads_of_every_size_arrive_whole_and_aligned) {
  Stream stream;
  static std::atomic<int> good{0};
  good = 0;
  int sent = 0;
  for (int round = 0; round < 20; ++round) {
    for (size_t bytes :
         {size_t{16}, size_t{17}, size_t{463}, size_t{4096}, size_t{65000}, size_t{65536}, size_t{200000}}) {
      std::vector<unsigned char> payload(bytes);
      for (size_t i = sizeof(size_t); i < bytes; ++i) {
        payload[i] = static_cast<unsigned char>(i * 31 + bytes);
      }
      std::memcpy(payload.data(), &bytes, sizeof(bytes));
      OK(kunlun::sim::enqueue(
          stream,
          "look",
          [](void*, void* p, kl_error*) {
            size_t bytes = 0;
            std::memcpy(&bytes, p, sizeof(bytes));
            const auto* data = static_cast<const unsigned char*>(p);
            bool whole = reinterpret_cast<uintptr_t>(p) % 16 == 0;
            for (size_t i = sizeof(size_t); i < bytes; ++i) {
              whole = whole && data[i] == static_cast<unsigned char>(i * 31 + bytes);
            }
            good += whole ? 1 : 0;
            return KL_SUCCESS;
          },
          nullptr,
          payload.data(),
          payload.size()));
      ++sent;
    }
  }
  OK(rt().stream_synchronize(stream));
  CHECK(good == sent);
}

TEST(a_full_ring_makes_producers_wait) {
  Stream stream;
  std::atomic<bool> open{false};
  auto gate = [&](kl_error*) {
    while (!open) {
      std::this_thread::yield();
    }
    return KL_SUCCESS;
  };
  OK(enqueue(stream, "gate", gate));
  std::atomic<int> ran{0};
  auto count = [&](kl_error*) {
    ++ran;
    return KL_SUCCESS;
  };
  constexpr int kItems = 20000; // several rings full
  std::atomic<int> pushed{0};
  std::vector<std::thread> producers;
  for (int t = 0; t < 3; ++t) {
    producers.emplace_back([&] {
      for (int i = 0; i < kItems; ++i) {
        OK(enqueue(stream, "count", count));
        ++pushed;
      }
    });
  }
  // The producers come to a stop while the gate is closed: the ring has room for fewer items than they have.
  while (pushed < 1000) {
    std::this_thread::yield();
  }
  CHECK(pushed < 3 * kItems);
  open = true;
  for (auto& producer : producers) {
    producer.join();
  }
  OK(rt().stream_synchronize(stream));
  CHECK(ran == 3 * kItems);
}

TEST(many_producers_keep_their_own_order) {
  Stream stream;
  constexpr int kProducers = 8;
  constexpr int kItems = 3000;
  struct Payload {
    int* last; // number of the newest item of its producer
    int number;
  };
  int last[kProducers] = {};
  static std::atomic<int> wrong{0};
  wrong = 0;
  std::vector<std::thread> producers;
  for (int t = 0; t < kProducers; ++t) {
    producers.emplace_back([&, t] {
      for (int i = 1; i <= kItems; ++i) {
        const Payload payload{&last[t], i};
        OK(kunlun::sim::enqueue(
            stream,
            "in order",
            [](void*, void* p, kl_error*) {
              const auto* mine = static_cast<const Payload*>(p);
              wrong += *mine->last + 1 == mine->number ? 0 : 1;
              *mine->last = mine->number;
              return KL_SUCCESS;
            },
            nullptr,
            &payload,
            sizeof(payload)));
        if (i % 500 == 0) {
          OK(rt().stream_synchronize(stream));
        }
      }
    });
  }
  for (auto& producer : producers) {
    producer.join();
  }
  OK(rt().stream_synchronize(stream));
  CHECK(wrong == 0);
  for (const int number : last) {
    CHECK(number == kItems);
  }
  uint64_t sequence = 0;
  OK(rt().stream_sequence(stream, &sequence));
  CHECK(sequence == kProducers * kItems);
}

TEST(query_says_not_ready_while_work_runs) {
  Stream stream;
  std::atomic<bool> open{false};
  auto gate = [&](kl_error*) {
    while (!open) {
      std::this_thread::yield();
    }
    return KL_SUCCESS;
  };
  OK(enqueue(stream, "gate", gate));
  CHECK(rt().stream_query(stream) == KL_NOT_READY);
  open = true;
  OK(rt().stream_synchronize(stream));
  OK(rt().stream_query(stream));
}

TEST(destroy_waits_for_the_work) {
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> ran{0};
    auto count = [&](kl_error*) {
      ++ran;
      return KL_SUCCESS;
    };
    kl_stream stream = nullptr;
    OK(rt().stream_create(round % 2, 0, &stream));
    for (int i = 0; i < round; ++i) {
      OK(enqueue(stream, "count", count));
    }
    OK(rt().stream_destroy(stream));
    CHECK(ran == round);
  }
}

TEST(device_synchronize_waits_for_every_stream) {
  std::vector<std::unique_ptr<Stream>> streams;
  std::atomic<int> ran{0};
  auto count = [&](kl_error*) {
    std::this_thread::yield();
    ++ran;
    return KL_SUCCESS;
  };
  for (int i = 0; i < 12; ++i) {
    streams.push_back(std::make_unique<Stream>(0));
  }
  for (int i = 0; i < 1200; ++i) {
    OK(enqueue(*streams[static_cast<size_t>(i % 12)], "count", count));
  }
  OK(rt().device_synchronize(0));
  CHECK(ran == 1200);
}

TEST(host_calls_run_in_order_on_the_chips_thread) {
  Stream stream;
  struct Seen {
    kl_stream stream = nullptr;
    bool error = true;
    int order = 0;
  } seen;
  int order = 0;
  auto first = [&](kl_error*) {
    order = 1;
    return KL_SUCCESS;
  };
  OK(enqueue(stream, "first", first));
  struct Context {
    Seen* seen;
    int* order;
  } context{&seen, &order};
  std::string name = "a name that does not outlive the call";
  OK(rt().launch_host(
      stream,
      name.c_str(),
      [](void* arg, const kl_error* error, kl_error*) {
        auto* c = static_cast<Context*>(arg);
        c->seen->stream = kunlun::sim::currentStream();
        c->seen->error = error != nullptr;
        c->seen->order = *c->order;
        return KL_SUCCESS;
      },
      &context));
  name.assign(name.size(), '?');
  OK(rt().stream_synchronize(stream));
  CHECK(seen.stream == stream.handle);
  CHECK(!seen.error);
  CHECK(seen.order == 1);
  CHECK(kunlun::sim::currentStream() == nullptr);
}

TEST(a_host_call_cannot_wait_for_its_own_stream) {
  Stream stream;
  struct Context {
    kl_stream stream;
    kl_result synchronize, destroy, device;
    std::string text;
  } context{stream, KL_SUCCESS, KL_SUCCESS, KL_SUCCESS, ""};
  OK(rt().launch_host(
      stream,
      "waits for itself",
      [](void* arg, const kl_error*, kl_error*) {
        auto* c = static_cast<Context*>(arg);
        c->synchronize = rt().stream_synchronize(c->stream);
        c->text = lastError().text;
        c->destroy = rt().stream_destroy(c->stream);
        c->device = rt().device_synchronize(0);
        return KL_SUCCESS;
      },
      &context));
  OK(rt().stream_synchronize(stream));
  CHECK(context.synchronize == KL_ERROR_RUNTIME);
  CHECK(contains(context.text, "the very stream it would wait for"));
  CHECK(context.destroy == KL_ERROR_RUNTIME);
  CHECK(context.device == KL_ERROR_RUNTIME);
}

TEST(a_host_call_may_enqueue_on_its_own_stream) {
  Stream stream;
  static std::atomic<int> ran{0};
  ran = 0;
  OK(rt().launch_host(
      stream,
      "enqueues",
      [](void* arg, const kl_error*, kl_error*) {
        return kunlun::sim::enqueue(
            static_cast<kl_stream>(arg),
            "later",
            [](void*, void*, kl_error*) {
              ++ran;
              return KL_SUCCESS;
            },
            nullptr,
            nullptr,
            0);
      },
      stream.handle));
  OK(rt().stream_synchronize(stream));
  OK(rt().stream_synchronize(stream)); // the item that the host call added
  CHECK(ran == 1);
}

TEST(bad_arguments_are_refused) {
  kl_stream stream = nullptr;
  CHECK(rt().stream_create(99, 0, &stream) == KL_ERROR_INDEX);
  CHECK(contains(lastError().text, "kunlun device 99 does not exist: this process sees 2 simulated devices"));
  CHECK(std::string(lastError().op) == "stream_create");
  CHECK(rt().stream_create(-1, 0, &stream) == KL_ERROR_INDEX);
  CHECK(rt().stream_create(0, 0, nullptr) == KL_ERROR_VALUE);
  CHECK(rt().stream_synchronize(nullptr) == KL_ERROR_VALUE);
  CHECK(contains(lastError().text, "the stream is NULL"));
  CHECK(rt().event_record(nullptr, nullptr) == KL_ERROR_VALUE);
  Stream good;
  CHECK(rt().launch_host(good, "null", nullptr, nullptr) == KL_ERROR_VALUE);
  OK(rt().stream_synchronize(good)); // still usable
}
