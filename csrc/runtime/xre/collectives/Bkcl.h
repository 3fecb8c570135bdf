// The vendor's library of collectives: the functions that the adapter calls, and everything that it assumes of them.
//
// The vendor publishes no description of the binary interface. Names and the order of arguments are those that public
// programs compile against. What those programs do not show is marked "assumed" below, and nothing outside this header
// depends on it. The numbers are tried on every communicator before they are used (Trial.h), so a wrong one ends in an
// error that names it and not in wrong data.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/chip/collectives.h"
#include "runtime/xre/Library.h"

namespace kunlun::xre {

// Assumed: a pointer, as its uses suggest.
using NativeComm = void*;

// Assumed: plain data of at most as many bytes as an id of the chip interface. Whether it wrote more is looked at.
using NativeId = void;

// Assumed: the numbers. The names are the vendor's.
enum NativeType : int {
  kNativeUInt8 = 0,
  kNativeFloat = 1,
  kNativeInt32 = 2,
  kNativeInt64 = 3,
  kNativeFloat16 = 4,
  kNativeFloat64 = 5,
  kNativeBFloat16 = 6,
  kNativeTypes = 7
};

// Assumed: the numbers. The average came last, and older libraries do not have it.
enum NativeOp : int {
  kNativeAdd = 0,
  kNativeProduct = 1,
  kNativeMin = 2,
  kNativeMax = 3,
  kNativeAverage = 4,
  kNativeOps = 5
};

// Results; anything else is passed on as a number.
enum NativeResult : int {
  kNativeSuccess = 0,
  kNativeInvalidArgument = 1,
  kNativeRuntimeError = 2,
  kNativeSystemError = 3,
  kNativeInternalError = 4
};

// Assumed: C linkage, and enumerations passed as int. Counts are of elements. Nothing compares the calls of ranks.
struct Bkcl {
  int (*get_unique_id)(NativeId* id);
  int (*init_rank)(NativeComm* out, int rank, int nranks, NativeId* id); // waits for all ranks; on the current device
  int (*destroy_context)(NativeComm comm);
  int (*comm_abort)(NativeComm comm); // may be NULL
  int (*group_start)();
  int (*group_end)();
  int (*all_reduce)(NativeComm, const void* send, void* recv, size_t count, int type, int op, NativeStream);
  int (*reduce)(NativeComm, const void* send, void* recv, size_t count, int type, int op, int root, NativeStream);
  int (*broadcast)(NativeComm, const void* send, void* recv, size_t count, int type, int root, NativeStream);
  int (*all_gather)(NativeComm, const void* send, size_t send_count, void* recv, int type, NativeStream);
  int (*reduce_scatter)(NativeComm, const void* send, void* recv, size_t recv_count, int type, int op, NativeStream);
  // The four arrays lie in device memory. May be NULL.
  int (*all_to_all_v)(
      NativeComm,
      const void* send,
      const size_t* send_counts,
      const size_t* send_displacements,
      int send_type,
      void* recv,
      const size_t* recv_counts,
      const size_t* recv_displacements,
      int recv_type,
      NativeStream);
  // Of several sends to one peer, a group takes one only.
  int (*send)(NativeComm, const void* data, size_t count, int peer, int type, NativeStream);
  int (*recv)(NativeComm, void* data, size_t count, int peer, int type, NativeStream);
};

// Opens the library at the first call; throws Failure that says what is missing, at each call anew.
const Bkcl& bkcl();

const char* nameOf(NativeType type);
const char* nameOf(NativeOp op);

// Raises what a result of the vendor's function `call` says, unless it is success.
void checkBkcl(int result, const char* call, int device);

} // namespace kunlun::xre
