// The ring of work items: room, publication and consumption.
#include "runtime/sim/Queue.h"

#include <algorithm>
#include <new>

#include "runtime/sim/Interrupt.h"

namespace kunlun::sim {

// The ring is not touched here, so its pages cost nothing until they are used.
Queue::Queue() : ring_(static_cast<std::byte*>(::operator new[](kCapacity, std::align_val_t{kAlignment}))) {
  static_assert(sizeof(Record) == 48);
}

Queue::Record* Queue::reserve(size_t payload_bytes) {
  const size_t bytes = recordBytes(payload_bytes);
  const size_t to_end = kCapacity - tail_ % kCapacity;
  const size_t pad = bytes > to_end ? to_end : 0;
  if (tail_ + pad + bytes - known_freed_ > kCapacity) {
    known_freed_ = freed_.get();
    if (tail_ + pad + bytes - known_freed_ > kCapacity) {
      return nullptr;
    }
  }
  if (pad != 0) {
    Record* filler = new (at(tail_)) Record{};
    filler->bytes = static_cast<uint32_t>(pad);
    filler->kind = Kind::Pad;
    tail_ += pad; // published together with the record behind it
  }
  Record* record = new (at(tail_)) Record{};
  record->bytes = static_cast<uint32_t>(bytes);
  return record;
}

void Queue::publishAppended() {
  const size_t bytes = tail_ - published_.get(); // the records may be gone once they are published
  published_.advance(tail_);
  // The consumer read the next record's place one round ago. Asking for its cache lines now hides the transfer behind
  // the producer's work until its next record, which is likely to be of the same size.
  std::byte* next = reinterpret_cast<std::byte*>(at(tail_));
  const size_t reach = std::min(bytes, kPrefetchBytes);
  for (size_t offset = 0; offset < reach; offset += kAlignment) {
    __builtin_prefetch(next + offset, /*for writing*/ 1);
  }
}

void Queue::waitForRoom() {
  const uint64_t published = published_.get();
  waitInterruptibly(freed_, published > kCapacity / 2 ? published - kCapacity / 2 : 0);
}

Queue::Record* Queue::front(const std::atomic<bool>& cancelled) {
  for (;;) {
    if (!sees(head_) && published_.waitFor(head_ + 1, &cancelled) != Progress::Waited::Reached) {
      return nullptr;
    }
    Record* record = at(head_);
    if (record->kind != Kind::Pad) {
      return record;
    }
    head_ += record->bytes;
  }
}

void Queue::pop(Record* record) {
  head_ += record->bytes;
  // Room is given back in pieces of a quarter, or when the queue runs dry: one store less per item.
  if (head_ - freed_.get() >= kCapacity / 4 || !sees(head_)) {
    freed_.advance(head_);
  }
}

} // namespace kunlun::sim
