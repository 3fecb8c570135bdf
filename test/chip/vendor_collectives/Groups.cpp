// Groups of sends and receives.
#include "vendor_collectives.h"

#include <cstdio>
#include <cstring>
#include <utility>

namespace vendor {

namespace {

struct Transfer {
  Context* context;
  bool is_send;
  void* data;
  size_t bytes;
  int peer, type;
};

thread_local int group_depth = 0;
thread_local std::vector<Transfer> group;
thread_local void* group_stream = nullptr;

int runGroup() {
  const std::vector<Transfer> transfers = std::exchange(group, {});
  if (transfers.empty()) {
    return 0;
  }
  return launch(group_stream, [transfers] {
    std::vector<Message> messages;
    std::vector<const Context*> contexts;
    const Transfer* to_self = nullptr;
    const Transfer* from_self = nullptr;
    for (const Transfer& t : transfers) {
      contexts.push_back(t.context);
      if (t.peer == t.context->rank) {
        (t.is_send ? to_self : from_self) = &t;
        continue;
      }
      const int socket = t.context->sockets[static_cast<size_t>(t.peer)];
      const Header header{100, static_cast<uint32_t>(t.type), 0, 0, 0};
      messages.push_back(
          t.is_send ? sending(socket, header, t.data, t.bytes) : receiving(socket, header, t.data, t.bytes));
    }
    if (to_self != nullptr && from_self != nullptr && to_self->bytes == from_self->bytes) {
      std::memmove(from_self->data, to_self->data, to_self->bytes);
    } else if (to_self != nullptr || from_self != nullptr) {
      return kKernelException;
    }
    return carryOut(contexts, messages);
  });
}

int addTransfer(const Transfer& transfer, void* stream) {
  if (transfer.peer < 0 || transfer.peer >= transfer.context->nranks || isMissing(transfer.data, transfer.bytes)) {
    return kInvalidArgument;
  }
  for (const Transfer& other : group) {
    if (other.context == transfer.context && other.peer == transfer.peer && other.is_send == transfer.is_send) {
      std::fprintf(stderr, "BKCL dont support send to one peer multi times in one group\n");
      return kRuntimeError;
    }
  }
  if (!group.empty() && group_stream != stream) {
    return kInvalidArgument;
  }
  group.push_back(transfer);
  group_stream = stream;
  return group_depth == 0 ? runGroup() : 0;
}

} // namespace

bool isInGroup() {
  return group_depth != 0;
}

EXPORT int bkcl_group_start() {
  ++group_depth;
  return 0;
}

EXPORT int bkcl_group_end() {
  return --group_depth == 0 ? runGroup() : 0;
}

EXPORT int bkcl_send(Context* c, const void* data, size_t count, int peer, int type, void* stream) {
  if (const int failure = dueFailure()) {
    return failure;
  }
  return isValid(type, 0)
      ? addTransfer({c, true, const_cast<void*>(data), count * kBytesOf[kTypeOf[type]], peer, type}, stream)
      : kInvalidArgument;
}

EXPORT int bkcl_recv(Context* c, void* data, size_t count, int peer, int type, void* stream) {
  if (const int failure = dueFailure()) {
    return failure;
  }
  return isValid(type, 0) ? addTransfer({c, false, data, count * kBytesOf[kTypeOf[type]], peer, type}, stream)
                          : kInvalidArgument;
}

} // namespace vendor
