// Streams and events over the vendor's runtime.
#include "runtime/xre/Stream.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/xre/Status.h"

namespace kunlun::xre {

namespace {

// Events of the vendor that nobody uses any more, by device.
struct Pool {
  std::mutex lock; // guards events
  std::unordered_map<int, std::vector<NativeEvent>> events;
};

Pool& pool() {
  static Pool& value = *new Pool;
  return value;
}

NativeEvent takeNative(int device) {
  {
    Pool& p = pool();
    std::lock_guard lock(p.lock);
    auto& events = p.events[device];
    if (!events.empty()) {
      const NativeEvent native = events.back();
      events.pop_back();
      return native;
    }
  }
  useDevice(device);
  NativeEvent native = nullptr;
  check(library().event_create(&native), "xpu_event_create", device);
  return native;
}

} // namespace

class Recording {
 public:
  Recording(int device, NativeStream stream) : device_(device), stream_(stream), native_(takeNative(device)) {
    useDevice(device);
    if (const int code = library().event_record(native_, stream); code != 0) {
      giveBack();
      check(code, "xpu_event_record", device);
    }
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  ~Recording() {
    giveBack();
  }

  NativeEvent native() const {
    return native_;
  }
  NativeStream stream() const {
    return stream_;
  }

  bool isDone() const {
    useDevice(device_);
    const int code = library().event_query(native_);
    // The code for "not yet" is not documented; the codes of failures are.
    if (resultOf(code) == KL_ERROR_DEVICE) {
      check(code, "xpu_event_query", device_);
    }
    return code == 0;
  }

 private:
  void giveBack() {
    Pool& p = pool();
    std::lock_guard lock(p.lock);
    p.events[device_].push_back(native_);
  }

  const int device_;
  const NativeStream stream_;
  const NativeEvent native_;
};

namespace {

// Recordings that a stream makes or waits for, all of them behind it once `passed` is done.
struct Pending {
  std::vector<std::shared_ptr<Recording>> recordings;
  std::unique_ptr<Recording> passed;
};
constexpr size_t kPendingBatch = 64;

struct Stream {
  int device = -1;
  std::atomic<uint64_t> sequence{0};
  std::mutex lock;                 // guards the two below
  std::deque<Pending> pending;     // the last one may still be filled
  std::optional<kl_error> failure; // of work that the vendor's runtime takes for done; not reported yet
};

struct Registry {
  std::mutex lock; // guards streams
  std::unordered_map<NativeStream, std::shared_ptr<Stream>> streams;
};

Registry& registry() {
  static Registry& value = *new Registry;
  return value;
}

std::shared_ptr<Stream> find(NativeStream stream) {
  require(stream, "the stream");
  Registry& r = registry();
  std::lock_guard lock(r.lock);
  const auto found = r.streams.find(stream);
  if (found == r.streams.end()) {
    raise(KL_ERROR_VALUE, -1, "the stream %p does not exist", stream);
  }
  return found->second;
}

// Keeps a recording until the stream has passed it: the vendor's event may be used again only then.
void hold(Stream& s, NativeStream stream, std::shared_ptr<Recording> recording) {
  std::lock_guard lock(s.lock);
  while (!s.pending.empty() && s.pending.front().passed != nullptr && s.pending.front().passed->isDone()) {
    s.pending.pop_front();
  }
  if (s.pending.empty() || s.pending.back().passed != nullptr) {
    s.pending.emplace_back();
  }
  Pending& batch = s.pending.back();
  batch.recordings.push_back(std::move(recording));
  if (batch.recordings.size() >= kPendingBatch) {
    batch.passed = std::make_unique<Recording>(s.device, stream);
  }
}

bool isPending(const Recording& recording) {
  try {
    return !recording.isDone();
  } catch (const Failure&) {
    return false; // a broken device reports itself
  }
}

bool waitsFor(Stream& s, NativeStream other) {
  std::lock_guard lock(s.lock);
  for (const Pending& batch : s.pending) {
    for (const auto& recording : batch.recordings) {
      if (recording->stream() == other && isPending(*recording)) {
        return true;
      }
    }
  }
  return false;
}

// Leaves the failure on the stream and on those that wait for it, directly or not.
void fail(NativeStream stream, const kl_error& error) {
  Registry& r = registry();
  std::lock_guard lock(r.lock);
  std::vector<NativeStream> failed{stream};
  for (size_t i = 0; i < failed.size(); ++i) {
    for (const auto& [native, known] : r.streams) {
      if (native == failed[i]) {
        std::lock_guard stream_lock(known->lock);
        known->failure = error;
      } else if (std::find(failed.begin(), failed.end(), native) == failed.end() && waitsFor(*known, failed[i])) {
        failed.push_back(native);
      }
    }
  }
}

std::optional<kl_error> takeFailure(Stream& s) {
  std::lock_guard lock(s.lock);
  return std::exchange(s.failure, std::nullopt);
}

std::shared_ptr<Recording> recordNow(Stream& s, NativeStream stream) {
  auto recording = std::make_shared<Recording>(s.device, stream);
  hold(s, stream, recording);
  return recording;
}

} // namespace

void useDevice(int device) {
  check(library().set_device(device), "xpu_set_device", device);
}

NativeStream createStream(int device) {
  useDevice(device);
  NativeStream native = nullptr;
  check(library().stream_create(&native), "xpu_stream_create", device);
  auto stream = std::make_shared<Stream>();
  stream->device = device;
  Registry& r = registry();
  std::lock_guard lock(r.lock);
  r.streams.emplace(native, std::move(stream));
  return native;
}

void destroyStream(NativeStream stream) {
  const auto known = find(stream);
  useDevice(known->device);
  const int waited = library().wait(stream);
  {
    Registry& r = registry();
    std::lock_guard lock(r.lock);
    r.streams.erase(stream);
  }
  check(library().stream_destroy(stream), "xpu_stream_destroy", known->device);
  check(waited, "xpu_wait", known->device);
}

int deviceOfStream(NativeStream stream) {
  return find(stream)->device;
}

bool isIdle(NativeStream stream) {
  // There is no question for it: an event behind everything says so, if it is given the time to be passed.
  constexpr auto kPatience = std::chrono::microseconds(50);
  const auto mark = recordNow(*find(stream), stream);
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  do {
    if (mark->isDone()) {
      return true;
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return false;
}

void waitForStream(NativeStream stream) {
  const auto known = find(stream);
  useDevice(known->device);
  check(library().wait(stream), "xpu_wait", known->device);
  if (const auto failure = takeFailure(*known)) {
    throw Failure(*failure);
  }
}

void waitForDevice(int device) {
  std::vector<NativeStream> all{nullptr}; // the vendor's libraries may use the default stream
  std::vector<std::shared_ptr<Stream>> ours;
  {
    Registry& r = registry();
    std::lock_guard lock(r.lock);
    for (const auto& [native, stream] : r.streams) {
      if (stream->device == device) {
        all.push_back(native);
        ours.push_back(stream);
      }
    }
  }
  useDevice(device);
  for (const NativeStream native : all) {
    check(library().wait(native), "xpu_wait", device);
  }
  std::optional<kl_error> first;
  for (const auto& stream : ours) {
    if (const auto failure = takeFailure(*stream); failure && !first) {
      first = failure;
    }
  }
  if (first) {
    throw Failure(*first);
  }
}

uint64_t nextSequence(NativeStream stream) {
  return find(stream)->sequence.fetch_add(1, std::memory_order_relaxed) + 1;
}

std::shared_ptr<Recording> Event::current() const {
  std::lock_guard lock(lock_);
  return recording_;
}

void Event::record(NativeStream stream) {
  const auto known = find(stream);
  if (known->device != device_) {
    raise(
        KL_ERROR_VALUE,
        device_,
        "an event of device %d cannot be recorded on a stream of device %d",
        device_,
        known->device);
  }
  auto fresh = recordNow(*known, stream);
  std::lock_guard lock(lock_);
  recording_ = std::move(fresh);
}

void Event::makeWait(NativeStream stream) {
  auto recording = current();
  if (recording == nullptr) {
    return;
  }
  const auto known = find(stream);
  useDevice(known->device);
  check(library().stream_wait_event(stream, recording->native()), "xpu_stream_wait_event", known->device);
  hold(*known, stream, std::move(recording));
}

bool Event::query() const {
  const auto recording = current();
  return recording == nullptr || recording->isDone();
}

void Event::share(const Event& other) {
  auto recording = other.current();
  std::lock_guard lock(lock_);
  recording_ = std::move(recording);
}

void Event::failPending(const kl_error& error) const {
  const auto recording = current();
  if (recording != nullptr && isPending(*recording)) {
    fail(recording->stream(), error);
  }
}

void Event::synchronize() const {
  const auto recording = current();
  if (recording != nullptr) {
    useDevice(device_);
    check(library().event_wait(recording->native()), "xpu_event_wait", device_);
  }
}

} // namespace kunlun::xre
