// Collectives over several hosts, except for the arithmetic of reductions.
#include "distributed/hosts/HostsCommunicator.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include "runtime/Error.h"
#include "runtime/frame/DTypes.h"

namespace kunlun::distributed::hosts {

namespace {

// An allocation that waits for the device must not wait for ever.
constexpr std::chrono::seconds kGate{1};

constexpr int kTagsOfDirection = 4; // of a pair's transfers: two for the agreement, one for the data

// Of a pair's communicator: counts what that rank has sent.
std::string sentKey(int rank) {
  return "sent/" + std::to_string(rank);
}

} // namespace

Places placesOf(std::vector<int> host_of_rank) {
  Places places{std::move(host_of_rank), {}};
  for (size_t rank = 0; rank < places.host_of.size(); ++rank) {
    const auto host = static_cast<size_t>(places.host_of[rank]);
    places.ranks.resize(std::max(places.ranks.size(), host + 1));
    places.ranks[host].push_back(static_cast<int>(rank));
  }
  return places;
}

HostsCommunicator::Turn::Turn(HostsCommunicator& group, c10::ScalarType dtype)
    : group_(group), stream_(getCurrentStream(group.device_)) {
  frame::toChipDtype(dtype);
  group_.last_.block(stream_);
  enqueue(stream_.handle(), Call{}, [gate = is_enqueued_.get_future().share()](const Call&) { gate.wait_for(kGate); });
}

HostsCommunicator::Turn::~Turn() noexcept(false) {
  if (std::uncaught_exceptions() > exceptions_) {
    group_.links_->end(c10::str("rank ", group_.rank_, " failed while it called a collective"));
  }
  is_enqueued_.set_value();
  group_.last_.record(stream_);
}

HostsCommunicator::HostsCommunicator(
    c10::DeviceIndex device,
    int rank,
    Places places,
    std::shared_ptr<Links> links,
    bool high_priority)
    : Communicator(device, rank, static_cast<int>(places.host_of.size()), high_priority),
      places_(std::move(places)),
      host_(places_.host_of.at(static_cast<size_t>(rank))),
      links_(std::move(links)),
      local_(links_->local()) {}

void HostsCommunicator::abort(const std::string& reason) noexcept {
  links_->end(reason);
}

std::optional<std::string> HostsCommunicator::error() const {
  const auto error = links_->error();
  return error ? error : local_.error();
}

Call HostsCommunicator::agreed(const Call& call, kl_stream stream) const {
  links_->enqueue(stream, call, [all = links_->all()](const Call& mine) { agree(*all, mine); });
  return call;
}

// Of this host only: nobody here knows what those of others do.
std::vector<int> HostsCommunicator::missingRanks() const {
  std::vector<int> ranks;
  for (const int index : local_.missingRanks()) {
    ranks.push_back(places_.ranks[static_cast<size_t>(host_)][static_cast<size_t>(index)]);
  }
  return ranks;
}

int HostsCommunicator::indexOnItsHost(int rank) const {
  const auto& ranks = places_.ranks[static_cast<size_t>(places_.host_of[static_cast<size_t>(rank)])];
  return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

at::Tensor HostsCommunicator::view(const void* data, uint64_t count, c10::ScalarType dtype) const {
  const c10::Device device(c10::DeviceType::PrivateUse1, device_);
  return at::for_blob(const_cast<void*>(data), {static_cast<int64_t>(count)})
      .options(at::TensorOptions(dtype).device(device))
      .target_device(device)
      .make_tensor();
}

at::Tensor HostsCommunicator::make(uint64_t count, c10::ScalarType dtype) const {
  const c10::Device device(c10::DeviceType::PrivateUse1, device_);
  return at::empty({static_cast<int64_t>(count)}, at::TensorOptions(dtype).device(device));
}

// ---- collectives that move ----

void HostsCommunicator::bringToAll(
    const char* name,
    const void* send,
    void* recv,
    uint64_t count,
    c10::ScalarType dtype,
    int root,
    kl_stream stream) {
  const Call what = agreed(callOf(name, dtype, count, rank_, root), stream);
  const int from = places_.host_of[static_cast<size_t>(root)];
  if (host_ == from) {
    local_.broadcast(send, recv, count, dtype, indexOnItsHost(root), stream);
  }
  if (isLeader()) {
    Staging staging(stream);
    const at::Tensor data = staging.make({static_cast<int64_t>(count * c10::elementSize(dtype))});
    if (host_ == from) {
      staging.toHost(data, recv);
    }
    links_->enqueue(stream, what, [gloo = links_->leaders(), data, from](const Call& call) {
      agree(*gloo, call);
      hosts::broadcast(*gloo, data, from);
    });
    if (host_ != from) {
      staging.toDevice(recv, data);
    }
  }
  if (host_ == from) {
    local_.barrier(stream); // whether another host has failed, all ranks must learn
  } else {
    local_.broadcast(recv, recv, count, dtype, 0, stream);
  }
}

void HostsCommunicator::gatherToAll(
    const char* name,
    const void* send,
    void* recv,
    uint64_t count,
    c10::ScalarType dtype,
    int root,
    kl_stream stream) {
  const Call what = agreed(callOf(name, dtype, count, rank_, root), stream);
  const auto& mine = places_.ranks[static_cast<size_t>(host_)];
  const at::Tensor of_host = make(count * mine.size(), dtype);
  local_.allGather(send, of_host.mutable_data_ptr(), count, dtype, stream);
  if (isLeader()) {
    Staging staging(stream);
    const auto bytes = static_cast<int64_t>(count * c10::elementSize(dtype));
    std::vector<at::Tensor> parts; // one for each host
    for (const auto& ranks : places_.ranks) {
      parts.push_back(staging.make({static_cast<int64_t>(ranks.size()), bytes}));
    }
    staging.toHost(parts[static_cast<size_t>(host_)], of_host.const_data_ptr());
    links_->enqueue(stream, what, [gloo = links_->leaders(), parts](const Call& call) {
      agree(*gloo, call);
      for (size_t host = 0; host < parts.size(); ++host) {
        hosts::broadcast(*gloo, parts[host], static_cast<int>(host));
      }
    });
    for (size_t host = 0; host < parts.size(); ++host) {
      for (size_t i = 0; i < places_.ranks[host].size(); ++i) {
        char* to = static_cast<char*>(recv) + places_.ranks[host][i] * bytes;
        staging.toDevice(to, parts[host].select(0, static_cast<int64_t>(i)));
      }
    }
  }
  local_.broadcast(recv, recv, count * static_cast<uint64_t>(nranks_), dtype, 0, stream);
}

void HostsCommunicator::broadcast(
    const void* send,
    void* recv,
    uint64_t count,
    c10::ScalarType dtype,
    int root,
    kl_stream stream) {
  const Turn turn(*this, dtype);
  bringToAll("broadcast", send, recv, count, dtype, root, stream);
}

void HostsCommunicator::allGather(
    const void* send,
    void* recv,
    uint64_t count,
    c10::ScalarType dtype,
    kl_stream stream) {
  const Turn turn(*this, dtype);
  gatherToAll("all_gather", send, recv, count, dtype, -1, stream);
}

void HostsCommunicator::gather(
    const void* send,
    void* recv,
    uint64_t count,
    c10::ScalarType dtype,
    int root,
    kl_stream stream) {
  const Turn turn(*this, dtype);
  if (rank_ == root) {
    gatherToAll("gather", send, recv, count, dtype, root, stream);
    return;
  }
  const at::Tensor all = make(count * static_cast<uint64_t>(nranks_), dtype);
  gatherToAll("gather", send, all.mutable_data_ptr(), count, dtype, root, stream);
}

void HostsCommunicator::scatter(
    const void* send,
    void* recv,
    uint64_t count,
    c10::ScalarType dtype,
    int root,
    kl_stream stream) {
  const Turn turn(*this, dtype);
  const at::Tensor all = make(count * static_cast<uint64_t>(nranks_), dtype);
  bringToAll("scatter", send, all.mutable_data_ptr(), count * static_cast<uint64_t>(nranks_), dtype, root, stream);
  const auto n = static_cast<int64_t>(count);
  view(recv, count, dtype).copy_(all.narrow(0, rank_ * n, n));
}

void HostsCommunicator::barrier(kl_stream stream) {
  const Turn turn(*this, at::kByte);
  agreed(callOf("barrier", at::kByte, 0, rank_), stream);
}

void HostsCommunicator::allToAll(
    const void* send,
    const Layout& sent,
    void* recv,
    const Layout& received,
    c10::ScalarType dtype,
    kl_stream stream) {
  const Turn turn(*this, dtype);
  const auto bytes = [&](const Layout& layout) {
    std::vector<int64_t> sizes;
    for (const uint64_t n : layout.counts) {
      sizes.push_back(static_cast<int64_t>(n * c10::elementSize(dtype)));
    }
    return sizes;
  };
  const Call what = callOf("all_to_all", dtype, 0, rank_);
  links_->enqueue(stream, what, [gloo = links_->all(), out = bytes(sent), in = bytes(received)](const Call& call) {
    agree(*gloo, call);
    agreeAboutSizes(*gloo, out, in);
  });
  const auto& mine = places_.ranks[static_cast<size_t>(host_)];
  const auto of_host = [&](const Layout& layout) {
    Layout part;
    for (const int rank : mine) {
      part.counts.push_back(layout.counts[static_cast<size_t>(rank)]);
      part.displacements.push_back(layout.displacements[static_cast<size_t>(rank)]);
    }
    return part;
  };
  local_.allToAll(send, of_host(sent), recv, of_host(received), dtype, stream);

  const auto item = static_cast<int64_t>(c10::elementSize(dtype));
  // Bytes to and from each rank; none for those of this host.
  const auto elsewhere = [&](const Layout& layout) {
    std::vector<int64_t> bytes;
    for (size_t rank = 0; rank < layout.counts.size(); ++rank) {
      bytes.push_back(places_.host_of[rank] == host_ ? 0 : static_cast<int64_t>(layout.counts[rank]) * item);
    }
    return bytes;
  };
  const auto out_bytes = elsewhere(sent);
  const auto in_bytes = elsewhere(received);
  const auto total = [](const std::vector<int64_t>& bytes) {
    int64_t sum = 0;
    for (const int64_t n : bytes) {
      sum += n;
    }
    return sum;
  };
  Staging staging(stream);
  const at::Tensor outgoing = staging.make({total(out_bytes)});
  const at::Tensor incoming = staging.make({total(in_bytes)});
  const auto eachPart = [&](const std::vector<int64_t>& bytes, const at::Tensor& host, const auto& move) {
    int64_t at = 0;
    for (size_t rank = 0; rank < bytes.size(); ++rank) {
      move(rank, host.narrow(0, at, bytes[rank]));
      at += bytes[rank];
    }
  };
  eachPart(out_bytes, outgoing, [&](size_t rank, const at::Tensor& part) {
    staging.toHost(part, static_cast<const char*>(send) + sent.displacements[rank] * static_cast<uint64_t>(item));
  });
  links_->enqueue(stream, what, [gloo = links_->all(), outgoing, incoming, out_bytes, in_bytes](const Call& call) {
    agree(*gloo, call);
    at::Tensor to = incoming;
    at::Tensor from = outgoing;
    auto in = in_bytes;
    auto out = out_bytes;
    gloo->alltoall_base(to, from, in, out)->wait();
  });
  eachPart(in_bytes, incoming, [&](size_t rank, const at::Tensor& part) {
    staging.toDevice(static_cast<char*>(recv) + received.displacements[rank] * static_cast<uint64_t>(item), part);
  });
}

// ---- transfers, of pairs on different hosts ----

void HostsCommunicator::send(const void* data, uint64_t count, c10::ScalarType dtype, int peer, kl_stream stream) {
  Staging staging(stream);
  const at::Tensor host = staging.make({static_cast<int64_t>(count * c10::elementSize(dtype))});
  staging.toHost(host, data);
  const int tag = rank_ < peer ? 0 : kTagsOfDirection;
  links_->enqueue(
      stream, callOf("send and recv", dtype, count, rank_), [gloo = links_->all(), host, peer, tag](const Call& call) {
        agreeWith(*gloo, peer, tag, call);
        std::vector<at::Tensor> tensors{host};
        gloo->send(tensors, peer, tag + 2)->wait();
      });
  links_->store().add(sentKey(rank_), 1);
}

void HostsCommunicator::recv(void* data, uint64_t count, c10::ScalarType dtype, int peer, kl_stream stream) {
  Staging staging(stream);
  const at::Tensor host = staging.make({static_cast<int64_t>(count * c10::elementSize(dtype))});
  const int tag = peer < rank_ ? 0 : kTagsOfDirection;
  links_->enqueue(
      stream, callOf("send and recv", dtype, count, rank_), [gloo = links_->all(), host, peer, tag](const Call& call) {
        agreeWith(*gloo, peer, tag, call);
        std::vector<at::Tensor> tensors{host};
        gloo->recv(tensors, peer, tag + 2)->wait();
      });
  staging.toDevice(data, host);
  ++received_;
}

bool HostsCommunicator::probe(int peer) {
  return links_->store().add(sentKey(peer), 0) > received_;
}

} // namespace kunlun::distributed::hosts
