// The collectives table of the simulated chip.
#include <algorithm>
#include <memory>

#include "runtime/sim/Device.h"
#include "runtime/sim/Sim.h"
#include "runtime/sim/Status.h"
#include "runtime/sim/Stream.h"
#include "runtime/sim/collectives/Collectives.h"
#include "runtime/sim/collectives/PointToPoint.h"
#include "runtime/sim/collectives/Reduce.h"
#include "runtime/sim/collectives/Table.h"

namespace kunlun::sim {
namespace {

using Handle = std::shared_ptr<Communicator>;

void require(const void* pointer, const char* what) {
  if (pointer == nullptr) {
    raise(KL_ERROR_VALUE, -1, "%s is NULL", what);
  }
}

const Handle& communicatorOf(kl_comm handle) {
  require(handle, "the communicator");
  return *reinterpret_cast<Handle*>(handle);
}

Stream& streamOf(kl_stream handle) {
  require(handle, "the stream");
  return *reinterpret_cast<Stream*>(handle);
}

void checkRank(const Communicator& communicator, int32_t rank, const char* what) {
  if (rank < 0 || static_cast<uint32_t>(rank) >= communicator.nranks()) {
    raise(
        KL_ERROR_VALUE,
        communicator.device().index(),
        "%s %d is not one of the %u ranks",
        what,
        rank,
        communicator.nranks());
  }
}

std::unique_ptr<Collective> make(kl_comm handle, CollectiveKind kind, int32_t dtype, uint64_t count) {
  auto made = std::make_unique<Collective>();
  made->communicator = communicatorOf(handle);
  made->call.kind = kind;
  made->call.dtype = dtype;
  made->call.count = count;
  return made;
}

void setBuffers(Collective& what, const void* send, uint64_t send_count, void* recv, uint64_t recv_count) {
  const size_t element = bytesOf(what.call.dtype);
  if (send_count != 0) {
    require(send, "the send buffer");
  }
  if (recv_count != 0) {
    require(recv, "the receive buffer");
  }
  what.send = send;
  what.recv = recv;
  what.send_bytes = send_count * element;
  what.recv_bytes = recv_count * element;
}

void setReduction(Collective& what, const kl_reduction* reduction) {
  require(reduction, "the reduction");
  checkReduction(what.call.dtype, reduction->op);
  what.reduction = *reduction;
  what.call.op = reduction->op;
}

kl_result uniqueId(kl_comm_id* out) {
  return entry("unique_id", [&] {
    require(out, "out");
    makeUniqueId(out);
    return KL_SUCCESS;
  });
}

kl_result
commInit(int32_t index, int32_t rank, int32_t nranks, const kl_comm_id* id, uint64_t timeout_ms, kl_comm* out) {
  return entry("comm_init", [&] {
    require(id, "id");
    require(out, "out");
    if (nranks < 1 || rank < 0 || rank >= nranks) {
      raise(KL_ERROR_VALUE, index, "rank %d of %d ranks does not exist", rank, nranks);
    }
    Device& owner = device(index);
    owner.checkHealthy();
    const auto own_rank = static_cast<uint32_t>(rank);
    Members members = meet(index, own_rank, static_cast<uint32_t>(nranks), *id, timeout_ms);
    *out = reinterpret_cast<kl_comm>(new Handle(std::make_shared<Communicator>(owner, own_rank, std::move(members))));
    return KL_SUCCESS;
  });
}

kl_result commDestroy(kl_comm handle) {
  return releasingEntry("comm_destroy", [&] {
    communicatorOf(handle);
    delete reinterpret_cast<Handle*>(handle);
    return KL_SUCCESS;
  });
}

kl_result commAbort(kl_comm handle, const char* reason) {
  return releasingEntry("comm_abort", [&] {
    communicatorOf(handle)->abort(reason == nullptr ? "no reason given" : reason);
    return KL_SUCCESS;
  });
}

kl_result commError(kl_comm handle, kl_error* out) {
  return entry("comm_error", [&] {
    require(out, "out");
    return communicatorOf(handle)->error(out) ? static_cast<kl_result>(out->code) : KL_SUCCESS;
  });
}

kl_result commProgress(kl_comm handle, uint64_t* sequence, uint64_t* missing, uint32_t words) {
  return entry("comm_progress", [&] {
    require(sequence, "sequence");
    require(missing, "missing");
    *sequence = communicatorOf(handle)->progress(missing, words);
    return KL_SUCCESS;
  });
}

kl_result groupStartEntry() {
  return entry("group_start", [] {
    groupStart();
    return KL_SUCCESS;
  });
}

kl_result groupEndEntry() {
  return entry("group_end", [] { return groupEnd(); });
}

kl_result groupCancelEntry() {
  return entry("group_cancel", [] {
    groupCancel();
    return KL_SUCCESS;
  });
}

kl_result allReduce(
    kl_comm comm,
    const void* send,
    void* recv,
    uint64_t count,
    int32_t dtype,
    const kl_reduction* reduction,
    kl_stream stream) {
  return entry("all_reduce", [&] {
    auto what = make(comm, CollectiveKind::AllReduce, dtype, count);
    setReduction(*what, reduction);
    setBuffers(*what, send, count, recv, count);
    return enqueueCollective(std::move(what), streamOf(stream));
  });
}

kl_result reduceEntry(
    kl_comm comm,
    const void* send,
    void* recv,
    uint64_t count,
    int32_t dtype,
    const kl_reduction* reduction,
    int32_t root,
    kl_stream stream) {
  return entry("reduce", [&] {
    auto what = make(comm, CollectiveKind::Reduce, dtype, count);
    checkRank(*what->communicator, root, "root");
    what->call.root = root;
    setReduction(*what, reduction);
    const bool is_root = static_cast<uint32_t>(root) == what->communicator->rank();
    setBuffers(*what, send, count, is_root ? recv : nullptr, is_root ? count : 0);
    return enqueueCollective(std::move(what), streamOf(stream));
  });
}

kl_result
broadcast(kl_comm comm, const void* send, void* recv, uint64_t count, int32_t dtype, int32_t root, kl_stream stream) {
  return entry("broadcast", [&] {
    auto what = make(comm, CollectiveKind::Broadcast, dtype, count);
    checkRank(*what->communicator, root, "root");
    what->call.root = root;
    const bool is_root = static_cast<uint32_t>(root) == what->communicator->rank();
    setBuffers(*what, send, is_root ? count : 0, recv, count);
    return enqueueCollective(std::move(what), streamOf(stream));
  });
}

kl_result allGather(kl_comm comm, const void* send, void* recv, uint64_t count, int32_t dtype, kl_stream stream) {
  return entry("all_gather", [&] {
    auto what = make(comm, CollectiveKind::AllGather, dtype, count);
    setBuffers(*what, send, count, recv, count * what->communicator->nranks());
    return enqueueCollective(std::move(what), streamOf(stream));
  });
}

kl_result reduceScatter(
    kl_comm comm,
    const void* send,
    void* recv,
    uint64_t count,
    int32_t dtype,
    const kl_reduction* reduction,
    kl_stream stream) {
  return entry("reduce_scatter", [&] {
    auto what = make(comm, CollectiveKind::ReduceScatter, dtype, count);
    setReduction(*what, reduction);
    setBuffers(*what, send, count * what->communicator->nranks(), recv, count);
    return enqueueCollective(std::move(what), streamOf(stream));
  });
}

kl_result allToAllV(
    kl_comm comm,
    const void* send,
    const uint64_t* send_counts,
    const uint64_t* send_displacements,
    void* recv,
    const uint64_t* recv_counts,
    const uint64_t* recv_displacements,
    int32_t dtype,
    kl_stream stream) {
  return entry("all_to_all_v", [&] {
    auto what = make(comm, CollectiveKind::AllToAll, dtype, 0);
    const uint32_t nranks = what->communicator->nranks();
    const uint64_t* arrays[] = {send_counts, send_displacements, recv_counts, recv_displacements};
    uint64_t ends[2] = {0, 0};
    for (int i = 0; i < 4; ++i) {
      require(arrays[i], "an array of counts or displacements");
      what->counts.insert(what->counts.end(), arrays[i], arrays[i] + nranks);
    }
    for (uint32_t rank = 0; rank < nranks; ++rank) {
      for (int side = 0; side < 2; ++side) {
        if (arrays[2 * side][rank] != 0) {
          ends[side] = std::max(ends[side], arrays[2 * side][rank] + arrays[2 * side + 1][rank]);
        }
      }
    }
    setBuffers(*what, send, ends[0], recv, ends[1]);
    return enqueueCollective(std::move(what), streamOf(stream));
  });
}

kl_result
gather(kl_comm comm, const void* send, void* recv, uint64_t count, int32_t dtype, int32_t root, kl_stream stream) {
  return entry("gather", [&] {
    auto what = make(comm, CollectiveKind::Gather, dtype, count);
    checkRank(*what->communicator, root, "root");
    what->call.root = root;
    const bool is_root = static_cast<uint32_t>(root) == what->communicator->rank();
    setBuffers(*what, send, count, is_root ? recv : nullptr, is_root ? count * what->communicator->nranks() : 0);
    return enqueueCollective(std::move(what), streamOf(stream));
  });
}

kl_result
scatter(kl_comm comm, const void* send, void* recv, uint64_t count, int32_t dtype, int32_t root, kl_stream stream) {
  return entry("scatter", [&] {
    auto what = make(comm, CollectiveKind::Scatter, dtype, count);
    checkRank(*what->communicator, root, "root");
    what->call.root = root;
    const bool is_root = static_cast<uint32_t>(root) == what->communicator->rank();
    setBuffers(*what, is_root ? send : nullptr, is_root ? count * what->communicator->nranks() : 0, recv, count);
    return enqueueCollective(std::move(what), streamOf(stream));
  });
}

kl_result barrier(kl_comm comm, kl_stream stream) {
  return entry("barrier", [&] {
    return enqueueCollective(make(comm, CollectiveKind::Barrier, KL_DTYPE_UNDEFINED, 0), streamOf(stream));
  });
}

kl_result transfer(
    CollectiveKind kind,
    kl_comm comm,
    void* buffer,
    uint64_t count,
    int32_t dtype,
    int32_t peer,
    kl_stream stream) {
  const Handle& communicator = communicatorOf(comm);
  checkRank(*communicator, peer, "peer");
  if (count * bytesOf(dtype) != 0) {
    require(buffer, "the buffer");
  }
  return addTransfer({communicator, {kind, dtype, -1, peer, count}, buffer, &streamOf(stream)});
}

kl_result send(kl_comm comm, const void* buffer, uint64_t count, int32_t dtype, int32_t peer, kl_stream stream) {
  return entry("send", [&] {
    return transfer(CollectiveKind::Send, comm, const_cast<void*>(buffer), count, dtype, peer, stream);
  });
}

kl_result recv(kl_comm comm, void* buffer, uint64_t count, int32_t dtype, int32_t peer, kl_stream stream) {
  return entry("recv", [&] { return transfer(CollectiveKind::Recv, comm, buffer, count, dtype, peer, stream); });
}

kl_result probeEntry(kl_comm comm, int32_t peer, int32_t* out) {
  return entry("probe", [&] {
    require(out, "out");
    const Handle& communicator = communicatorOf(comm);
    checkRank(*communicator, peer, "peer");
    communicator->checkUsable();
    *out = probe(*communicator, static_cast<uint32_t>(peer)) ? 1 : 0;
    return KL_SUCCESS;
  });
}

kl_result setPatienceEntry(uint64_t nanoseconds) {
  setPatience(nanoseconds);
  return KL_SUCCESS;
}

} // namespace

const kl_collectives kCollectives = {
    .header = {sizeof(kl_collectives), KL_COLLECTIVES_ABI_MAJOR, KL_COLLECTIVES_ABI_MINOR},
    .unique_id = uniqueId,
    .comm_init = commInit,
    .comm_destroy = commDestroy,
    .comm_abort = commAbort,
    .comm_error = commError,
    .comm_progress = commProgress,
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
    .probe = probeEntry,
    .set_patience = setPatienceEntry,
    .flags = 0,
    .available = nullptr,
    .group_cancel = groupCancelEntry,
};

} // namespace kunlun::sim
