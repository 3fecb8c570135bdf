// The ring of work items between the callers of a stream and its thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "runtime/sim/Progress.h"
#include "runtime/sim/Sim.h"

namespace kunlun::sim {

// Records of variable length, each with its payload behind it. Producers are serialised by the stream's lock; there is
// one consumer. Positions count bytes since the beginning and never wrap, so they are Progress counters.
class Queue {
 public:
  enum class Kind : uint8_t {
    Pad,    // filler up to the end of the ring, no item
    Done,   // an item that its caller has carried out
    Work,   // skipped behind a failure
    Host,   // happens behind a failure too, and is told of it
    Record, // completes an event's record
    Wait    // waits for an event's record
  };

  struct alignas(16) Record {
    uint32_t bytes; // to the next record
    Kind kind;
    bool on_heap; // the payload is a pointer to the real one
    WorkFn run;
    void* context;
    const char* name;
    uint64_t sequence;

    void* payload() {
      return on_heap ? *reinterpret_cast<void**>(this + 1) : static_cast<void*>(this + 1);
    }
  };

  static constexpr size_t kCapacity = size_t{256} << 10;
  static constexpr size_t kMaxPayload = kCapacity / 4 - 64; // larger payloads live on the heap

  Queue();

  // Producer side, under the stream's lock. NULL when there is no room at present.
  Record* reserve(size_t payload_bytes);
  // A record is complete when it is appended, and the consumer sees it when it is published.
  void append(Record* record) {
    tail_ += record->bytes;
  }
  void publishAppended();
  // Takes back what was appended last, if that is this record and it has not been published.
  bool retract(Record* record) {
    if (record != at(tail_ - record->bytes)) {
      return false;
    }
    tail_ -= record->bytes;
    return true;
  }
  // Without the lock: waits until half of the ring is free, which is room for any record and its filler. May be
  // interrupted, which raises.
  void waitForRoom();

  // Consumer side. Waits for a record; NULL when `cancelled` was set, poke() was called and nothing is left.
  Record* front(const std::atomic<bool>& cancelled);
  bool hasNext(const Record* record) {
    return sees(head_ + record->bytes);
  }
  void pop(Record* record);
  void poke() {
    published_.poke();
  }

 private:
  static constexpr size_t kPrefetchBytes = 640; // a binary operator's record and a little more
  static constexpr size_t kAlignment = 64;      // a record shares no cache line with its neighbours

  struct FreeAligned {
    void operator()(std::byte* memory) const {
      ::operator delete[](memory, std::align_val_t{kAlignment});
    }
  };

  Record* at(uint64_t position) {
    return reinterpret_cast<Record*>(ring_.get() + position % kCapacity);
  }
  // Consumer side: whether something is published behind `position`.
  bool sees(uint64_t position) {
    if (seen_ <= position) {
      seen_ = published_.get();
    }
    return seen_ > position;
  }
  static size_t recordBytes(size_t payload_bytes) {
    return (sizeof(Record) + payload_bytes + kAlignment - 1) & ~(kAlignment - 1);
  }

  std::unique_ptr<std::byte[], FreeAligned> ring_;
  // Producers.
  uint64_t tail_ = 0;
  uint64_t known_freed_ = 0; // last value seen of freed_, to leave its cache line alone
  alignas(kAlignment) Progress published_;
  // Consumer.
  alignas(kAlignment) Progress freed_;
  uint64_t head_ = 0;
  uint64_t seen_ = 0; // last value seen of published_, to leave its cache line to the producer
};

} // namespace kunlun::sim
