// Transfers that make progress together.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/xre/collectives/Comm.h"

namespace kunlun::xre {

struct Transfer {
  std::shared_ptr<Comm> comm;
  bool is_send;
  void* data;
  uint64_t count; // of `type`
  NativeType type;
  int peer;
};

void groupStart();
// Enqueues what came since groupStart.
void groupEnd();
// Forgets it instead, if a group is open.
void groupCancel();
// Enqueues the transfer, or adds it to the calling thread's open group.
void addTransfer(const Transfer& transfer, NativeStream stream);

// Enqueues them as one group of the vendor's library; as several, one behind the other, where it allows no other way: a
// group takes one send and one receive for each peer. The first send to a peer is in the first group, as is that
// peer's first receive from this rank, and so on, so both sides divide alike. What a rank sends to itself is copied to
// its receives, in their order.
void enqueueTransfers(const std::vector<Transfer>& transfers, NativeStream stream);

} // namespace kunlun::xre
