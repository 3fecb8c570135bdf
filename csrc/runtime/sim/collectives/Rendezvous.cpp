// Rendezvous of ranks over a socket of rank 0, which collects every rank's device memory and hands it to all. Whoever
// waits here asks the interrupt check now and then, so that a rank that died before it came is noticed.
#include "runtime/sim/collectives/Rendezvous.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "runtime/EnvXccl.h"
#include "runtime/sim/Device.h"
#include "runtime/sim/collectives/Socket.h"

namespace kunlun::sim {
namespace {

constexpr uint64_t kMagic = 0x6b6c78636f6d6d32; // also the version of what follows
constexpr std::chrono::seconds kGrace{5};       // for rank 0's explanation to arrive

struct Id {
  uint64_t magic;
  unsigned char token[16]; // what a process must know to be let in
  char socket[64];
  char host[64];
  int32_t pid;
};
static_assert(sizeof(Id) <= KL_COMM_ID_BYTES);

struct Hello {
  uint64_t magic;
  unsigned char token[16];
  uint32_t rank;
  uint32_t nranks;
};

struct Verdict {
  int32_t code; // kl_result
  uint32_t inline_bytes;
  char text[480];
};

struct Member {
  int32_t pid;
};

// Sockets that this process listens on, until the communicator is made.
struct Listeners {
  std::mutex lock; // guards sockets
  std::map<std::string, Descriptor> sockets;
};

Listeners& listeners() {
  static Listeners& value = *new Listeners;
  return value;
}

Descriptor openProcess(pid_t pid) {
  Descriptor process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!process.isOpen()) {
    raise(KL_ERROR_RUNTIME, -1, "cannot watch process %d of a peer: %s", static_cast<int>(pid), std::strerror(errno));
  }
  return process;
}

Descriptor duplicate(int fd) {
  Descriptor copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy.isOpen()) {
    raise(KL_ERROR_RUNTIME, -1, "cannot duplicate a file descriptor: %s", std::strerror(errno));
  }
  return copy;
}

Verdict verdictOf(const kl_error& error) {
  // Who was interrupted ends the rendezvous of the others, but they were not interrupted.
  Verdict verdict{error.code == KL_ERROR_INTERRUPTED ? KL_ERROR_RUNTIME : error.code, 0, {}};
  std::memcpy(verdict.text, error.text, sizeof(verdict.text) - 1);
  return verdict;
}

void obey(const Verdict& verdict) {
  if (verdict.code != KL_SUCCESS) {
    raise(static_cast<kl_result>(verdict.code), -1, "%.*s", static_cast<int>(sizeof(verdict.text)), verdict.text);
  }
}

struct Guest {
  Descriptor socket;
  Descriptor memory;
  Descriptor process;
  pid_t pid = 0;
};

// Rank 0.
class Host {
 public:
  Host(int device, uint32_t nranks, const Id& id, Deadline deadline, uint64_t timeout_ms)
      : nranks_(nranks), id_(id), deadline_(deadline), timeout_ms_(timeout_ms), guests_(nranks) {
    Listeners& all = listeners();
    std::lock_guard lock(all.lock);
    auto found = all.sockets.find(id.socket);
    if (found == all.sockets.end()) {
      raise(KL_ERROR_VALUE, device, "rank 0 must be the process that made the unique id, and use it once");
    }
    listener_ = std::move(found->second);
    all.sockets.erase(found);
    guests_[0].memory = duplicate(kunlun::sim::device(device).arena().fd());
    guests_[0].process = openProcess(getpid());
    guests_[0].pid = getpid();
  }

  Members run() {
    try {
      admitAll();
      const XcclEnv env = xcclEnv();
      const uint32_t inline_bytes = env.buffer_bytes;
      const ControlLayout layout(nranks_, inline_bytes);
      const Descriptor control(memfd_create("kunlun-xccl", MFD_CLOEXEC));
      if (!control.isOpen() || ftruncate(control.get(), static_cast<off_t>(layout.bytes())) != 0) {
        raise(KL_ERROR_RUNTIME, -1, "cannot make the memory that ranks share: %s", std::strerror(errno));
      }
      Members members;
      members.control = ControlBlock::open(control.get(), layout);
      layout.header(members.control->base()).settings = {env.algorithm, env.accumulate};
      introduce(control.get(), inline_bytes);
      for (uint32_t rank = 0; rank < nranks_; ++rank) {
        Guest& guest = guests_[rank];
        members.peers.push_back(Peer::open(std::move(guest.memory), std::move(guest.process), guest.pid));
      }
      for (uint32_t rank = 1; rank < nranks_; ++rank) {
        Verdict answer;
        receiveMessage(guests_[rank].socket, &answer, sizeof(answer), deadline_, step("joining", rank).c_str());
        obey(answer);
      }
      tellAll(Verdict{KL_SUCCESS, inline_bytes, {}});
      return members;
    } catch (const Failure& failure) {
      tellAll(verdictOf(failure.error));
      throw;
    }
  }

 private:
  std::string step(const char* what, uint32_t rank) const {
    return std::string(what) + " a communicator of " + std::to_string(nranks_) + " ranks, rank " + std::to_string(rank);
  }

  void admitAll() {
    std::vector<std::pair<Descriptor, pid_t>> waiting; // connected and not known yet
    for (uint32_t missing = nranks_ - 1; missing > 0;) {
      std::vector<pollfd> entries{{listener_.get(), POLLIN, 0}};
      for (const auto& [socket, pid] : waiting) {
        entries.push_back({socket.get(), POLLIN, 0});
      }
      const int ready = pollUntil(entries.data(), entries.size(), deadline_, "waiting for the ranks of a communicator");
      if (ready == 0) {
        raiseMissing();
      }
      for (size_t i = entries.size(); i-- > 1;) {
        if (entries[i].revents != 0) {
          auto [socket, pid] = std::move(waiting[i - 1]);
          waiting.erase(waiting.begin() + static_cast<ptrdiff_t>(i - 1));
          missing -= admit(std::move(socket), pid) ? 1 : 0;
        }
      }
      if (entries[0].revents != 0) {
        pid_t pid = 0;
        if (Descriptor socket = acceptFrom(listener_, &pid); socket.isOpen()) {
          waiting.emplace_back(std::move(socket), pid);
        }
      }
    }
  }

  // Whoever does not know the token is turned away; whoever knows it and says something else than expected ends the
  // rendezvous for all.
  bool admit(Descriptor socket, pid_t pid) {
    Hello hello{};
    std::vector<Descriptor> descriptors;
    try {
      descriptors = receiveMessage(socket, &hello, sizeof(hello), std::chrono::steady_clock::now(), "introduction");
    } catch (const Failure&) {
      return false; // he left again, or speaks another protocol
    }
    if (hello.magic != kMagic || std::memcmp(hello.token, id_.token, sizeof(hello.token)) != 0 ||
        descriptors.size() != 1) {
      return false;
    }
    std::string wrong;
    if (hello.nranks != nranks_) {
      wrong = "rank 0 calls for " + std::to_string(nranks_) + " ranks and rank " + std::to_string(hello.rank) +
          " for " + std::to_string(hello.nranks);
    } else if (hello.rank == 0 || hello.rank >= nranks_ || guests_[hello.rank].socket.isOpen()) {
      wrong = "two processes call themselves rank " + std::to_string(hello.rank);
    }
    if (!wrong.empty()) {
      const Verdict verdict =
          verdictOf(makeError(KL_ERROR_VALUE, -1, "", 0, ("cannot make a communicator: " + wrong).c_str()));
      sendMessage(socket, &verdict, sizeof(verdict), {}, deadline_, "refusing a rank");
      raise(KL_ERROR_VALUE, -1, "%s", verdict.text);
    }
    Guest& guest = guests_[hello.rank];
    guest.process = openProcess(pid);
    guest.memory = std::move(descriptors[0]);
    guest.pid = pid;
    guest.socket = std::move(socket);
    return true;
  }

  [[noreturn]] void raiseMissing() {
    std::string ranks;
    for (uint32_t rank = 1; rank < nranks_; ++rank) {
      if (!guests_[rank].socket.isOpen()) {
        ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
      }
    }
    raise(
        KL_ERROR_RUNTIME,
        -1,
        "timed out after %.1f s: of %u ranks these never joined the communicator: %s",
        static_cast<double>(timeout_ms_) * 1e-3,
        nranks_,
        ranks.c_str());
  }

  void introduce(int control, uint32_t inline_bytes) {
    const Verdict welcome{KL_SUCCESS, inline_bytes, {}};
    for (uint32_t rank = 1; rank < nranks_; ++rank) {
      const std::string what = step("introducing the ranks of", rank);
      sendMessage(guests_[rank].socket, &welcome, sizeof(welcome), {control}, deadline_, what.c_str());
      for (const Guest& guest : guests_) {
        const Member member{guest.pid};
        sendMessage(
            guests_[rank].socket,
            &member,
            sizeof(member),
            {guest.memory.get(), guest.process.get()},
            deadline_,
            what.c_str());
      }
    }
  }

  void tellAll(const Verdict& verdict) {
    for (uint32_t rank = 1; rank < nranks_; ++rank) {
      if (guests_[rank].socket.isOpen()) {
        try {
          sendMessage(
              guests_[rank].socket,
              &verdict,
              sizeof(verdict),
              {},
              std::chrono::steady_clock::now() + kGrace,
              "verdict");
        } catch (const Failure&) {
          // A rank that is gone needs no answer; the others learn of it when they first wait for it.
          continue;
        }
      }
    }
  }

  const uint32_t nranks_;
  const Id& id_;
  const Deadline deadline_;
  const uint64_t timeout_ms_;
  std::vector<Guest> guests_; // by rank
  Descriptor listener_;
};

// Every other rank.
Members join(int device, uint32_t rank, uint32_t nranks, const Id& id, Deadline deadline) {
  // Rank 0 explains a failure to all, so it is given a little longer than ourselves.
  const Deadline patience = deadline + kGrace;
  const Descriptor socket = connectTo(id.socket);
  if (!socket.isOpen()) {
    raise(
        KL_ERROR_RUNTIME,
        device,
        "rank 0 of the communicator (process %d on host %s) does not listen any more, or is not on this host; ranks of "
        "simulated devices meet in shared memory",
        id.pid,
        id.host);
  }
  Hello hello{kMagic, {}, rank, nranks};
  std::memcpy(hello.token, id.token, sizeof(hello.token));
  const int memory = kunlun::sim::device(device).arena().fd();
  sendMessage(socket, &hello, sizeof(hello), {memory}, deadline, "joining a communicator");

  Verdict welcome;
  const auto control =
      receiveMessage(socket, &welcome, sizeof(welcome), patience, "waiting for rank 0 to introduce all ranks");
  obey(welcome);
  Verdict answer{KL_SUCCESS, 0, {}};
  Members members;
  try {
    if (control.size() != 1) {
      raise(KL_ERROR_RUNTIME, device, "rank 0 sent no shared memory");
    }
    members.control = ControlBlock::open(control[0].get(), ControlLayout(nranks, welcome.inline_bytes));
    for (uint32_t i = 0; i < nranks; ++i) {
      Member member;
      auto descriptors = receiveMessage(socket, &member, sizeof(member), patience, "introduction of a rank");
      if (descriptors.size() != 2) {
        raise(KL_ERROR_RUNTIME, device, "rank 0 sent no device memory of rank %u", i);
      }
      members.peers.push_back(Peer::open(std::move(descriptors[0]), std::move(descriptors[1]), member.pid));
    }
  } catch (const Failure& failure) {
    answer = verdictOf(failure.error);
    sendMessage(socket, &answer, sizeof(answer), {}, patience, "telling rank 0 of a failure");
    throw;
  }
  sendMessage(socket, &answer, sizeof(answer), {}, patience, "joining a communicator");
  Verdict last;
  receiveMessage(socket, &last, sizeof(last), patience, "waiting for every rank to join");
  obey(last);
  return members;
}

} // namespace

std::shared_ptr<ControlBlock> ControlBlock::open(int fd, const ControlLayout& layout) {
  struct Known {
    std::mutex lock; // guards blocks
    std::map<std::pair<dev_t, ino_t>, std::weak_ptr<ControlBlock>> blocks;
  };
  static Known& known = *new Known;
  struct stat file{};
  if (fstat(fd, &file) != 0) {
    raise(KL_ERROR_RUNTIME, -1, "cannot look at the memory that ranks share: %s", std::strerror(errno));
  }
  std::lock_guard lock(known.lock);
  std::erase_if(known.blocks, [](const auto& entry) { return entry.second.expired(); });
  auto& place = known.blocks[{file.st_dev, file.st_ino}];
  auto block = place.lock();
  if (block == nullptr) {
    block = std::make_shared<ControlBlock>(fd, layout);
    place = block;
  }
  return block;
}

ControlBlock::ControlBlock(int fd, const ControlLayout& layout) : layout_(layout) {
  base_ = mmap(nullptr, layout.bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base_ == MAP_FAILED || madvise(base_, layout.bytes(), MADV_DONTFORK) != 0) {
    raise(KL_ERROR_OUT_OF_MEMORY, -1, "cannot map the memory that ranks share: %s", std::strerror(errno));
  }
}

ControlBlock::~ControlBlock() {
  munmap(base_, layout_.bytes());
}

void makeUniqueId(kl_comm_id* out) {
  Id id{};
  id.magic = kMagic;
  id.pid = getpid();
  unsigned char random[32];
  if (getrandom(random, sizeof(random), 0) != sizeof(random) || gethostname(id.host, sizeof(id.host) - 1) != 0) {
    raise(KL_ERROR_RUNTIME, -1, "cannot make a unique id: %s", std::strerror(errno));
  }
  std::memcpy(id.token, random, sizeof(id.token));
  std::string name = "kunlun-xccl-";
  for (size_t i = sizeof(id.token); i < sizeof(random); ++i) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", random[i]);
    name += digits;
  }
  std::snprintf(id.socket, sizeof(id.socket), "%s", name.c_str());
  Descriptor listener = listenOn(name);
  {
    Listeners& all = listeners();
    std::lock_guard lock(all.lock);
    all.sockets.emplace(name, std::move(listener));
  }
  *out = kl_comm_id{};
  std::memcpy(out->bytes, &id, sizeof(id));
}

Members meet(int device, uint32_t rank, uint32_t nranks, const kl_comm_id& raw, uint64_t timeout_ms) {
  Id id;
  std::memcpy(&id, raw.bytes, sizeof(id));
  if (id.magic != kMagic) {
    raise(KL_ERROR_VALUE, device, "the unique id was not made by this version of the simulated chip");
  }
  const Deadline deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  return rank == 0 ? Host(device, nranks, id, deadline, timeout_ms).run() : join(device, rank, nranks, id, deadline);
}

} // namespace kunlun::sim
