// The exchange of what everybody was called with.
#include "distributed/hosts/Agreement.h"

#include <cstring>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include "runtime/Error.h"

namespace kunlun::distributed::hosts {

namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor bytesOf(const Call& call) {
  auto bytes = at::empty({static_cast<int64_t>(sizeof(Call))}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), &call, sizeof(Call));
  return bytes;
}

Call callIn(const at::Tensor& bytes) {
  Call call;
  std::memcpy(&call, bytes.const_data_ptr(), sizeof(Call));
  return call;
}

bool areSame(const Call& a, const Call& b) {
  return std::strcmp(a.name, b.name) == 0 && a.dtype == b.dtype && a.reduction == b.reduction && a.root == b.root &&
      a.count == b.count;
}

// The same verdict on every rank, because all look at the same calls in the same order.
void compare(const std::vector<Call>& calls) {
  for (const Call& call : calls) {
    if (call.failure != KL_SUCCESS) {
      kl_error error{call.failure, -1, 0, {}, {}};
      std::snprintf(
          error.text,
          sizeof(error.text),
          "rank %d could not take part in %s, because its stream had failed: %s",
          call.rank,
          call.name,
          call.text);
      raise(error);
    }
  }
  for (const Call& call : calls) {
    TORCH_CHECK_VALUE(
        areSame(calls.front(), call),
        "ranks disagree: rank ",
        calls.front().rank,
        " called ",
        calls.front().describe(),
        ", rank ",
        call.rank,
        " called ",
        call.describe(),
        "; nothing was read or written");
  }
}

} // namespace

void Call::fail(const kl_error& error) {
  failure = error.code;
  std::snprintf(text, sizeof(text), "%.*s", static_cast<int>(sizeof(text)) - 1, error.text);
}

std::string Call::describe() const {
  std::string text = c10::str(name, "(");
  if (reduction >= 0) {
    constexpr const char* kNames[] = {"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM"};
    text += c10::str(kNames[reduction], ", ");
  }
  text += c10::str(c10::getDtypeNames(static_cast<c10::ScalarType>(dtype)).first, ", ", count, " elements");
  if (root >= 0) {
    text += c10::str(", root ", root);
  }
  return text + ")";
}

Call callOf(const char* name, c10::ScalarType dtype, uint64_t count, int rank, int root, int reduction) noexcept {
  Call call{};
  std::strncpy(call.name, name, sizeof(call.name) - 1);
  call.dtype = static_cast<int32_t>(dtype);
  call.reduction = reduction;
  call.root = root;
  call.rank = rank;
  call.count = count;
  return call;
}

void allGather(c10d::Backend& gloo, const at::Tensor& all, const at::Tensor& mine) {
  std::vector<Tensors> outputs(1);
  for (int64_t i = 0; i < all.size(0); ++i) {
    outputs.front().push_back(all.select(0, i));
  }
  Tensors inputs{mine};
  gloo.allgather(outputs, inputs)->wait();
}

void broadcast(c10d::Backend& gloo, at::Tensor data, int root) {
  Tensors tensors{std::move(data)};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  gloo.broadcast(tensors, options)->wait();
}

void agree(c10d::Backend& gloo, const Call& mine) {
  auto all = at::empty({gloo.getSize(), static_cast<int64_t>(sizeof(Call))}, at::kByte);
  allGather(gloo, all, bytesOf(mine));
  std::vector<Call> calls;
  for (int64_t i = 0; i < all.size(0); ++i) {
    calls.push_back(callIn(all.select(0, i)));
  }
  compare(calls);
}

void agreeAboutSizes(c10d::Backend& gloo, const std::vector<int64_t>& sent, const std::vector<int64_t>& received) {
  const int64_t n = gloo.getSize();
  auto mine = at::empty({2 * n}, at::kLong);
  std::copy(sent.begin(), sent.end(), mine.mutable_data_ptr<int64_t>());
  std::copy(received.begin(), received.end(), mine.mutable_data_ptr<int64_t>() + n);
  auto all = at::empty({n, 2 * n}, at::kLong);
  allGather(gloo, all, mine);
  const int64_t* table = all.const_data_ptr<int64_t>();
  for (int64_t from = 0; from < n; ++from) {
    for (int64_t to = 0; to < n; ++to) {
      const int64_t given = table[from * 2 * n + to];
      const int64_t expected = table[to * 2 * n + n + from];
      TORCH_CHECK_VALUE(
          given == expected,
          "ranks disagree: in all_to_all rank ",
          from,
          " sends ",
          given,
          " bytes to rank ",
          to,
          ", which expects ",
          expected,
          "; nothing was read or written");
    }
  }
}

void agreeWith(c10d::Backend& gloo, int peer, int tag, const Call& mine) {
  // The lower rank's words go under the first tag.
  const bool is_first = gloo.getRank() < peer;
  Tensors sent{bytesOf(mine)};
  Tensors received{at::empty({static_cast<int64_t>(sizeof(Call))}, at::kByte)};
  const auto sending = gloo.send(sent, peer, is_first ? tag : tag + 1);
  gloo.recv(received, peer, is_first ? tag + 1 : tag)->wait();
  sending->wait();
  const Call theirs = callIn(received.front());
  compare(is_first ? std::vector<Call>{mine, theirs} : std::vector<Call>{theirs, mine});
}

} // namespace kunlun::distributed::hosts
