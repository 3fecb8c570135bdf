// Groups of the vendor's library.
#include "runtime/xre/collectives/Group.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "runtime/xre/Status.h"

namespace kunlun::xre {
namespace {

struct Open {
  std::vector<Transfer> transfers;
  NativeStream stream = nullptr;
};

thread_local std::optional<Open> open_group;

using Round = std::vector<const Transfer*>;

std::vector<Round> roundsOf(const std::vector<Transfer>& transfers) {
  std::map<std::tuple<const Comm*, int, bool>, size_t> taken;
  std::vector<Round> rounds;
  for (const Transfer& transfer : transfers) {
    const size_t round = taken[{transfer.comm.get(), transfer.peer, transfer.is_send}]++;
    if (round == rounds.size()) {
      rounds.emplace_back();
    }
    rounds[round].push_back(&transfer);
  }
  return rounds;
}

void call(const Transfer& t, NativeStream stream) {
  const Bkcl& library = bkcl();
  if (t.is_send) {
    t.comm->checkCall(library.send(t.comm->native(), t.data, t.count, t.peer, t.type, stream), "bkcl_send");
  } else {
    t.comm->checkCall(library.recv(t.comm->native(), t.data, t.count, t.peer, t.type, stream), "bkcl_recv");
  }
}

void runRound(const Round& round, NativeStream stream) {
  Comm& first = *round.front()->comm;
  first.checkCall(bkcl().group_start(), "bkcl_group_start");
  try {
    for (const Transfer* transfer : round) {
      call(*transfer, stream);
    }
  } catch (const Failure&) {
    bkcl().group_end(); // so that the next call is not taken for one of this group
    throw;
  }
  first.checkCall(bkcl().group_end(), "bkcl_group_end");
}

} // namespace

void enqueueTransfers(const std::vector<Transfer>& all, NativeStream stream) {
  std::vector<Transfer> transfers;
  std::copy_if(all.begin(), all.end(), std::back_inserter(transfers), [](const Transfer& t) { return t.count != 0; });
  if (transfers.empty()) {
    return; // what is empty is so on both sides
  }
  std::vector<Comm*> comms;
  for (const Transfer& transfer : transfers) {
    comms.push_back(transfer.comm.get());
  }
  std::sort(comms.begin(), comms.end());
  comms.erase(std::unique(comms.begin(), comms.end()), comms.end());
  const std::unique_lock alone(groupLock());
  std::vector<std::unique_lock<std::mutex>> turns;
  for (Comm* comm : comms) {
    turns.emplace_back(comm->lock());
    comm->begin(stream);
  }
  for (const Round& round : roundsOf(transfers)) {
    runRound(round, stream);
  }
  for (Comm* comm : comms) {
    comm->end(stream);
  }
}

void groupStart() {
  if (open_group) {
    raise(KL_ERROR_RUNTIME, -1, "a group of transfers is open already; groups do not nest");
  }
  open_group.emplace();
}

void groupEnd() {
  if (!open_group) {
    raise(KL_ERROR_RUNTIME, -1, "no group of transfers is open");
  }
  const Open group = *std::exchange(open_group, std::nullopt);
  enqueueTransfers(group.transfers, group.stream);
}

void addTransfer(const Transfer& transfer, NativeStream stream) {
  if (!open_group) {
    enqueueTransfers({transfer}, stream);
    return;
  }
  if (!open_group->transfers.empty() && open_group->stream != stream) {
    raise(KL_ERROR_VALUE, transfer.comm->device(), "the transfers of a group must be on one stream");
  }
  open_group->stream = stream;
  open_group->transfers.push_back(transfer);
}

} // namespace kunlun::xre
