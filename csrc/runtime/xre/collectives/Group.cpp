// Groups of the vendor's library.
#include "runtime/xre/collectives/Group.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "runtime/xre/Memory.h"
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
  const Comm& first = *round.front()->comm;
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

struct Copy {
  const void* from;
  void* to;
  uint64_t bytes;
};

// What ranks send to themselves, taken out of `transfers`.
std::vector<Copy> takeOwn(std::vector<Transfer>& transfers) {
  std::map<const Comm*, std::array<std::vector<Transfer>, 2>> own; // receives and sends
  std::erase_if(transfers, [&](const Transfer& t) {
    const bool is_own = t.peer == t.comm->rank();
    if (is_own) {
      own[t.comm.get()][t.is_send ? 1 : 0].push_back(t);
    }
    return is_own;
  });
  std::vector<Copy> copies;
  for (const auto& [comm, both] : own) {
    const auto& [receives, sends] = both;
    if (receives.size() != sends.size()) {
      raise(
          KL_ERROR_VALUE,
          comm->device(),
          "rank %d sends %zu times to itself and receives %zu times from itself; a send to oneself and its receive "
          "belong into the same batch",
          comm->rank(),
          sends.size(),
          receives.size());
    }
    for (size_t i = 0; i < sends.size(); ++i) {
      const uint64_t sent = sends[i].count * bytesOf(sends[i].type);
      const uint64_t received = receives[i].count * bytesOf(receives[i].type);
      if (sent != received) {
        raise(
            KL_ERROR_VALUE,
            comm->device(),
            "rank %d sends %llu bytes to itself, of which its receive expects %llu",
            comm->rank(),
            static_cast<unsigned long long>(sent),
            static_cast<unsigned long long>(received));
      }
      if (sends[i].data != receives[i].data) {
        copies.push_back({sends[i].data, receives[i].data, sent});
      }
    }
  }
  return copies;
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
  const std::vector<Copy> copies = takeOwn(transfers);
  const std::unique_lock alone(groupLock());
  std::vector<std::unique_lock<std::mutex>> turns;
  for (Comm* comm : comms) {
    turns.emplace_back(comm->lock());
    comm->checkReady(stream);
  }
  try {
    for (Comm* comm : comms) {
      comm->begin(stream);
    }
    for (const Copy& each : copies) {
      copy(each.to, each.from, each.bytes, KL_COPY_DEVICE_TO_DEVICE, KL_COPY_ASYNC, stream);
    }
    for (const Round& round : roundsOf(transfers)) {
      runRound(round, stream);
    }
    for (Comm* comm : comms) {
      comm->end(stream);
    }
  } catch (...) {
    // Which transfers of a failed group are on their way is not known.
    const kl_error error = errorInFlight();
    for (Comm* comm : comms) {
      comm->fail(stream, error);
    }
    throw;
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

void groupCancel() {
  open_group.reset();
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
