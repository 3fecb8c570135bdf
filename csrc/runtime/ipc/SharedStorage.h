// Storages that several processes use: lending them out, and borrowing them.
#pragma once

#include <array>
#include <cstdint>
#include <functional>

#include <c10/core/Storage.h>

#include "runtime/ipc/Tickets.h"

namespace kunlun::ipc {

// All that another process of the same user needs to use a storage of this one. Plain data.
struct SharedStorage {
  std::array<char, 64> memory{}; // the driver's handle of the allocation
  uint64_t offset = 0;           // of the storage in the allocation
  uint64_t bytes = 0;
  int32_t physical_id = -1;
  Ticket ticket;
};

// Whether the borrower may read what the work enqueued so far writes, or knows by other means when to.
enum class Contents { Finished, AsTheyCome };

// Lends the storage to one other process. It waits for the work of the device if the contents are to be finished, keeps
// the storage alive until the borrower has let go of it or has died, and makes it impossible to resize. Raises for
// storages that are borrowed themselves, and for memory that does not come from the driver.
SharedStorage lend(const c10::Storage& storage, Contents contents = Contents::Finished);

// The storage of another process, which stays its owner. Each loan can be taken once; in the lending process itself
// that gives the very storage. Raises when the lender has ended.
c10::Storage borrow(const SharedStorage& shared);

// The same memory for the streams of the device `user`, which need not be the one that it lies on. Not for loans of
// this very process.
c10::DataPtr borrowFor(c10::DeviceIndex user, const SharedStorage& shared);

// Lets go of lent storages that nobody borrows any more; returns whether there were any. Borrowers that have died are
// looked for if `look_for_dead`, and otherwise once a second at most.
bool collect(bool look_for_dead = false);

// Whether a storage that is lent at present has its memory where `predicate` says.
bool anyLent(const std::function<bool(const void*)>& predicate);

} // namespace kunlun::ipc
