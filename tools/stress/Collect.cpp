// Ranks of a communicator, as threads on a device each: random collectives, waited for by callers or left to streams.
#include <array>

#include "Stress.h"
#include "runtime/chip/collectives.h"

namespace stress {

namespace {

constexpr uint64_t kMost = 40'000; // elements
constexpr kl_reduction kSum{KL_REDUCE_SUM, 0, 1.0, nullptr};

const kl_collectives& table() {
  static const kl_chip chip = kunlun::sim::chip();
  return *reinterpret_cast<const kl_collectives*>(chip.collectives);
}

class Rank {
 public:
  Rank(World& world, int rank, const kl_comm_id& id, uint64_t seed)
      : world_(world), rank_(rank), common_(seed), own_(seed + static_cast<uint64_t>(rank) + 1) {
    STRESS_OK(table().comm_init(rank, rank, kComputing, &id, 60'000, &comm_));
    for (kl_stream& stream : streams_) {
      STRESS_OK(rt().stream_create(rank, 0, &stream));
    }
    for (void*& buffer : buffers_) {
      STRESS_OK(rt().memory_alloc(rank, kMost * kComputing * sizeof(int32_t), KL_MEMORY_MAIN, &buffer));
    }
  }

  ~Rank() {
    for (kl_stream stream : streams_) {
      STRESS_OK(rt().stream_synchronize(stream));
    }
    STRESS_OK(table().comm_destroy(comm_));
    for (void* buffer : buffers_) {
      STRESS_OK(rt().memory_free(rank_, buffer));
    }
    for (kl_stream stream : streams_) {
      STRESS_OK(rt().stream_destroy(stream));
    }
  }

  // False when the ranks have agreed to stop.
  bool step() {
    // What is called is the same on every rank; how long it waits there, and on which stream, is not.
    constexpr uint64_t kPatience[] = {0, 1, 20'000, 50'000'000};
    STRESS_OK(table().set_patience(kPatience[own_.below(4)]));
    const kl_stream stream = streams_[own_.below(streams_.size())];
    const uint64_t count = 1 + common_.below(common_.oneIn(2) ? 100 : kMost);
    const auto [send, recv] = buffers_;
    const bool gathers = common_.oneIn(2);
    fill(send, count, rank_ + 1, stream);
    if (gathers) {
      STRESS_OK(table().all_gather(comm_, send, recv, count, KL_INT32, stream));
    } else {
      STRESS_OK(table().all_reduce(comm_, send, recv, count, KL_INT32, &kSum, stream));
    }
    read_.resize(gathers ? count * kComputing : count);
    read(recv, stream);
    for (uint64_t i = 0; i < read_.size(); ++i) {
      STRESS_CHECK(read_[i] == (gathers ? static_cast<int32_t>(i / count) + 1 : kComputing * (kComputing + 1) / 2));
    }
    ++world_.collectives;
    return common_.below(8) != 0 || !agreeToStop(stream);
  }

 private:
  // Rank 0 decides.
  bool agreeToStop(kl_stream stream) {
    fill(buffers_[0], 1, world_.stop ? 1 : 0, stream);
    STRESS_OK(table().broadcast(comm_, buffers_[0], buffers_[1], 1, KL_INT32, 0, stream));
    read_.resize(1);
    read(buffers_[1], stream);
    return read_[0] != 0;
  }

  void fill(void* buffer, uint64_t count, int32_t value, kl_stream stream) {
    values_.assign(count, value);
    STRESS_OK(rt().memcpy_async(buffer, values_.data(), count * sizeof(int32_t), KL_COPY_HOST_TO_DEVICE, 0, stream));
  }

  void read(const void* buffer, kl_stream stream) {
    STRESS_OK(
        rt().memcpy_async(read_.data(), buffer, read_.size() * sizeof(int32_t), KL_COPY_DEVICE_TO_HOST, 0, stream));
    STRESS_OK(rt().stream_synchronize(stream));
  }

  World& world_;
  const int rank_;
  Random common_;
  Random own_;
  kl_comm comm_ = nullptr;
  std::array<kl_stream, 2> streams_{};
  std::array<void*, 2> buffers_{};
  std::vector<int32_t> values_;
  std::vector<int32_t> read_;
};

} // namespace

void collect(World& world, int rank, const kl_comm_id& id, uint64_t seed) {
  Rank self(world, rank, id, seed);
  while (self.step()) {
  }
}

kl_comm_id makeCommId() {
  kl_comm_id id;
  STRESS_OK(table().unique_id(&id));
  return id;
}

} // namespace stress
