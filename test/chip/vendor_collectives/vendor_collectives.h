// A stand-in for the vendor's library of collectives, to test the adapter over it without cards.
//
// It really moves and reduces data between processes, over sockets, in the order of each stream of the stand-in runtime
// (vendor_runtime.cpp, built with VENDOR_WORKS_AT_ONCE). It keeps to the rules that are known of the vendor's: a group
// takes one send and one receive for each peer, counts of all_to_all_v lie in device memory, and it knows seven types
// and five operations. Work whose peer is gone waits until the communicator is aborted, and then ends as if nothing had
// happened. Calls of ranks that do not match are a failure here, where the vendor's moves garbage.
//
// VENDOR_BEFORE_AVERAGE: an older library. VENDOR_OTHER_NUMBERS: other numbers than the adapter assumes.
// VENDOR_WITHOUT_ALL_TO_ALL_V, VENDOR_WITHOUT_ABORT: without these functions. VENDOR_SATURATES: sums of bytes stop at
// 255.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

extern "C" int fake_launch(void* stream, std::function<int()>* work);
extern "C" int fake_is_on_device(const void* ptr, uint64_t bytes);

namespace vendor {

constexpr int kInvalidArgument = 1;
constexpr int kRuntimeError = 2;
constexpr int kSystemError = 3;
constexpr int kKernelException = 714; // the runtime's

enum Type { UInt8, Float, Int32, Int64, Float16, Float64, BFloat16, kTypes };
enum Op { Add, Product, Min, Max, Average, kOps };

// The library's own numbers.
#ifdef VENDOR_OTHER_NUMBERS
constexpr Type kTypeOf[] = {UInt8, Float, Int32, Int64, BFloat16, Float64, Float16};
constexpr Op kOpOf[] = {Add, Product, Max, Min, Average};
#else
constexpr Type kTypeOf[] = {UInt8, Float, Int32, Int64, Float16, Float64, BFloat16};
constexpr Op kOpOf[] = {Add, Product, Min, Max, Average};
#endif
constexpr size_t kBytesOf[] = {1, 4, 4, 8, 2, 8, 2};

// Longer than what most libraries have; the last bytes tell whether all of it has travelled.
constexpr size_t kIdBytes = 4100;

struct Context {
  int rank, nranks;
  std::vector<int> sockets; // by rank
  std::atomic<bool> is_aborted{false};
};

// What both sides of a message have to agree about.
struct Header {
  uint32_t kind, type, op, root;
  uint64_t bytes;
};

struct Message {
  int socket;
  bool is_send;
  Header header;
  std::vector<char> data; // header and payload
  size_t done = 0;
  void* to = nullptr;
};

inline bool isValid(int type, int op) {
#ifdef VENDOR_BEFORE_AVERAGE
  if (op >= 0 && op < kOps && kOpOf[op] == Average) {
    return false;
  }
#endif
  return type >= 0 && type < kTypes && op >= 0 && op < kOps;
}

// Messages.cpp
Message sending(int socket, Header header, const void* from, size_t bytes);
Message receiving(int socket, Header header, void* to, size_t bytes);
// Carries all of them out at once. Returns the failure of the stream.
int carryOut(const std::vector<const Context*>& contexts, std::vector<Message>& messages);

// Reduce.cpp
void reduceInto(const std::vector<const char*>& from, char* to, size_t count, Type type, Op op);

// Groups.cpp
bool isInGroup();

// Faults.cpp: what a call has to answer instead of doing anything, or 0.
int dueFailure();

int launch(void* stream, std::function<int()> work);
bool isMissing(const void* data, size_t bytes);

} // namespace vendor
