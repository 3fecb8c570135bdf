// Sockets in the abstract name space, credentials, messages with file descriptors.
#include "runtime/sim/collectives/Socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/sim/Interrupt.h"
#include "runtime/sim/Status.h"

namespace kunlun::sim {
namespace {

constexpr int kBacklog = 1024;
constexpr int kSliceMilliseconds = 100; // between two looks at the interrupt check
constexpr size_t kMaxDescriptors = 250; // the kernel takes 253 in one message

socklen_t fillAddress(sockaddr_un& address, const std::string& name) {
  address = sockaddr_un{};
  address.sun_family = AF_UNIX;
  // The leading zero byte is what makes the name abstract.
  if (name.size() + 1 > sizeof(address.sun_path)) {
    raise(KL_ERROR_VALUE, -1, "the name of a rendezvous socket is too long");
  }
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

Descriptor makeSocket() {
  Descriptor made(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!made.isOpen()) {
    raise(KL_ERROR_RUNTIME, -1, "cannot make a socket for the rendezvous of ranks: %s", std::strerror(errno));
  }
  return made;
}

bool isOwn(const Descriptor& socket, pid_t* peer) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0 || credentials.uid != geteuid()) {
    return false;
  }
  if (peer != nullptr) {
    *peer = credentials.pid;
  }
  return true;
}

void await(const Descriptor& socket, short events, Deadline deadline, const char* what) {
  pollfd entry{socket.get(), events, 0};
  if (pollUntil(&entry, 1, deadline, what) == 0) {
    raise(KL_ERROR_RUNTIME, -1, "timed out: %s", what);
  }
}

} // namespace

Descriptor::~Descriptor() {
  if (fd_ >= 0) {
    close(fd_);
  }
}

int pollUntil(pollfd* entries, size_t count, Deadline deadline, const char* what) {
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count() + 1;
    const int slice = static_cast<int>(std::clamp<int64_t>(left, 0, kSliceMilliseconds));
    const int ready = poll(entries, count, slice);
    if (ready > 0 || (ready == 0 && left <= kSliceMilliseconds)) {
      return ready;
    }
    if (ready < 0 && errno != EINTR) {
      raise(KL_ERROR_RUNTIME, -1, "cannot wait for a peer (%s): %s", what, std::strerror(errno));
    }
    if (isInterrupted()) {
      raise(KL_ERROR_INTERRUPTED, -1, "the wait for other ranks was interrupted (%s)", what);
    }
  }
}

Descriptor listenOn(const std::string& name) {
  Descriptor listener = makeSocket();
  sockaddr_un address;
  const socklen_t size = fillAddress(address, name);
  if (bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(listener.get(), kBacklog) != 0) {
    raise(KL_ERROR_RUNTIME, -1, "cannot listen for the ranks of a communicator: %s", std::strerror(errno));
  }
  return listener;
}

Descriptor connectTo(const std::string& name) {
  Descriptor socket = makeSocket();
  sockaddr_un address;
  const socklen_t size = fillAddress(address, name);
  while (connect(socket.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) {
    if (errno == ECONNREFUSED) {
      return Descriptor();
    }
    if (errno != EINTR) {
      raise(KL_ERROR_RUNTIME, -1, "cannot reach rank 0 of the communicator: %s", std::strerror(errno));
    }
  }
  if (!isOwn(socket, nullptr)) {
    raise(KL_ERROR_RUNTIME, -1, "the process that listens for the ranks of this communicator belongs to another user");
  }
  return socket;
}

Descriptor acceptFrom(const Descriptor& listener, pid_t* peer) {
  Descriptor socket(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  return socket.isOpen() && isOwn(socket, peer) ? std::move(socket) : Descriptor();
}

void sendMessage(
    const Descriptor& socket,
    const void* data,
    size_t bytes,
    const std::vector<int>& descriptors,
    Deadline deadline,
    const char* what) {
  if (descriptors.size() > kMaxDescriptors) {
    raise(KL_ERROR_VALUE, -1, "too many file descriptors for one message");
  }
  iovec part{const_cast<void*>(data), bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))] = {};
  if (!descriptors.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
    cmsghdr* head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
    std::memcpy(CMSG_DATA(head), descriptors.data(), descriptors.size() * sizeof(int));
  }
  for (;;) {
    await(socket, POLLOUT, deadline, what);
    const ssize_t sent = sendmsg(socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent == static_cast<ssize_t>(bytes)) {
      return;
    }
    if (sent >= 0 || (errno != EINTR && errno != EAGAIN)) {
      raise(KL_ERROR_RUNTIME, -1, "lost a peer (%s): %s", what, sent >= 0 ? "short message" : std::strerror(errno));
    }
  }
}

std::vector<Descriptor>
receiveMessage(const Descriptor& socket, void* data, size_t bytes, Deadline deadline, const char* what) {
  iovec part{data, bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))];
  msghdr message{};
  ssize_t received;
  do {
    await(socket, POLLIN, deadline, what);
    message = msghdr{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    received = recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  } while (received < 0 && (errno == EINTR || errno == EAGAIN));
  const int reason = errno;
  std::vector<Descriptor> descriptors;
  if (received >= 0) {
    for (cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr; head = CMSG_NXTHDR(&message, head)) {
      if (head->cmsg_level == SOL_SOCKET && head->cmsg_type == SCM_RIGHTS) {
        for (size_t i = 0; i < (head->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
          int fd;
          std::memcpy(&fd, CMSG_DATA(head) + i * sizeof(int), sizeof(int));
          descriptors.emplace_back(fd);
        }
      }
    }
  }
  if (received != static_cast<ssize_t>(bytes) || (message.msg_flags & (MSG_CTRUNC | MSG_TRUNC)) != 0) {
    const char* why = received < 0 ? std::strerror(reason)
        : received == 0            ? "it closed the connection"
                                   : "it sent something else than expected";
    raise(KL_ERROR_RUNTIME, -1, "lost a peer (%s): %s", what, why);
  }
  return descriptors;
}

} // namespace kunlun::sim
