// Python bindings: storages that are shared between processes.
#include <algorithm>
#include <string>
#include <tuple>

#include <torch/csrc/Exceptions.h>

#include "python/Module.h"
#include "runtime/ipc/SharedStorage.h"

namespace kunlun::python {

namespace {

using torch::wrap_pybind_function;
using torch::wrap_pybind_function_no_gil;

// pid, start time, fd, index, inode, generation
using TicketTuple = std::tuple<int32_t, uint64_t, int32_t, uint32_t, uint64_t, uint64_t>;
// allocation, offset, bytes, physical id, ticket
using SharedTuple = std::tuple<py::bytes, uint64_t, uint64_t, int32_t, TicketTuple>;

SharedTuple lendStorage(const at::Storage& storage) {
  ipc::SharedStorage shared;
  {
    py::gil_scoped_release released; // it waits for the stream
    shared = ipc::lend(storage);
  }
  const ipc::Ticket& ticket = shared.ticket;
  return {
      py::bytes(shared.memory.data(), shared.memory.size()),
      shared.offset,
      shared.bytes,
      shared.physical_id,
      {ticket.lender.pid, ticket.lender.start, ticket.fd, ticket.index, ticket.inode, ticket.generation}};
}

at::Storage borrowStorage(const SharedTuple& tuple) {
  const auto& [memory, offset, bytes, physical_id, ticket] = tuple;
  ipc::SharedStorage shared;
  const std::string_view handle = memory;
  TORCH_CHECK_VALUE(handle.size() == shared.memory.size(), "the handle of a shared kunlun storage is damaged");
  std::copy(handle.begin(), handle.end(), shared.memory.begin());
  shared.offset = offset;
  shared.bytes = bytes;
  shared.physical_id = physical_id;
  const auto& [pid, start, fd, index, inode, generation] = ticket;
  shared.ticket = {{pid, start}, fd, index, inode, generation};
  return ipc::borrow(shared);
}

} // namespace

void bindIpc(py::module_& module) {
  module.def("_lend_storage", wrap_pybind_function(&lendStorage));
  module.def("_borrow_storage", wrap_pybind_function(&borrowStorage));
  module.def("_ipc_collect", wrap_pybind_function_no_gil([] { return ipc::collect(/*look_for_dead=*/true); }));
}

} // namespace kunlun::python
