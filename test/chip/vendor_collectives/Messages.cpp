// Messages between two ranks.
#include "vendor_collectives.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace vendor {

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

} // namespace vendor
