// Who holds what this process has lent: tickets in memory that lender and borrower both see.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "runtime/ipc/ProcessId.h"

namespace kunlun::ipc {

// One ticket goes with each loan. It is sent, then held by the borrower's process, then returned. A borrower that dies
// is found out by the lender, so nothing stays lent for ever but what was sent and never received.
struct Ticket {
  ProcessId lender;
  int32_t fd = -1; // of the table, in the lender
  uint32_t index = 0;
  uint64_t inode = 0;      // of the table's file
  uint64_t generation = 0; // places are used again
};

// A file in memory without a name: it goes with the last process that has it open.
class TicketTable {
 public:
  static constexpr uint32_t kTickets = 1u << 16; // out at a time

  // The lender's own, made at first use.
  static TicketTable& own();
  // That of a ticket's lender. Throws std::runtime_error, with the reason, when it cannot be opened.
  static std::shared_ptr<TicketTable> of(const Ticket& ticket);
  ~TicketTable();
  TicketTable(const TicketTable&) = delete;
  TicketTable& operator=(const TicketTable&) = delete;

  // ---- the lender; one thread at a time

  // Throws std::runtime_error when all tickets are out.
  Ticket issue();
  // Whether the loan is over. Asks for the death of the borrower only if told to, since that costs a system call.
  bool isOver(const Ticket& ticket, bool look_for_dead) const;
  // Makes the place free for another ticket.
  void retire(const Ticket& ticket);

  // ---- the borrower

  // False if the ticket has been taken already, or is not valid any more.
  bool take(const Ticket& ticket);
  // Of a ticket that is held, or, if that is not wanted at all, of one that has only been sent.
  void giveBack(const Ticket& ticket);

 private:
  struct Place;
  TicketTable(int fd, Place* places) : fd_(fd), places_(places) {}
  static TicketTable* map(int fd);

  const int fd_;
  Place* const places_;
  uint32_t next_ = 0; // where the search for a free place begins
};

} // namespace kunlun::ipc
