// The ranks of a group meet over a piece of symmetric memory.
#include "distributed/symmetric_memory/Peers.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <type_traits>
#include <utility>

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include "distributed/Members.h"
#include "distributed/symmetric_memory/Allocation.h"
#include "runtime/ipc/SharedStorage.h"

namespace kunlun::distributed::symmetric_memory {

namespace {

// Ranks meet in the same order everywhere, so they count to find each other. A group of the same name may come later,
// with a store of its own.
std::string nextPlace(const std::string& group_name, const c10::intrusive_ptr<c10d::Store>& store) {
  struct Count {
    c10::weak_intrusive_ptr<c10d::Store> store;
    uint64_t meetings = 0;
  };
  static auto& lock = *new std::mutex; // guards counts
  static auto& counts = *new std::map<std::string, Count>;
  std::lock_guard guard(lock);
  const auto [known, is_new] = counts.try_emplace(group_name, Count{c10::weak_intrusive_ptr<c10d::Store>(store)});
  if (!is_new && known->second.store.lock() != store) {
    known->second = {c10::weak_intrusive_ptr<c10d::Store>(store)};
  }
  return "symmetric/" + std::to_string(known->second.meetings++);
}

std::string sizesOf(const Allocation& allocation) {
  return c10::str(allocation.bytes(), " bytes and a signal pad of ", allocation.padBytes(), " bytes");
}

// The memory for each of the other ranks, as it travels.
std::string lendToAll(const Allocation& allocation, const Group& group) {
  static_assert(std::is_trivially_copyable_v<ipc::SharedStorage>);
  std::string loans(static_cast<size_t>(group.size) * sizeof(ipc::SharedStorage), '\0');
  for (int rank = 0; rank < group.size; ++rank) {
    if (rank != group.rank) {
      const ipc::SharedStorage loan = ipc::lend(allocation.storage(), ipc::Contents::AsTheyCome);
      std::memcpy(loans.data() + static_cast<size_t>(rank) * sizeof(loan), &loan, sizeof(loan));
    }
  }
  return loans;
}

c10::DataPtr borrowFrom(const std::string& loans, const Group& group, c10::DeviceIndex device) {
  ipc::SharedStorage loan;
  const size_t start = static_cast<size_t>(group.rank) * sizeof(loan);
  TORCH_CHECK(loans.size() >= start + sizeof(loan), "the store's entry is not what a rank lends");
  std::memcpy(static_cast<void*>(&loan), loans.data() + start, sizeof(loan));
  return ipc::borrowFor(device, loan);
}

// Runs what may fail on this rank alone; the others are told by what it returns, which is empty when all went well.
template <class Function>
std::string attempt(Function&& function) {
  try {
    function();
    return "";
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
}

} // namespace

Group Group::find(const std::string& name) {
  Group found;
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  try {
    group = c10d::resolve_process_group(name);
  } catch (const c10::Error&) {
    // No process group has that name, but somebody may have declared one with set_group_info.
    const auto& info = c10d::symmetric_memory::get_group_info(name);
    found = {info.store, info.rank, info.world_size, info.store->getTimeout(), {}};
  }
  if (group != nullptr) {
    found = {group->getStore(), group->getRank(), group->getSize(), group->getStore()->getTimeout(), {}};
    const auto devices = group->getDeviceTypes();
    if (std::any_of(devices.begin(), devices.end(), [](c10::Device device) { return device.is_privateuseone(); })) {
      const auto options = group->getBackend(c10::DeviceType::PrivateUse1)->getBackendOptions();
      found.timeout = options->timeout;
      for (const auto rank : options->global_ranks_in_group) { // none for the default group
        found.global_ranks.push_back(static_cast<int>(rank));
      }
    }
  }
  if (found.global_ranks.empty()) {
    found.global_ranks.resize(static_cast<size_t>(found.size));
    std::iota(found.global_ranks.begin(), found.global_ranks.end(), 0);
  }
  return found;
}

Peers::Peers(const Allocation& allocation, const Group& group)
    : own_(allocation.storage()),
      rank_(group.rank),
      bytes_(allocation.bytes()),
      pad_bytes_(allocation.padBytes()),
      device_(allocation.device()),
      global_ranks_(group.global_ranks),
      store_(group.store) {}

bool Peers::areOf(const Group& group) const {
  return store_.lock() == group.store;
}

void Peers::take(std::vector<c10::DataPtr> borrowed, size_t pad_offset) {
  borrowed_ = std::move(borrowed);
  for (const auto& data : borrowed_) {
    void* buffer = data ? data.get() : own_.mutable_data();
    buffers_.push_back(buffer);
    signal_pads_.push_back(static_cast<char*>(buffer) + pad_offset);
  }
}

std::shared_ptr<Peers> Peers::meet(const Allocation& allocation, const std::string& group_name, const Group& group) {
  std::vector<int> ranks(static_cast<size_t>(group.size));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto store = c10::make_intrusive<c10d::PrefixStore>("symmetric_memory/" + group_name, group.store);
  Members members(store, group.rank, group.size, "rendezvous of symmetric memory");
  const std::string place = nextPlace(group_name, group.store);
  const auto exchange = [&](const char* step, const std::string& value) {
    return members.exchange(place + "/" + step, ranks, value, group.timeout);
  };

  const auto sizes = exchange("sizes", sizesOf(allocation));
  for (size_t rank = 1; rank < sizes.size(); ++rank) {
    TORCH_CHECK_VALUE(
        sizes[rank] == sizes[0],
        "symmetric memory must have the same size on every rank of group \"",
        group_name,
        "\", but rank 0 has ",
        sizes[0],
        " and rank ",
        rank,
        " has ",
        sizes[rank]);
  }
  const auto hosts = members.hostsOf(ranks);
  const auto elsewhere = std::find_if(hosts.begin(), hosts.end(), [](int host) { return host != 0; });
  TORCH_CHECK_WITH(
      DistBackendError,
      elsewhere == hosts.end(),
      "symmetric memory is for ranks of one host, but rank ",
      elsewhere - hosts.begin(),
      " of group \"",
      group_name,
      "\" is on another host than rank 0; make a group for each host");

  std::string loans;
  std::string failure = attempt([&] { loans = lendToAll(allocation, group); });
  const auto offers = exchange("loans", loans);
  std::vector<c10::DataPtr> borrowed(ranks.size());
  if (failure.empty()) {
    failure = attempt([&] {
      for (const int rank : ranks) {
        if (rank != group.rank && !offers[static_cast<size_t>(rank)].empty()) {
          borrowed[static_cast<size_t>(rank)] =
              borrowFrom(offers[static_cast<size_t>(rank)], group, allocation.device());
        }
      }
    });
  }
  // Nobody touches the memory of a rank, whose signal pad is zero from the start, before all have mapped all.
  const auto failures = exchange("mapped", failure);
  for (size_t rank = 0; rank < failures.size(); ++rank) {
    TORCH_CHECK_WITH(
        DistBackendError,
        failures[rank].empty(),
        "rank ",
        rank,
        " of group \"",
        group_name,
        "\" could not share symmetric memory: ",
        failures[rank]);
  }
  std::shared_ptr<Peers> peers(new Peers(allocation, group));
  peers->take(std::move(borrowed), allocation.padOffset());
  for (const int rank : ranks) {
    peers->processes_.push_back(members.processOf(rank));
  }
  return peers;
}

} // namespace kunlun::distributed::symmetric_memory
