// A stand-in for the vendor's library of collectives, to test the adapter over it without cards.
//
// It really moves and reduces data between processes, over sockets, in the order of each stream of the stand-in runtime
// (vendor_runtime.cpp, built with VENDOR_WORKS_AT_ONCE). It keeps to the rules that are known of the vendor's: a group
// takes one send and one receive for each peer, counts of all_to_all_v lie in device memory, and it knows seven types
// and five operations. Work whose peer is gone waits until the communicator is aborted, and then ends as if nothing had
// happened. Calls of ranks that do not match are a failure here, where the vendor's moves garbage.
//
// VENDOR_BEFORE_AVERAGE: an older library. VENDOR_OTHER_NUMBERS: other numbers than the adapter assumes.
// VENDOR_WITHOUT_ALL_TO_ALL_V, VENDOR_WITHOUT_ABORT: without these functions.
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

extern "C" int fake_launch(void* stream, std::function<int()>* work);
extern "C" int fake_is_on_device(const void* ptr, uint64_t bytes);

namespace {

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

bool isValid(int type, int op) {
#ifdef VENDOR_BEFORE_AVERAGE
  if (op >= 0 && op < kOps && kOpOf[op] == Average) {
    return false;
  }
#endif
  return type >= 0 && type < kTypes && op >= 0 && op < kOps;
}

Message sending(int socket, Header header, const void* from, size_t bytes) {
  header.bytes = bytes;
  Message message{socket, true, header, std::vector<char>(sizeof(Header) + bytes)};
  std::memcpy(message.data.data(), &header, sizeof(header));
  if (bytes != 0) {
    std::memcpy(message.data.data() + sizeof(header), from, bytes);
  }
  return message;
}

Message receiving(int socket, Header header, void* to, size_t bytes) {
  header.bytes = bytes;
  return {socket, false, header, std::vector<char>(sizeof(Header) + bytes), 0, to};
}

// Carries all of them out at once. Returns the failure of the stream.
int carryOut(const std::vector<const Context*>& contexts, std::vector<Message>& messages) {
  const auto is_aborted = [](const Context* context) { return context->is_aborted.load(); };
  for (;;) {
    std::vector<pollfd> waiting;
    for (Message& m : messages) {
      while (m.done < m.data.size()) {
        char* const at = m.data.data() + m.done;
        const size_t left = m.data.size() - m.done;
        const ssize_t n = m.is_send ? ::send(m.socket, at, left, MSG_DONTWAIT | MSG_NOSIGNAL)
                                    : ::recv(m.socket, at, left, MSG_DONTWAIT);
        if (n > 0) {
          m.done += static_cast<size_t>(n);
        } else {
          // What is gone is not looked at again: nobody tells the card.
          waiting.push_back(
              {n < 0 && errno == EAGAIN ? m.socket : -1, static_cast<short>(m.is_send ? POLLOUT : POLLIN), 0});
          break;
        }
        if (!m.is_send && m.done >= sizeof(Header) && std::memcmp(m.data.data(), &m.header, sizeof(Header)) != 0) {
          Header got;
          std::memcpy(&got, m.data.data(), sizeof(got));
          std::fprintf(
              stderr,
              "vendor_collectives: kind %u type %u op %u root %u bytes %llu meets kind %u type %u op %u root %u bytes "
              "%llu\n",
              m.header.kind,
              m.header.type,
              m.header.op,
              m.header.root,
              static_cast<unsigned long long>(m.header.bytes),
              got.kind,
              got.type,
              got.op,
              got.root,
              static_cast<unsigned long long>(got.bytes));
          return kKernelException;
        }
      }
    }
    if (waiting.empty()) {
      break;
    }
    if (std::any_of(contexts.begin(), contexts.end(), is_aborted)) {
      return 0;
    }
    poll(waiting.data(), waiting.size(), 20);
  }
  for (const Message& m : messages) {
    if (!m.is_send && m.to != nullptr && m.header.bytes != 0) {
      std::memcpy(m.to, m.data.data() + sizeof(Header), m.header.bytes);
    }
  }
  return 0;
}

float fromBFloat16(uint16_t half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

uint16_t toBFloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <class Wide, class Stored, class Load, class Store>
void reduceAs(const std::vector<const char*>& from, char* to, size_t count, Op op, Load load, Store store) {
  for (size_t i = 0; i < count; ++i) {
    Wide total{};
    for (size_t rank = 0; rank < from.size(); ++rank) {
      Stored stored;
      std::memcpy(&stored, from[rank] + i * sizeof(Stored), sizeof(Stored));
      const auto value = static_cast<Wide>(load(stored));
      total = rank == 0   ? value
          : op == Product ? static_cast<Wide>(total * value)
          : op == Min     ? std::min(total, value)
          : op == Max     ? std::max(total, value)
                          : static_cast<Wide>(total + value);
    }
    if (op == Average) {
      total = static_cast<Wide>(total / static_cast<Wide>(from.size()));
    }
    const Stored stored = store(total);
    std::memcpy(to + i * sizeof(Stored), &stored, sizeof(Stored));
  }
}

void reduceInto(const std::vector<const char*>& from, char* to, size_t count, Type type, Op op) {
  const auto same = [](auto value) { return value; };
  switch (type) {
    case UInt8:
      return reduceAs<uint8_t, uint8_t>(from, to, count, op, same, same);
    case Float:
      return reduceAs<float, float>(from, to, count, op, same, same);
    case Int32: // unsigned, because it wraps around
      return op == Min || op == Max ? reduceAs<int32_t, int32_t>(from, to, count, op, same, same)
                                    : reduceAs<uint32_t, uint32_t>(from, to, count, op, same, same);
    case Int64:
      return op == Min || op == Max ? reduceAs<int64_t, int64_t>(from, to, count, op, same, same)
                                    : reduceAs<uint64_t, uint64_t>(from, to, count, op, same, same);
    case Float16:
      return reduceAs<float, _Float16>(
          from, to, count, op, same, [](float value) { return static_cast<_Float16>(value); });
    case Float64:
      return reduceAs<double, double>(from, to, count, op, same, same);
    default:
      return reduceAs<float, uint16_t>(from, to, count, op, fromBFloat16, toBFloat16);
  }
}

int launch(void* stream, std::function<int()> work) {
  return fake_launch(stream, &work) == 0 ? 0 : kRuntimeError;
}

bool isMissing(const void* data, size_t bytes) {
  return bytes != 0 && fake_is_on_device(data, bytes) == 0;
}

// ---- groups ---------------------------------------------------------------

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

// ---- connecting -----------------------------------------------------------

sockaddr_un addressOf(const char* id, int rank, socklen_t* length) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const int n = std::snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "fake-bkcl-%.32s-%d", id, rank);
  *length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(n));
  return address;
}

} // namespace

EXPORT int bkcl_get_unique_id(char* id) {
  unsigned char random[16];
  if (getrandom(random, sizeof(random), 0) != sizeof(random)) {
    return kSystemError;
  }
  std::memset(id, 0, kIdBytes);
  for (int i = 0; i < 16; ++i) {
    std::snprintf(id + 2 * i, 3, "%02x", random[i]);
  }
  std::memcpy(id + kIdBytes - 4, "end", 4);
  return 0;
}

EXPORT int bkcl_init_rank(Context** out, int rank, int nranks, const char* id) {
  if (nranks < 1 || rank < 0 || rank >= nranks || std::memcmp(id + kIdBytes - 4, "end", 4) != 0) {
    return kInvalidArgument;
  }
  auto context = std::make_unique<Context>();
  context->rank = rank;
  context->nranks = nranks;
  context->sockets.assign(static_cast<size_t>(nranks), -1);
  socklen_t length;
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_un own = addressOf(id, rank, &length);
  if (bind(listener, reinterpret_cast<const sockaddr*>(&own), length) != 0 || listen(listener, nranks) != 0) {
    return kSystemError;
  }
  for (int peer = 0; peer < rank; ++peer) {
    const sockaddr_un address = addressOf(id, peer, &length);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    while (connect(fd, reinterpret_cast<const sockaddr*>(&address), length) != 0) {
      usleep(1000);
    }
    if (::send(fd, &rank, sizeof(rank), MSG_NOSIGNAL) != sizeof(rank)) {
      return kSystemError;
    }
    context->sockets[static_cast<size_t>(peer)] = fd;
  }
  for (int count = rank + 1; count < nranks; ++count) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    int peer = -1;
    if (::recv(fd, &peer, sizeof(peer), MSG_WAITALL) != sizeof(peer)) {
      return kSystemError;
    }
    context->sockets[static_cast<size_t>(peer)] = fd;
  }
  close(listener);
  *out = context.release();
  return 0;
}

EXPORT int bkcl_destroy_context(Context* context) {
  for (const int fd : context->sockets) {
    if (fd >= 0) {
      close(fd);
    }
  }
  delete context;
  return 0;
}

#ifndef VENDOR_WITHOUT_ABORT
EXPORT int bkcl_comm_abort(Context* context) {
  context->is_aborted = true; // it stays, because its work may still look at it
  return 0;
}
#endif

// ---- collectives ----------------------------------------------------------

EXPORT int bkcl_all_reduce(Context* c, const void* send, void* recv, size_t count, int type, int op, void* stream) {
  if (!isValid(type, op) || group_depth != 0) {
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
  if (!isValid(type, op) || group_depth != 0 || root < 0 || root >= c->nranks) {
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
  if (!isValid(type, 0) || group_depth != 0 || root < 0 || root >= c->nranks) {
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
  if (!isValid(type, 0) || group_depth != 0) {
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
  if (!isValid(type, op) || group_depth != 0) {
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
  const size_t array = sizeof(size_t) * static_cast<size_t>(c->nranks);
  if (!isValid(send_type, 0) || send_type != recv_type || group_depth != 0 || isMissing(send_counts, array) ||
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

EXPORT int bkcl_group_start() {
  ++group_depth;
  return 0;
}

EXPORT int bkcl_group_end() {
  return --group_depth == 0 ? runGroup() : 0;
}

EXPORT int bkcl_send(Context* c, const void* data, size_t count, int peer, int type, void* stream) {
  return isValid(type, 0)
      ? addTransfer({c, true, const_cast<void*>(data), count * kBytesOf[kTypeOf[type]], peer, type}, stream)
      : kInvalidArgument;
}

EXPORT int bkcl_recv(Context* c, void* data, size_t count, int peer, int type, void* stream) {
  return isValid(type, 0) ? addTransfer({c, false, data, count * kBytesOf[kTypeOf[type]], peer, type}, stream)
                          : kInvalidArgument;
}
