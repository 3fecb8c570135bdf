// The communicators of ProcessGroupXCCL: when each is made, among whom, and over what.
#include "distributed/ProcessGroupXCCL.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include <c10/core/DeviceGuard.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "distributed/ChipCommunicator.h"
#include "distributed/hosts/Gloo.h"
#include "distributed/hosts/HostsCommunicator.h"
#include "runtime/EnvXccl.h"
#include "runtime/Error.h"
#include "runtime/Interrupt.h"

namespace kunlun::distributed {

namespace {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

} // namespace

std::shared_ptr<Communicator> ProcessGroupXCCL::communicator(c10::DeviceIndex device) {
  std::lock_guard lock(lock_);
  const std::string name = "device " + std::to_string(device);
  if (const auto known = communicators_.find(name); known != communicators_.end()) {
    return known->second;
  }
  std::vector<int> everybody(static_cast<size_t>(size_));
  std::iota(everybody.begin(), everybody.end(), 0);
  // Counted and not named by the device: ranks may use devices of different numbers.
  const auto made = connect(device, "group/" + std::to_string(communicators_made_++), everybody);
  used_device_ = device;
  return communicators_[name] = made;
}

std::shared_ptr<Communicator> ProcessGroupXCCL::pairCommunicator(c10::DeviceIndex device, int peer) {
  const int low = std::min(rank_, peer);
  const int high = std::max(rank_, peer);
  const std::string pair = std::to_string(low) + ":" + std::to_string(high);
  std::lock_guard lock(lock_);
  const std::string name = "pair " + pair;
  if (const auto known = communicators_.find(name); known != communicators_.end()) {
    return known->second;
  }
  std::vector<int> ranks{low};
  if (low != high) {
    ranks.push_back(high);
  }
  return communicators_[name] = connect(device, "pair/" + pair, ranks);
}

std::shared_ptr<Communicator>
ProcessGroupXCCL::connect(c10::DeviceIndex device, const std::string& key, const std::vector<int>& ranks) {
  // Before the chip waits for them: here the missing are known by name.
  members_->meet(key, ranks, options_->timeout);
  const int rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin());
  const auto places = hosts::placesOf(members_->hostsOf(ranks));
  if (places.ranks.size() == 1 || (collectives().flags & KL_COLLECTIVES_ACROSS_HOSTS) != 0) {
    return connectOnHost(device, key, ranks);
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      xcclEnv().accumulate == XcclAccumulate::Float32,
      "XCCL_ACCUMULATE=native is for groups of one host: between hosts, sums of half types accumulate in float32");
  const int host = places.host_of[static_cast<size_t>(rank)];
  const auto& here = places.ranks[static_cast<size_t>(host)];
  const int place = static_cast<int>(std::find(here.begin(), here.end(), rank) - here.begin());
  std::vector<int> neighbours;
  for (const int index : here) {
    neighbours.push_back(ranks[static_cast<size_t>(index)]);
  }
  auto local = connectOnHost(device, key + "/host/" + std::to_string(host), neighbours);
  const auto store = c10::make_intrusive<c10d::PrefixStore>("xccl/" + key + "/hosts", store_);
  const auto gloo = [&](const char* what, int gloo_rank, size_t gloo_size) {
    return hosts::makeGloo(
        c10::make_intrusive<c10d::PrefixStore>(what, store), gloo_rank, static_cast<int>(gloo_size), options_->timeout);
  };
  auto all = gloo("all", rank, ranks.size());
  auto leaders = place == 0 ? gloo("leaders", host, places.ranks.size()) : nullptr;
  auto links = std::make_shared<hosts::Links>(
      std::move(local), std::move(leaders), std::move(all), store, [members = members_, ranks] {
        return members->deaths(ranks);
      });
  return std::make_shared<hosts::HostsCommunicator>(
      device, rank, places, std::move(links), options_->is_high_priority_stream);
}

std::shared_ptr<Communicator>
ProcessGroupXCCL::connectOnHost(c10::DeviceIndex device, const std::string& key, const std::vector<int>& ranks) const {
  const int rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin());
  kl_comm_id id{};
  const std::string name = "xccl/" + key;
  if (rank == 0) {
    check(require(collectives().unique_id, "communicators")(&id), "unique_id");
    store_->set(name, std::vector<uint8_t>(id.bytes, id.bytes + sizeof(id.bytes)));
  } else {
    members_->await(name, ranks, options_->timeout);
    const std::vector<uint8_t> bytes = store_->get(name);
    TORCH_CHECK(bytes.size() == sizeof(id.bytes), "the store's entry ", name, " is not the id of a communicator");
    std::memcpy(id.bytes, bytes.data(), sizeof(id.bytes));
  }
  // A rank that dies while the others wait for it ends their wait.
  const InterruptScope watch([&] { members_->checkAlive(ranks); });
  try {
    return std::make_shared<ChipCommunicator>(
        device,
        rank,
        static_cast<int>(ranks.size()),
        id,
        options_->timeout,
        options_->is_high_priority_stream,
        [members = members_, ranks] { return members->deaths(ranks); });
  } catch (const c10::Error&) {
    members_->checkAlive(ranks); // says more than what the chip saw of it: a lost connection
    throw;
  }
}

void ProcessGroupXCCL::eagerConnectSingleDevice(at::Device device) {
  TORCH_CHECK_VALUE(device.type() == kType, "XCCL connects kunlun devices, not ", device);
  const c10::DeviceGuard guard(device);
  communicator(device.index());
}

bool ProcessGroupXCCL::isConnected() {
  return !allCommunicators().empty();
}

std::vector<std::shared_ptr<Communicator>> ProcessGroupXCCL::allCommunicators() {
  std::vector<std::shared_ptr<Communicator>> all;
  std::lock_guard lock(lock_);
  for (const auto& [name, communicator] : communicators_) {
    all.push_back(communicator);
  }
  return all;
}

} // namespace kunlun::distributed
