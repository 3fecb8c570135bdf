// Checks, layouts and flat buffers of collectives, and the calls of the chip that several of them share.
#include "distributed/Buffers.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/c10d/Utils.hpp>

namespace kunlun::distributed {

namespace {

int64_t totalCount(const Tensors& tensors) {
  int64_t total = 0;
  for (const auto& tensor : tensors) {
    total += tensor.numel();
  }
  return total;
}

// The tensors lie one behind the other, as the chunks of one tensor do.
bool isOneRange(const Tensors& tensors) {
  for (size_t i = 1; i < tensors.size(); ++i) {
    const auto* end = static_cast<const char*>(tensors[i - 1].const_data_ptr()) + tensors[i - 1].nbytes();
    if (tensors[i].const_data_ptr() != end) {
      return false;
    }
  }
  return true;
}

} // namespace

void checkSameType(const at::Tensor& output, const at::Tensor& input) {
  TORCH_CHECK_VALUE(
      output.scalar_type() == input.scalar_type(),
      "output tensor must have the same type as input tensor, got ",
      output.scalar_type(),
      " and ",
      input.scalar_type());
}

void checkCount(int64_t actual, int64_t expected, const char* what) {
  TORCH_CHECK_VALUE(actual == expected, what, ": expected ", expected, " elements, got ", actual);
}

void checkList(const Tensors& list, int size, const char* what) {
  TORCH_CHECK_VALUE(
      list.size() == static_cast<size_t>(size),
      what,
      " should have as many tensors as the group has ranks, ",
      size,
      ", but has ",
      list.size());
}

void checkDisjoint(const Tensors& outputs) {
  std::vector<std::pair<uintptr_t, uintptr_t>> ranges;
  for (const auto& tensor : outputs) {
    if (tensor.numel() != 0) {
      const auto start = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
      ranges.emplace_back(start, start + tensor.nbytes());
    }
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i) {
    TORCH_CHECK_VALUE(ranges[i].first >= ranges[i - 1].second, "output tensors must not overlap in memory");
  }
}

bool haveEqualSizes(const Tensors& tensors) {
  return std::all_of(
      tensors.begin(), tensors.end(), [&](const at::Tensor& t) { return t.numel() == tensors.front().numel(); });
}

Layout layoutOf(const Tensors& tensors) {
  Layout layout;
  for (const auto& tensor : tensors) {
    layout.add(countOf(tensor));
  }
  return layout;
}

Layout layoutOf(const std::vector<int64_t>& splits, const at::Tensor& tensor, int size) {
  c10d::checkSplitSizes(splits, tensor, size);
  const int64_t rows = tensor.size(0);
  const int64_t row = rows == 0 ? 0 : tensor.numel() / rows;
  Layout layout;
  for (int i = 0; i < size; ++i) {
    layout.add(static_cast<uint64_t>(row * (splits.empty() ? rows / size : splits[static_cast<size_t>(i)])));
  }
  return layout;
}

Flat::Flat(const Tensors& tensors) : tensors_(tensors), is_view_(isOneRange(tensors)) {
  flat_ = is_view_ ? tensors.front() : at::empty({totalCount(tensors)}, tensors.front().options());
}

at::Tensor Flat::of(const Tensors& tensors) {
  if (isOneRange(tensors)) {
    return tensors.front();
  }
  Tensors parts;
  for (const auto& tensor : tensors) {
    parts.push_back(tensor.reshape({-1}));
  }
  return at::cat(parts);
}

void Flat::scatterBack() {
  if (is_view_) {
    return;
  }
  int64_t start = 0;
  for (auto& tensor : tensors_) {
    tensor.copy_(flat_.narrow(0, start, tensor.numel()).view(tensor.sizes()));
    start += tensor.numel();
  }
}

void allReduce(Communicator& group, const at::Tensor& tensor, const kl_reduction& reduction, kl_stream stream) {
  group.allReduce(dataOf(tensor), dataOf(tensor), countOf(tensor), tensor.scalar_type(), reduction, stream);
}

void reduceTo(
    Communicator& group,
    const at::Tensor& input,
    void* output,
    const kl_reduction& reduction,
    int root,
    kl_stream stream) {
  group.reduce(dataOf(input), output, countOf(input), input.scalar_type(), reduction, root, stream);
}

void allGather(Communicator& group, const at::Tensor& input, void* output, kl_stream stream) {
  group.allGather(dataOf(input), output, countOf(input), input.scalar_type(), stream);
}

void reduceScatter(
    Communicator& group,
    void* input,
    const at::Tensor& output,
    const kl_reduction& reduction,
    kl_stream stream) {
  group.reduceScatter(input, dataOf(output), countOf(output), output.scalar_type(), reduction, stream);
}

} // namespace kunlun::distributed
