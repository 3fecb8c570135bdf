// Ranks find each other by an id, over sockets.
#include "vendor_collectives.h"

#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <memory>

namespace vendor {

namespace {

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

} // namespace vendor
