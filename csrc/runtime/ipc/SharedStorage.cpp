// Storages that several processes use: lending them out, and borrowing them.
#include "runtime/ipc/SharedStorage.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include <c10/core/StorageImpl.h>

#include "runtime/AfterWork.h"
#include "runtime/CachingAllocator.h"
#include "runtime/Device.h"
#include "runtime/Error.h"
#include "runtime/Stream.h"
#include "runtime/chip/Loader.h"

namespace kunlun::ipc {

namespace {

constexpr auto kLookForDead = std::chrono::seconds(1);

struct Loan {
  c10::Storage storage;
  Ticket ticket;
  bool resizable; // the storage, before it was lent
};

struct Loans {
  std::mutex mutex; // guards what follows, and the lender's side of the table
  std::vector<Loan> loans;
  std::chrono::steady_clock::time_point looked; // when we last looked for borrowers that died
};

Loans& loans() {
  static auto* value = new Loans;
  return *value;
}

// Borrowed memory: the context of its DataPtr.
struct Borrowed {
  void* memory;            // the allocation, as the driver has opened it
  c10::DeviceIndex device; // whose streams may use it
  Ticket ticket;
  std::shared_ptr<TicketTable> table;
};

// What tells borrowed storages apart: the handle of the allocation, the offset in it and the size.
using Key = std::tuple<std::array<char, 64>, uint64_t, uint64_t>;

struct BorrowedStorages {
  std::mutex mutex; // guards the map
  std::map<Key, c10::weak_intrusive_ptr<c10::StorageImpl>> by_key;
};

BorrowedStorages& borrowedStorages() {
  static auto* value = new BorrowedStorages;
  return *value;
}

// Translates the refusals of the ticket table.
template <class Function>
auto translated(Function&& function) {
  try {
    return function();
  } catch (const c10::Error&) {
    throw;
  } catch (const std::exception& error) {
    C10_THROW_ERROR(Error, error.what());
  }
}

void finish(Borrowed* borrowed) {
  if (chip::runtime().ipc_close_handle(borrowed->memory) != KL_SUCCESS) {
    TORCH_WARN("memory that was borrowed from process ", borrowed->ticket.lender.pid, " could not be closed");
  }
  borrowed->table->giveBack(borrowed->ticket);
  delete borrowed;
}

// Gives the memory back once every stream of the device has done what it was given so far: work that still reads it may
// be on any of them.
void release(void* context) {
  auto* borrowed = static_cast<Borrowed*>(context);
  if (!checkUsable()) {
    // Exiting: the mapping goes with the process. A forked child has only a copy of this object, and the loan is its
    // parent's.
    if (runtimeState() != RuntimeState::BadFork) {
      borrowed->table->giveBack(borrowed->ticket);
    }
    return;
  }
  callAfterWork(borrowed->device, "ipc_release", [borrowed] { finish(borrowed); });
}

// How many streams of a device have not yet come to where they were when somebody began to wait. Shared by the waiter
// and the host calls, of which the last to leave deletes it.
struct Arrivals {
  std::mutex mutex; // guards `missing`
  std::condition_variable changed;
  size_t missing = 0;
  std::atomic<size_t> users{1};

  void leave() {
    if (users.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      delete this;
    }
  }
  void arrive() {
    {
      std::lock_guard<std::mutex> lock(mutex);
      --missing;
    }
    changed.notify_all();
    leave();
  }
};

kl_result streamHasArrived(void* arg, const kl_error*, kl_error*) {
  static_cast<Arrivals*>(arg)->arrive();
  return KL_SUCCESS;
}

// Waits for all streams, and not only for the current one: a queue pickles on a thread of its own, which has another
// current stream than the thread that made the tensor. Failures stay with their streams, whose users are told.
void awaitStreams(c10::DeviceIndex device) {
  const auto streams = busyStreams(device);
  if (streams.empty()) {
    return;
  }
  auto* arrivals = new Arrivals;
  arrivals->missing = streams.size();
  for (const kl_stream stream : streams) {
    arrivals->users.fetch_add(1, std::memory_order_relaxed);
    if (chip::runtime().launch_host(stream, "ipc_lend", &streamHasArrived, arrivals) != KL_SUCCESS) {
      chip::runtime().stream_synchronize(stream); // whatever it reports, it is not at work any more
      arrivals->arrive();
    }
  }
  {
    std::unique_lock<std::mutex> lock(arrivals->mutex);
    // Host calls are dropped when the process exits, so it looks now and then.
    while (arrivals->missing != 0 && checkUsable()) {
      arrivals->changed.wait_for(lock, std::chrono::milliseconds(20));
    }
  }
  arrivals->leave();
  lazyInit();
}

c10::DeviceIndex deviceOf(int32_t physical_id) {
  for (c10::DeviceIndex device = 0; device < deviceCount(); ++device) {
    if (deviceProperties(device).physical_id == physical_id) {
      return device;
    }
  }
  TORCH_CHECK(
      false,
      "received a kunlun tensor on the card with physical number ",
      physical_id,
      ", which this process does not see; look at KUNLUN_VISIBLE_DEVICES");
}

// Takes the loan and opens the memory on `device`, for use by the streams of `user`.
c10::DataPtr
take(const SharedStorage& shared, c10::DeviceIndex device, c10::DeviceIndex user, std::shared_ptr<TicketTable> table) {
  TORCH_CHECK(
      table->take(shared.ticket),
      "this kunlun tensor has been received already; it must be sent once for each process that is to have it");
  void* memory = nullptr;
  if (const kl_result result = chip::runtime().ipc_open_handle(device, shared.memory.data(), &memory);
      result != KL_SUCCESS) {
    table->giveBack(shared.ticket);
    check(result, "ipc_open_handle");
  }
  auto* borrowed = new Borrowed{memory, user, shared.ticket, std::move(table)};
  return {
      static_cast<char*>(memory) + shared.offset, borrowed, &release, c10::Device(c10::DeviceType::PrivateUse1, user)};
}

// The storage itself, if it was this process that lent it.
c10::Storage ownLoan(const Ticket& ticket) {
  auto& all = loans();
  std::lock_guard<std::mutex> lock(all.mutex);
  for (const Loan& loan : all.loans) {
    if (loan.ticket.index == ticket.index && loan.ticket.generation == ticket.generation) {
      TORCH_CHECK(TicketTable::own().take(ticket), "this kunlun tensor has been received already");
      TicketTable::own().giveBack(ticket);
      return loan.storage;
    }
  }
  TORCH_CHECK(false, "this kunlun tensor has been received already");
}

} // namespace

SharedStorage lend(const c10::Storage& storage, Contents contents) {
  lazyInit();
  collect();
  TORCH_CHECK_VALUE(
      storage.device_type() == c10::DeviceType::PrivateUse1,
      "expected a kunlun storage, got one on ",
      storage.device());
  TORCH_CHECK(
      storage.data_ptr().get_deleter() != &release,
      "Attempted to send kunlun tensor received from another process; this is not currently supported. Consider "
      "cloning before sending.");
  CachingAllocator::checkAwake(storage.data());
  const c10::DeviceIndex device = storage.device().index();
  TORCH_CHECK(
      hasCapability(device, KL_CAP_IPC),
      "the chip's driver cannot share device memory between processes; send the tensor as .cpu() instead");
  kl_pointer_info info{};
  check(chip::runtime().pointer_info(storage.data(), &info), "pointer_info");
  TORCH_CHECK_VALUE(
      info.type == KL_POINTER_DEVICE, "the storage's memory is not in an allocation of the chip's driver");
  SharedStorage shared;
  check(chip::runtime().ipc_get_handle(info.base, shared.memory.data()), "ipc_get_handle");
  shared.offset = static_cast<uint64_t>(static_cast<const char*>(storage.data()) - static_cast<char*>(info.base));
  shared.bytes = storage.nbytes();
  shared.physical_id = deviceProperties(device).physical_id;
  if (contents == Contents::Finished) {
    awaitStreams(device);
  }

  auto& all = loans();
  std::lock_guard<std::mutex> lock(all.mutex);
  shared.ticket = translated([] { return TicketTable::own().issue(); });
  const auto same = std::find_if(all.loans.begin(), all.loans.end(), [&](const Loan& loan) {
    return loan.storage.unsafeGetStorageImpl() == storage.unsafeGetStorageImpl();
  });
  const bool resizable = same != all.loans.end() ? same->resizable : storage.resizable();
  storage.unsafeGetStorageImpl()->set_resizable(false);
  all.loans.push_back({storage, shared.ticket, resizable});
  return shared;
}

c10::Storage borrow(const SharedStorage& shared) {
  lazyInit();
  if (shared.ticket.lender == currentProcess()) {
    return ownLoan(shared.ticket);
  }
  const c10::DeviceIndex device = deviceOf(shared.physical_id);
  auto table = translated([&] { return TicketTable::of(shared.ticket); });
  auto& known = borrowedStorages();
  const Key key{shared.memory, shared.offset, shared.bytes};
  std::lock_guard<std::mutex> lock(known.mutex);
  if (const auto found = known.by_key.find(key); found != known.by_key.end()) {
    if (auto living = found->second.lock()) {
      table->giveBack(shared.ticket); // the earlier loan holds for both
      return c10::Storage(std::move(living));
    }
    known.by_key.erase(found);
  }
  c10::DataPtr data = take(shared, device, device, std::move(table));
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), shared.bytes, std::move(data), /*allocator=*/nullptr, /*resizable=*/false);
  std::erase_if(known.by_key, [](const auto& entry) { return entry.second.expired(); });
  known.by_key.emplace(key, c10::weak_intrusive_ptr<c10::StorageImpl>(storage));
  return c10::Storage(std::move(storage));
}

c10::DataPtr borrowFor(c10::DeviceIndex user, const SharedStorage& shared) {
  lazyInit();
  return take(shared, deviceOf(shared.physical_id), user, translated([&] { return TicketTable::of(shared.ticket); }));
}

bool anyLent(const std::function<bool(const void*)>& predicate) {
  collect(/*look_for_dead=*/true);
  auto& all = loans();
  std::lock_guard<std::mutex> lock(all.mutex);
  return std::any_of(
      all.loans.begin(), all.loans.end(), [&](const Loan& loan) { return predicate(loan.storage.data()); });
}

bool collect(bool look_for_dead) {
  if (!checkUsable()) {
    return false;
  }
  // Given up outside of the lock: the end of a storage may run anything, Python included.
  std::vector<Loan> over;
  {
    auto& all = loans();
    std::lock_guard<std::mutex> lock(all.mutex);
    if (all.loans.empty()) {
      return false;
    }
    const auto now = std::chrono::steady_clock::now();
    const bool look = look_for_dead || now - all.looked >= kLookForDead;
    if (look) {
      all.looked = now;
    }
    const auto first = std::stable_partition(all.loans.begin(), all.loans.end(), [&](const Loan& loan) {
      return !TicketTable::own().isOver(loan.ticket, look);
    });
    for (auto loan = first; loan != all.loans.end(); ++loan) {
      TicketTable::own().retire(loan->ticket);
      over.push_back(std::move(*loan));
    }
    all.loans.erase(first, all.loans.end());
    for (const Loan& ended : over) {
      const bool lent = std::any_of(all.loans.begin(), all.loans.end(), [&](const Loan& loan) {
        return loan.storage.unsafeGetStorageImpl() == ended.storage.unsafeGetStorageImpl();
      });
      ended.storage.unsafeGetStorageImpl()->set_resizable(!lent && ended.resizable);
    }
  }
  return !over.empty();
}

} // namespace kunlun::ipc
