// One small reduction for each of the vendor's types and operations.
#include "runtime/xre/collectives/Trial.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>

#include "runtime/xre/Interrupt.h"
#include "runtime/xre/Memory.h"
#include "runtime/xre/Status.h"
#include "runtime/xre/Stream.h"
#include "runtime/xre/collectives/Types.h"

namespace kunlun::xre {
namespace {

constexpr uint64_t kSlot = 64; // bytes for one element and what must stay as it is behind it
constexpr int kWrap = static_cast<int>(kNativeTypes) + static_cast<int>(kNativeOps); // behind types and operations
constexpr int kTries = kWrap + 1;
constexpr unsigned char kUntouched = 0x5a;

static_assert(2 * kTries * kSlot <= Trial::kBytes);

using Slots = std::array<unsigned char, kTries * kSlot>;

template <class T>
void put(unsigned char* slot, T value) {
  std::memcpy(slot, &value, sizeof(value));
}

template <class T>
T get(const unsigned char* slot) {
  T value;
  std::memcpy(&value, slot, sizeof(value));
  return value;
}

// Of a type: rank 0 has `first`, rank 1 `second` and all others zero; the sum is `sum`. Integers are chosen such that
// adding them as floats of the same width gives other bits.
struct Sample {
  uint64_t first, second, sum;
};

constexpr std::array<Sample, kNativeTypes> kSamples{{
    {2, 1, 3},
    {0x40000000, 0x3f800000, 0x40400000}, // 2.0 + 1.0
    {0x3f800001, 0x3f800002, 0x7f000003},
    {0x3ff0000000000001, 0x3ff0000000000002, 0x7fe0000000000003},
    {0x4000, 0x3c00, 0x4200},                                     // 2.0 + 1.0
    {0x4000000000000000, 0x3ff0000000000000, 0x4008000000000000}, // 2.0 + 1.0
    {0x4000, 0x3f80, 0x4040},                                     // 2.0 + 1.0
}};

constexpr Sample kWrapSample{200, 100, 44}; // of uint8

const Sample* sampleOf(int i) {
  return i < kNativeTypes ? &kSamples[static_cast<size_t>(i)] : i == kWrap ? &kWrapSample : nullptr;
}

NativeType typeOf(int i) {
  return i < kNativeTypes ? static_cast<NativeType>(i) : i == kWrap ? kNativeUInt8 : kNativeFloat;
}

NativeOp opOf(int i) {
  return i < kNativeTypes || i == kWrap ? kNativeAdd : static_cast<NativeOp>(i - kNativeTypes);
}

// Of an operation, as floats: rank 0 has 4, all others 2.
bool isResult(NativeOp op, float value, int nranks) {
  const double n = nranks;
  const double expected = op == kNativeAdd ? 2 * n + 2
      : op == kNativeProduct               ? 4 * std::pow(2.0, n - 1)
      : op == kNativeMin                   ? (nranks == 1 ? 4.0 : 2.0)
      : op == kNativeMax                   ? 4
                                           : (2 * n + 2) / n;
  const auto rounded = static_cast<float>(expected);
  return value == rounded || std::abs(value - rounded) <= 1e-6f * rounded;
}

bool isUntouched(const unsigned char* from, const unsigned char* to) {
  return std::all_of(from, to, [](unsigned char byte) { return byte == kUntouched; });
}

class TemporaryStream {
 public:
  explicit TemporaryStream(int device) : stream_(createStream(device)) {}
  ~TemporaryStream() {
    // After a failure it may never get empty, so it is left alone then.
    if (is_empty) {
      try {
        destroyStream(stream_);
      } catch (const Failure&) {
        // The constructor's own result says more.
      }
    }
  }
  TemporaryStream(const TemporaryStream&) = delete;
  TemporaryStream& operator=(const TemporaryStream&) = delete;

  NativeStream get() const {
    return stream_;
  }
  bool is_empty = false;

 private:
  const NativeStream stream_;
};

} // namespace

Trial::Trial(
    NativeComm comm,
    int device,
    int rank,
    int nranks,
    void* scratch,
    std::chrono::steady_clock::time_point deadline) {
  Slots sent{};
  Slots received;
  received.fill(kUntouched);
  for (int i = 0; i < kTries; ++i) {
    unsigned char* const slot = sent.data() + i * kSlot;
    if (const Sample* sample = sampleOf(i)) {
      put<uint64_t>(slot, rank == 0 ? sample->first : rank == 1 ? sample->second : 0);
    } else {
      put<float>(slot, rank == 0 ? 4.0f : 2.0f);
    }
  }
  auto* const to_send = static_cast<char*>(scratch);
  char* const to_receive = to_send + sent.size();
  TemporaryStream stream(device);
  copy(to_send, sent.data(), sent.size(), KL_COPY_HOST_TO_DEVICE, 0, stream.get());
  copy(to_receive, received.data(), received.size(), KL_COPY_HOST_TO_DEVICE, 0, stream.get());
  std::array<bool, kTries> accepted{};
  for (int i = 0; i < kTries; ++i) {
    useDevice(device);
    accepted[static_cast<size_t>(i)] =
        bkcl().all_reduce(comm, to_send + i * kSlot, to_receive + i * kSlot, 1, typeOf(i), opOf(i), stream.get()) ==
        kNativeSuccess;
  }
  Event passed(device);
  passed.record(stream.get());
  auto next_check = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
  while (!passed.query()) {
    if (std::chrono::steady_clock::now() >= deadline) {
      raise(
          KL_ERROR_RUNTIME,
          device,
          "a new communicator of the vendor's library did not carry out its first reductions in time; not all of its "
          "%d ranks may have come",
          nranks);
    }
    if (std::chrono::steady_clock::now() >= next_check) {
      checkInterrupt(device);
      next_check += std::chrono::milliseconds(100);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  stream.is_empty = true;
  copy(received.data(), to_receive, received.size(), KL_COPY_DEVICE_TO_HOST, 0, stream.get());
  for (int i = 0; i < kTries; ++i) {
    const unsigned char* slot = received.data() + i * kSlot;
    const uint64_t bytes = bytesOf(typeOf(i));
    bool is_right = accepted[static_cast<size_t>(i)] && isUntouched(slot + bytes, slot + kSlot);
    if (const Sample* sample = sampleOf(i)) {
      const uint64_t expected = nranks == 1 ? sample->first : sample->sum;
      is_right = is_right && std::memcmp(slot, &expected, bytes) == 0;
    } else {
      is_right = is_right && isResult(opOf(i), get<float>(slot), nranks);
    }
    (i < kNativeTypes ? types_[static_cast<size_t>(i)]
         : i == kWrap ? wraps_around_
                      : ops_[static_cast<size_t>(opOf(i))]) = is_right;
  }
}

} // namespace kunlun::xre
