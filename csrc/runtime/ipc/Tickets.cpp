// Who holds what this process has lent: tickets in memory that lender and borrower both see.
#include "runtime/ipc/Tickets.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>

namespace kunlun::ipc {
namespace {

enum State : uint64_t { Free = 0, Sent = 1, Held = 2, Returned = 3 };
constexpr int kStateBits = 2;

uint64_t word(uint64_t generation, State state) {
  return generation << kStateBits | state;
}

struct OpenTables {
  std::mutex lock; // guards the map
  std::map<uint64_t, std::weak_ptr<TicketTable>> by_inode;
};

OpenTables& openTables() {
  static OpenTables& value = *new OpenTables;
  return value;
}

} // namespace

struct TicketTable::Place {
  std::atomic<uint64_t> word; // generation and state
  // Who holds it; 0 until that is known.
  std::atomic<uint64_t> start;
  std::atomic<int32_t> pid;
};

TicketTable* TicketTable::map(int fd) {
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
  void* places = mmap(nullptr, kTickets * sizeof(Place), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (places == MAP_FAILED) {
    const int reason = errno;
    close(fd);
    throw std::runtime_error(std::string("cannot map the table of lent memory: ") + std::strerror(reason));
  }
  return new TicketTable(fd, static_cast<Place*>(places));
}

TicketTable& TicketTable::own() {
  static TicketTable& table = *[] {
    const int fd = memfd_create("kunlun-tickets", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, kTickets * sizeof(Place)) != 0) {
      const int reason = errno;
      if (fd >= 0) {
        close(fd);
      }
      throw std::runtime_error(std::string("cannot make the table of lent memory: ") + std::strerror(reason));
    }
    return map(fd);
  }();
  return table;
}

std::shared_ptr<TicketTable> TicketTable::of(const Ticket& ticket) {
  OpenTables& open = openTables();
  std::lock_guard lock(open.lock);
  if (auto known = open.by_inode[ticket.inode].lock()) {
    return known;
  }
  const char* why = nullptr;
  const int fd = openOf(ticket.lender, ticket.fd, ticket.inode, &why);
  if (fd < 0) {
    throw std::runtime_error(
        "cannot reach process " + std::to_string(ticket.lender.pid) + ", which shares a kunlun tensor: " + why);
  }
  std::shared_ptr<TicketTable> table(map(fd));
  open.by_inode[ticket.inode] = table;
  std::erase_if(open.by_inode, [](const auto& entry) { return entry.second.expired(); });
  return table;
}

TicketTable::~TicketTable() {
  munmap(places_, kTickets * sizeof(Place));
  close(fd_);
}

Ticket TicketTable::issue() {
  for (uint32_t tried = 0; tried < kTickets; ++tried) {
    const uint32_t index = next_;
    next_ = (next_ + 1) % kTickets;
    Place& place = places_[index];
    const uint64_t old = place.word.load(std::memory_order_acquire);
    if ((old & ((1 << kStateBits) - 1)) != Free) {
      continue;
    }
    const uint64_t generation = (old >> kStateBits) + 1;
    place.pid.store(0, std::memory_order_relaxed);
    place.word.store(word(generation, Sent), std::memory_order_release);
    return {currentProcess(), fd_, index, inodeOf(fd_), generation};
  }
  throw std::runtime_error(
      "this process has lent " + std::to_string(kTickets) +
      " kunlun tensors to others that have not released them; receive or drop some before sending more");
}

bool TicketTable::isOver(const Ticket& ticket, bool look_for_dead) const {
  const Place& place = places_[ticket.index];
  const uint64_t now = place.word.load(std::memory_order_acquire);
  if (now == word(ticket.generation, Returned)) {
    return true;
  }
  if (!look_for_dead || now != word(ticket.generation, Held)) {
    return false;
  }
  const ProcessId holder{place.pid.load(std::memory_order_acquire), place.start.load(std::memory_order_relaxed)};
  return holder.pid != 0 && !isAlive(holder);
}

void TicketTable::retire(const Ticket& ticket) {
  places_[ticket.index].word.store(word(ticket.generation, Free), std::memory_order_release);
}

bool TicketTable::take(const Ticket& ticket) {
  Place& place = places_[ticket.index];
  uint64_t sent = word(ticket.generation, Sent);
  if (!place.word.compare_exchange_strong(sent, word(ticket.generation, Held), std::memory_order_acq_rel)) {
    return false;
  }
  const ProcessId self = currentProcess();
  place.start.store(self.start, std::memory_order_relaxed);
  place.pid.store(self.pid, std::memory_order_release);
  return true;
}

void TicketTable::giveBack(const Ticket& ticket) {
  Place& place = places_[ticket.index];
  for (const State from : {Held, Sent}) {
    uint64_t expected = word(ticket.generation, from);
    if (place.word.compare_exchange_strong(expected, word(ticket.generation, Returned), std::memory_order_acq_rel)) {
      return;
    }
  }
}

} // namespace kunlun::ipc
