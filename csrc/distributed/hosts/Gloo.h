// torch's gloo, which carries what goes between hosts.
#pragma once

#include <chrono>
#include <functional>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace kunlun::distributed::hosts {

using GlooMaker = std::function<c10::intrusive_ptr<c10d::Backend>(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    std::chrono::milliseconds timeout)>;

// torch exports no C++ interface of gloo in its wheels, so the Python module brings this.
void setGlooMaker(GlooMaker maker);

// Waits for all ranks. GLOO_SOCKET_IFNAME names the network interface, as in torch.
c10::intrusive_ptr<c10d::Backend>
makeGloo(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout);

} // namespace kunlun::distributed::hosts
