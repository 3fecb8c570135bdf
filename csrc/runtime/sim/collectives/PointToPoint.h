// Sends and receives as items of a stream; several of them make progress together.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/sim/collectives/Communicator.h"

namespace kunlun::sim {

class Stream;

struct Transfer {
  std::shared_ptr<Communicator> communicator;
  Call call; // Send or Recv; the peer is `root`
  void* buffer;
  Stream* stream;
  uint32_t number = 0; // on its channel
};

// Between groupStart and groupEnd of the thread, transfers are gathered; otherwise they are enqueued at once.
kl_result addTransfer(Transfer transfer);
void groupStart();
kl_result groupEnd();
void groupCancel();
// Whether a send of `peer` waits for which nobody has called recv yet.
bool probe(Communicator& communicator, uint32_t peer);

} // namespace kunlun::sim
