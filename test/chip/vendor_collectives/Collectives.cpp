// Collectives, each of which is work on a stream.
#include "vendor_collectives.h"

#include <cstring>
#include <utility>

namespace vendor {

int launch(void* stream, std::function<int()> work) {
  return fake_launch(stream, &work) == 0 ? 0 : kRuntimeError;
}

bool isMissing(const void* data, size_t bytes) {
  return bytes != 0 && fake_is_on_device(data, bytes) == 0;
}

EXPORT int bkcl_all_reduce(Context* c, const void* send, void* recv, size_t count, int type, int op, void* stream) {
  if (const int failure = dueFailure()) {
    return failure;
  }
  if (!isValid(type, op) || isInGroup()) {
    return kInvalidArgument;
  }
  const size_t bytes = count * kBytesOf[kTypeOf[type]];
  if (isMissing(send, bytes) || isMissing(recv, bytes)) {
    return kInvalidArgument;
  }
  return launch(stream, [=] {
    const Header header{1, static_cast<uint32_t>(type), static_cast<uint32_t>(op), 0, 0};
    std::vector<std::vector<char>> all(static_cast<size_t>(c->nranks), std::vector<char>(bytes));
    std::vector<Message> messages;
    std::vector<const char*> from;
    for (int peer = 0; peer < c->nranks; ++peer) {
      const auto i = static_cast<size_t>(peer);
      from.push_back(all[i].data());
      if (peer == c->rank) {
        std::memcpy(all[i].data(), send, bytes);
      } else {
        messages.push_back(sending(c->sockets[i], header, send, bytes));
        messages.push_back(receiving(c->sockets[i], header, all[i].data(), bytes));
      }
    }
    const int failure = carryOut({c}, messages);
    if (failure == 0 && !c->is_aborted) {
      reduceInto(from, static_cast<char*>(recv), count, kTypeOf[type], kOpOf[op]);
    }
    return failure;
  });
}

EXPORT int
bkcl_reduce(Context* c, const void* send, void* recv, size_t count, int type, int op, int root, void* stream) {
  if (const int failure = dueFailure()) {
    return failure;
  }
  if (!isValid(type, op) || isInGroup() || root < 0 || root >= c->nranks) {
    return kInvalidArgument;
  }
  const size_t bytes = count * kBytesOf[kTypeOf[type]];
  if (isMissing(send, bytes) || (c->rank == root && isMissing(recv, bytes))) {
    return kInvalidArgument;
  }
  return launch(stream, [=] {
    const Header header{2, static_cast<uint32_t>(type), static_cast<uint32_t>(op), static_cast<uint32_t>(root), 0};
    std::vector<std::vector<char>> all(static_cast<size_t>(c->nranks), std::vector<char>(bytes));
    std::vector<Message> messages;
    std::vector<const char*> from;
    for (int peer = 0; peer < c->nranks; ++peer) {
      const auto i = static_cast<size_t>(peer);
      from.push_back(all[i].data());
      if (peer == c->rank) {
        std::memcpy(all[i].data(), send, bytes);
      } else if (c->rank == root) {
        messages.push_back(receiving(c->sockets[i], header, all[i].data(), bytes));
      }
    }
    if (c->rank != root) {
      messages.push_back(sending(c->sockets[static_cast<size_t>(root)], header, send, bytes));
    }
    const int failure = carryOut({c}, messages);
    if (failure == 0 && c->rank == root && !c->is_aborted) {
      reduceInto(from, static_cast<char*>(recv), count, kTypeOf[type], kOpOf[op]);
    }
    return failure;
  });
}

EXPORT int bkcl_broadcast(Context* c, const void* send, void* recv, size_t count, int type, int root, void* stream) {
  if (const int failure = dueFailure()) {
    return failure;
  }
  if (!isValid(type, 0) || isInGroup() || root < 0 || root >= c->nranks) {
    return kInvalidArgument;
  }
  const size_t bytes = count * kBytesOf[kTypeOf[type]];
  if (isMissing(recv, bytes) || (c->rank == root && isMissing(send, bytes))) {
    return kInvalidArgument;
  }
  return launch(stream, [=] {
    const Header header{3, static_cast<uint32_t>(type), 0, static_cast<uint32_t>(root), 0};
    std::vector<Message> messages;
    for (int peer = 0; peer < c->nranks; ++peer) {
      if (c->rank == root && peer != root) {
        messages.push_back(sending(c->sockets[static_cast<size_t>(peer)], header, send, bytes));
      }
    }
    if (c->rank == root) {
      std::memmove(recv, send, bytes);
    } else {
      messages.push_back(receiving(c->sockets[static_cast<size_t>(root)], header, recv, bytes));
    }
    return carryOut({c}, messages);
  });
}

EXPORT int bkcl_all_gather(Context* c, const void* send, size_t count, void* recv, int type, void* stream) {
  if (const int failure = dueFailure()) {
    return failure;
  }
  if (!isValid(type, 0) || isInGroup()) {
    return kInvalidArgument;
  }
  const size_t bytes = count * kBytesOf[kTypeOf[type]];
  if (isMissing(send, bytes) || isMissing(recv, bytes * static_cast<size_t>(c->nranks))) {
    return kInvalidArgument;
  }
  return launch(stream, [=] {
    const Header header{4, static_cast<uint32_t>(type), 0, 0, 0};
    std::vector<Message> messages;
    for (int peer = 0; peer < c->nranks; ++peer) {
      const auto i = static_cast<size_t>(peer);
      char* const place = static_cast<char*>(recv) + i * bytes;
      if (peer == c->rank) {
        std::memmove(place, send, bytes);
      } else {
        messages.push_back(sending(c->sockets[i], header, send, bytes));
        messages.push_back(receiving(c->sockets[i], header, place, bytes));
      }
    }
    return carryOut({c}, messages);
  });
}

EXPORT int bkcl_reduce_scatter(Context* c, const void* send, void* recv, size_t count, int type, int op, void* stream) {
  if (const int failure = dueFailure()) {
    return failure;
  }
  if (!isValid(type, op) || isInGroup()) {
    return kInvalidArgument;
  }
  const size_t bytes = count * kBytesOf[kTypeOf[type]];
  if (isMissing(send, bytes * static_cast<size_t>(c->nranks)) || isMissing(recv, bytes)) {
    return kInvalidArgument;
  }
  return launch(stream, [=] {
    const Header header{5, static_cast<uint32_t>(type), static_cast<uint32_t>(op), 0, 0};
    std::vector<std::vector<char>> all(static_cast<size_t>(c->nranks), std::vector<char>(bytes));
    std::vector<Message> messages;
    std::vector<const char*> from;
    for (int peer = 0; peer < c->nranks; ++peer) {
      const auto i = static_cast<size_t>(peer);
      const char* const part = static_cast<const char*>(send) + i * bytes;
      from.push_back(all[i].data());
      if (peer == c->rank) {
        std::memcpy(all[i].data(), part, bytes);
      } else {
        messages.push_back(sending(c->sockets[i], header, part, bytes));
        messages.push_back(receiving(c->sockets[i], header, all[i].data(), bytes));
      }
    }
    const int failure = carryOut({c}, messages);
    if (failure == 0 && !c->is_aborted) {
      reduceInto(from, static_cast<char*>(recv), count, kTypeOf[type], kOpOf[op]);
    }
    return failure;
  });
}

#ifndef VENDOR_WITHOUT_ALL_TO_ALL_V
EXPORT int bkcl_all_to_all_v(
    Context* c,
    const void* send,
    const size_t* send_counts,
    const size_t* send_displacements,
    int send_type,
    void* recv,
    const size_t* recv_counts,
    const size_t* recv_displacements,
    int recv_type,
    void* stream) {
  if (const int failure = dueFailure()) {
    return failure;
  }
  const size_t array = sizeof(size_t) * static_cast<size_t>(c->nranks);
  if (!isValid(send_type, 0) || send_type != recv_type || isInGroup() || isMissing(send_counts, array) ||
      isMissing(send_displacements, array) || isMissing(recv_counts, array) || isMissing(recv_displacements, array)) {
    return kInvalidArgument;
  }
  return launch(stream, [=] {
    const size_t bytes = kBytesOf[kTypeOf[send_type]];
    const Header header{6, static_cast<uint32_t>(send_type), 0, 0, 0};
    std::vector<Message> messages;
    for (int peer = 0; peer < c->nranks; ++peer) {
      const auto i = static_cast<size_t>(peer);
      const char* const from = static_cast<const char*>(send) + send_displacements[i] * bytes;
      char* const to = static_cast<char*>(recv) + recv_displacements[i] * bytes;
      if (peer == c->rank) {
        std::memmove(to, from, send_counts[i] * bytes);
      } else {
        messages.push_back(sending(c->sockets[i], header, from, send_counts[i] * bytes));
        messages.push_back(receiving(c->sockets[i], header, to, recv_counts[i] * bytes));
      }
    }
    return carryOut({c}, messages);
  });
}
#endif

} // namespace vendor
