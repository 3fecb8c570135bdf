// Sockets between the processes of one user on one host, which also carry file descriptors.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace kunlun::sim {

// Owns a file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor();

  int get() const {
    return fd_;
  }
  bool isOpen() const {
    return fd_ >= 0;
  }

 private:
  int fd_ = -1;
};

using Deadline = std::chrono::steady_clock::time_point;
// poll(2) until one of `entries` is ready; 0 when the deadline has passed. Raises KL_ERROR_INTERRUPTED when the
// interrupt check says so; `what` names the step.
int pollUntil(pollfd* entries, size_t count, Deadline deadline, const char* what);

// Sockets live in the abstract name space: they have no file, so nothing is left behind by a process that dies.
// Whoever connects is checked by his credentials; anybody but this user is turned away.
Descriptor listenOn(const std::string& name);
// NULL descriptor when nobody listens there, so that the caller can say what that means.
Descriptor connectTo(const std::string& name);
// Accepts one waiting connection of this user and gives its process id; a NULL descriptor when there was none or when
// it was somebody else's.
Descriptor acceptFrom(const Descriptor& listener, pid_t* peer);

// Whole messages of a fixed size. Raise on a lost peer or when the deadline has passed; `what` names the step.
void sendMessage(
    const Descriptor& socket,
    const void* data,
    size_t bytes,
    const std::vector<int>& descriptors,
    Deadline deadline,
    const char* what);
std::vector<Descriptor>
receiveMessage(const Descriptor& socket, void* data, size_t bytes, Deadline deadline, const char* what);

} // namespace kunlun::sim
