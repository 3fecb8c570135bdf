// The collectives table over the vendor's library.
#include "runtime/xre/collectives/Table.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/xre/Status.h"
#include "runtime/xre/collectives/Comm.h"
#include "runtime/xre/collectives/Group.h"

namespace kunlun::xre {
namespace {

using Handle = std::shared_ptr<Comm>;

// Communicators that were given back while the device still worked for them.
struct Retired {
  std::mutex lock; // guards comms
  std::vector<Handle> comms;
};

Retired& retired() {
  static Retired& value = *new Retired;
  return value;
}

// Ends those that are idle by now. Whoever gives one back does not wait: a peer that has died would keep it for ever.
void endRetired(Handle fresh = nullptr) {
  std::vector<Handle> ended; // without the lock
  Retired& r = retired();
  std::lock_guard lock(r.lock);
  if (fresh != nullptr) {
    r.comms.push_back(std::move(fresh));
  }
  const auto idle =
      std::stable_partition(r.comms.begin(), r.comms.end(), [](const Handle& comm) { return !comm->isIdle(); });
  std::move(idle, r.comms.end(), std::back_inserter(ended));
  r.comms.erase(idle, r.comms.end());
}

const Handle& commOf(kl_comm handle) {
  require(handle, "the communicator");
  return *reinterpret_cast<Handle*>(handle);
}

void requireData(const void* data, uint64_t count, const char* what) {
  if (count != 0) {
    require(data, what);
  }
}

kl_result available() {
  return entry("available", [] {
    bkcl();
    return KL_SUCCESS;
  });
}

kl_result uniqueId(kl_comm_id* out) {
  return entry("unique_id", [&] {
    require(out, "out");
    // How long the library's id is, is not documented: whether it ends in time is looked at.
    constexpr unsigned char kUntouched = 0xa5;
    std::vector<unsigned char> id(2 * sizeof(out->bytes), kUntouched);
    checkBkcl(bkcl().get_unique_id(id.data()), "bkcl_get_unique_id", -1);
    const auto end = id.begin() + sizeof(out->bytes);
    if (std::any_of(end, id.end(), [](unsigned char byte) { return byte != kUntouched; })) {
      raise(
          KL_ERROR_RUNTIME,
          -1,
          "the ids of this version of the vendor's library of collectives are longer than the %zu bytes that the chip "
          "interface has for them (KL_COMM_ID_BYTES)",
          sizeof(out->bytes));
    }
    std::copy(id.begin(), end, out->bytes);
    return KL_SUCCESS;
  });
}

kl_result
commInit(int32_t device, int32_t rank, int32_t nranks, const kl_comm_id* id, uint64_t timeout_ms, kl_comm* out) {
  return entry("comm_init", [&] {
    require(id, "id");
    require(out, "out");
    if (nranks < 1 || rank < 0 || rank >= nranks) {
      raise(KL_ERROR_VALUE, device, "rank %d of %d ranks does not exist", rank, nranks);
    }
    endRetired();
    *out = reinterpret_cast<kl_comm>(new Handle(std::make_shared<Comm>(device, rank, nranks, *id, timeout_ms)));
    return KL_SUCCESS;
  });
}

kl_result commDestroy(kl_comm handle) {
  return entry("comm_destroy", [&] {
    const std::unique_ptr<Handle> owner(const_cast<Handle*>(&commOf(handle)));
    endRetired(*owner);
    return KL_SUCCESS;
  });
}

kl_result commAbort(kl_comm handle, const char* reason) {
  return entry("comm_abort", [&] {
    commOf(handle)->abort(reason == nullptr ? "no reason given" : reason);
    return KL_SUCCESS;
  });
}

// The library reports no failure of running work: what its calls answered is all that is known.
kl_result commError(kl_comm handle, kl_error* out) {
  return entry("comm_error", [&] {
    require(out, "out");
    const auto error = commOf(handle)->error();
    if (!error) {
      return KL_SUCCESS;
    }
    *out = *error;
    return static_cast<kl_result>(error->code);
  });
}

kl_result groupStartEntry() {
  return entry("group_start", [] {
    groupStart();
    return KL_SUCCESS;
  });
}

kl_result groupEndEntry() {
  return entry("group_end", [] {
    groupEnd();
    return KL_SUCCESS;
  });
}

kl_result groupCancelEntry() {
  return entry("group_cancel", [] {
    groupCancel();
    return KL_SUCCESS;
  });
}

kl_result allReduce(
    kl_comm handle,
    const void* send,
    void* recv,
    uint64_t count,
    int32_t dtype,
    const kl_reduction* reduction,
    kl_stream stream) {
  return entry("all_reduce", [&] {
    require(reduction, "the reduction");
    Comm& comm = *commOf(handle);
    const auto [as, op] = comm.carriedForReduction(dtype, *reduction);
    requireData(send, count, "the send buffer");
    requireData(recv, count, "the receive buffer");
    if (count != 0) {
      comm.enqueue(stream, [&] {
        comm.checkCall(
            bkcl().all_reduce(comm.native(), send, recv, count * as.parts, as.type, op, stream), "bkcl_all_reduce");
      });
    }
    return KL_SUCCESS;
  });
}

kl_result reduceEntry(
    kl_comm handle,
    const void* send,
    void* recv,
    uint64_t count,
    int32_t dtype,
    const kl_reduction* reduction,
    int32_t root,
    kl_stream stream) {
  return entry("reduce", [&] {
    require(reduction, "the reduction");
    Comm& comm = *commOf(handle);
    comm.checkRank(root, "root");
    const auto [as, op] = comm.carriedForReduction(dtype, *reduction);
    requireData(send, count, "the send buffer");
    requireData(recv, comm.rank() == root ? count : 0, "the receive buffer");
    if (count != 0) {
      comm.enqueue(stream, [&] {
        comm.checkCall(
            bkcl().reduce(comm.native(), send, recv, count * as.parts, as.type, op, root, stream), "bkcl_reduce");
      });
    }
    return KL_SUCCESS;
  });
}

kl_result
broadcast(kl_comm handle, const void* send, void* recv, uint64_t count, int32_t dtype, int32_t root, kl_stream stream) {
  return entry("broadcast", [&] {
    Comm& comm = *commOf(handle);
    comm.checkRank(root, "root");
    const Carried as = comm.carriedForMove(dtype);
    requireData(send, comm.rank() == root ? count : 0, "the send buffer");
    requireData(recv, count, "the receive buffer");
    if (count != 0) {
      comm.enqueue(stream, [&] {
        comm.checkCall(
            bkcl().broadcast(comm.native(), send, recv, count * as.parts, as.type, root, stream), "bkcl_broadcast");
      });
    }
    return KL_SUCCESS;
  });
}

kl_result allGather(kl_comm handle, const void* send, void* recv, uint64_t count, int32_t dtype, kl_stream stream) {
  return entry("all_gather", [&] {
    Comm& comm = *commOf(handle);
    const Carried as = comm.carriedForMove(dtype);
    requireData(send, count, "the send buffer");
    requireData(recv, count, "the receive buffer");
    if (count != 0) {
      comm.enqueue(stream, [&] {
        comm.checkCall(
            bkcl().all_gather(comm.native(), send, count * as.parts, recv, as.type, stream), "bkcl_all_gather");
      });
    }
    return KL_SUCCESS;
  });
}

kl_result reduceScatter(
    kl_comm handle,
    const void* send,
    void* recv,
    uint64_t count,
    int32_t dtype,
    const kl_reduction* reduction,
    kl_stream stream) {
  return entry("reduce_scatter", [&] {
    require(reduction, "the reduction");
    Comm& comm = *commOf(handle);
    const auto [as, op] = comm.carriedForReduction(dtype, *reduction);
    requireData(send, count, "the send buffer");
    requireData(recv, count, "the receive buffer");
    if (count != 0) {
      comm.enqueue(stream, [&] {
        comm.checkCall(
            bkcl().reduce_scatter(comm.native(), send, recv, count * as.parts, as.type, op, stream),
            "bkcl_reduce_scatter");
      });
    }
    return KL_SUCCESS;
  });
}

char* at(const void* base, uint64_t elements, uint64_t bytes) {
  return const_cast<char*>(static_cast<const char*>(base)) + elements * bytes;
}

kl_result allToAllV(
    kl_comm handle,
    const void* send,
    const uint64_t* send_counts,
    const uint64_t* send_displacements,
    void* recv,
    const uint64_t* recv_counts,
    const uint64_t* recv_displacements,
    int32_t dtype,
    kl_stream stream) {
  return entry("all_to_all_v", [&] {
    const Handle& comm = commOf(handle);
    const Carried as = comm->carriedForMove(dtype);
    const auto nranks = static_cast<size_t>(comm->nranks());
    std::vector<uint64_t> layout; // send counts, send displacements, receive counts, receive displacements
    for (const uint64_t* array : {send_counts, send_displacements, recv_counts, recv_displacements}) {
      require(array, "an array of counts or displacements");
      std::transform(array, array + nranks, std::back_inserter(layout), [&](uint64_t n) { return n * as.parts; });
    }
    requireData(send, *std::max_element(send_counts, send_counts + nranks), "the send buffer");
    requireData(recv, *std::max_element(recv_counts, recv_counts + nranks), "the receive buffer");
    if (bkcl().all_to_all_v == nullptr) {
      const uint64_t bytes = bytesOf(dtype);
      std::vector<Transfer> transfers;
      for (size_t i = 0; i < nranks; ++i) {
        const auto peer = static_cast<int>(i);
        char* const from = at(send, send_displacements[i], bytes);
        char* const to = at(recv, recv_displacements[i], bytes);
        transfers.push_back({comm, true, from, layout[i], as.type, peer});
        transfers.push_back({comm, false, to, layout[2 * nranks + i], as.type, peer});
      }
      enqueueTransfers(transfers, stream);
      return KL_SUCCESS;
    }
    comm->enqueue(stream, [&] {
      const size_t* lent = comm->lend(layout, stream);
      const int result = bkcl().all_to_all_v(
          comm->native(),
          send,
          lent,
          lent + nranks,
          as.type,
          recv,
          lent + 2 * nranks,
          lent + 3 * nranks,
          as.type,
          stream);
      comm->giveBack(lent, stream);
      comm->checkCall(result, "bkcl_all_to_all_v");
    });
    return KL_SUCCESS;
  });
}

// Gather and scatter, which the library does not have: the root exchanges with every rank, itself included.
void exchangeWithRoot(
    const Handle& comm,
    bool is_gather,
    const void* send,
    void* recv,
    uint64_t count,
    int32_t dtype,
    int32_t root,
    kl_stream stream) {
  comm->checkRank(root, "root");
  const Carried as = comm->carriedForMove(dtype);
  const bool is_root = comm->rank() == root;
  requireData(send, is_gather || is_root ? count : 0, "the send buffer");
  requireData(recv, !is_gather || is_root ? count : 0, "the receive buffer");
  const uint64_t elements = count * as.parts;
  const uint64_t bytes = bytesOf(dtype);
  std::vector<Transfer> transfers{
      {comm, is_gather, const_cast<void*>(is_gather ? send : recv), elements, as.type, root}};
  for (int peer = 0; is_root && peer < comm->nranks(); ++peer) {
    char* const place = at(is_gather ? recv : send, static_cast<uint64_t>(peer) * count, bytes);
    transfers.push_back({comm, !is_gather, place, elements, as.type, peer});
  }
  enqueueTransfers(transfers, stream);
}

kl_result
gather(kl_comm handle, const void* send, void* recv, uint64_t count, int32_t dtype, int32_t root, kl_stream stream) {
  return entry("gather", [&] {
    exchangeWithRoot(commOf(handle), true, send, recv, count, dtype, root, stream);
    return KL_SUCCESS;
  });
}

kl_result
scatter(kl_comm handle, const void* send, void* recv, uint64_t count, int32_t dtype, int32_t root, kl_stream stream) {
  return entry("scatter", [&] {
    exchangeWithRoot(commOf(handle), false, send, recv, count, dtype, root, stream);
    return KL_SUCCESS;
  });
}

kl_result barrier(kl_comm handle, kl_stream stream) {
  return entry("barrier", [&] {
    Comm& comm = *commOf(handle);
    const Carried as = comm.carriedForMove(KL_UINT8);
    comm.enqueue(stream, [&] {
      void* const element = comm.barrierElement();
      comm.checkCall(
          bkcl().all_reduce(comm.native(), element, element, 1, as.type, kNativeAdd, stream), "bkcl_all_reduce");
    });
    return KL_SUCCESS;
  });
}

kl_result
transfer(bool is_send, kl_comm handle, void* buffer, uint64_t count, int32_t dtype, int32_t peer, kl_stream stream) {
  const Handle& comm = commOf(handle);
  comm->checkRank(peer, "peer");
  const Carried as = comm->carriedForMove(dtype);
  requireData(buffer, count, "the buffer");
  addTransfer({comm, is_send, buffer, count * as.parts, as.type, peer}, stream);
  return KL_SUCCESS;
}

kl_result send(kl_comm handle, const void* buffer, uint64_t count, int32_t dtype, int32_t peer, kl_stream stream) {
  return entry("send", [&] { return transfer(true, handle, const_cast<void*>(buffer), count, dtype, peer, stream); });
}

kl_result recv(kl_comm handle, void* buffer, uint64_t count, int32_t dtype, int32_t peer, kl_stream stream) {
  return entry("recv", [&] { return transfer(false, handle, buffer, count, dtype, peer, stream); });
}

} // namespace

const kl_collectives kCollectives = {
    .header = {sizeof(kl_collectives), KL_COLLECTIVES_ABI_MAJOR, KL_COLLECTIVES_ABI_MINOR},
    .unique_id = uniqueId,
    .comm_init = commInit,
    .comm_destroy = commDestroy,
    .comm_abort = commAbort,
    .comm_error = commError,
    .comm_progress = nullptr, // the library does not say which ranks it waits for
    .group_start = groupStartEntry,
    .group_end = groupEndEntry,
    .all_reduce = allReduce,
    .reduce = reduceEntry,
    .broadcast = broadcast,
    .all_gather = allGather,
    .reduce_scatter = reduceScatter,
    .all_to_all_v = allToAllV,
    .gather = gather,
    .scatter = scatter,
    .barrier = barrier,
    .send = send,
    .recv = recv,
    .probe = nullptr, // nor whether a send waits
    .set_patience = nullptr,
    .flags = KL_COLLECTIVES_ACROSS_HOSTS | KL_COLLECTIVES_PEERS_UNSEEN,
    .available = available,
    .group_cancel = groupCancelEntry,
};

} // namespace kunlun::xre
