// torch's operators on symmetric memory: reductions that read the peers' memory directly, and writes of words.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include "runtime/Error.h"
#include "runtime/Stream.h"
#include "runtime/TorchVersion.h"
#include "runtime/chip/Loader.h"

namespace kunlun::distributed::symmetric_memory {

namespace {

using c10d::symmetric_memory::SymmetricMemory;

// A tensor in symmetric memory, on every rank of a group.
class Shared {
 public:
  Shared(const char* op, const at::Tensor& tensor, const std::string& group_name)
      : tensor_(tensor), handle_(c10d::symmetric_memory::rendezvous(tensor, group_name)) {
    TORCH_CHECK(
        handle_ != nullptr, op, ": the input must lie in symmetric memory (torch.distributed._symmetric_memory.empty)");
  }

  int rank() const {
    return handle_->get_rank();
  }
  int size() const {
    return handle_->get_world_size();
  }
  // Operators use the first channel, as those for CUDA do.
  void barrier() const {
    handle_->barrier(/*channel=*/0, /*timeout_ms=*/0);
  }
  // The tensor of a rank. The memory is the handle's, which the allocation keeps.
  at::Tensor of(int rank) const {
    if (rank == this->rank()) {
      return tensor_;
    }
    const auto offset = static_cast<const char*>(tensor_.const_data_ptr()) -
        static_cast<const char*>(handle_->get_buffer_ptrs()[static_cast<size_t>(this->rank())]);
    return at::for_blob(
               static_cast<char*>(handle_->get_buffer_ptrs()[static_cast<size_t>(rank)]) + offset, tensor_.sizes())
        .options(tensor_.options())
        .target_device(tensor_.device())
        .make_tensor();
  }
  // Part of the flat tensor that the rank reduces.
  at::Tensor part(int of_rank, int rank) const {
    const int64_t count = tensor_.numel();
    const int64_t each = (count + size() - 1) / size();
    const int64_t begin = std::min(count, each * rank);
    return of(of_rank).view({-1}).narrow(0, begin, std::min(count, begin + each) - begin);
  }

 private:
  const at::Tensor tensor_;
  const c10::intrusive_ptr<SymmetricMemory> handle_;
};

// In the order of the ranks, so that every rank gets the same bits. Half types are added up in fp32; the caller rounds
// by copying the result.
template <class PartOf>
at::Tensor sum(int size, PartOf&& part_of) {
  const at::Tensor first = part_of(0);
  const bool is_half = first.scalar_type() == at::kHalf || first.scalar_type() == at::kBFloat16;
  at::Tensor total = is_half ? first.to(at::kFloat) : size == 1 ? first.clone() : at::add(first, part_of(1));
  for (int rank = is_half ? 1 : 2; rank < size; ++rank) {
    total.add_(part_of(rank));
  }
  return total;
}

void checkReduction(const char* op, const at::Tensor& input, const at::Tensor& output, const std::string& reduce_op) {
  TORCH_CHECK(reduce_op == "sum", op, ": only \"sum\" is supported, got \"", reduce_op, "\"");
  TORCH_CHECK(input.is_contiguous(), op, ": the input must be contiguous");
  TORCH_CHECK(output.is_contiguous(), op, ": the output must be contiguous");
  TORCH_CHECK(
      input.scalar_type() == output.scalar_type(),
      op,
      ": input and output must have one dtype, got ",
      input.scalar_type(),
      " and ",
      output.scalar_type());
  TORCH_CHECK(
      output.device() == input.device(),
      op,
      ": input and output must be on one device, got ",
      input.device(),
      " and ",
      output.device());
  TORCH_CHECK_NOT_IMPLEMENTED(
      (at::isFloatingType(input.scalar_type()) && !at::isReducedFloatingType(input.scalar_type())) ||
          input.scalar_type() == at::kHalf || input.scalar_type() == at::kBFloat16 ||
          at::isIntegralType(input.scalar_type(), /*includeBool=*/false),
      "\"",
      op,
      "\" not implemented for '",
      input.scalar_type(),
      "'");
}

void checkSameSizes(const char* op, const at::Tensor& input, const at::Tensor& output) {
  TORCH_CHECK(
      input.sizes() == output.sizes(),
      op,
      ": input and output must have the same sizes, got ",
      input.sizes(),
      " and ",
      output.sizes());
}

at::Tensor oneShot(
    const at::Tensor& input,
    const std::optional<at::Tensor>& local_input,
    const std::string& reduce_op,
    const std::string& group_name,
    at::Tensor out) {
  constexpr const char* kOp = "one_shot_all_reduce";
  checkReduction(kOp, input, out, reduce_op);
  if (local_input.has_value()) {
    checkReduction(kOp, *local_input, out, reduce_op);
    TORCH_CHECK(
        local_input->numel() <= input.numel(),
        kOp,
        ": the local input has ",
        local_input->numel(),
        " elements, more than the symmetric buffer, which has ",
        input.numel());
    checkSameSizes(kOp, *local_input, out);
  } else {
    checkSameSizes(kOp, input, out);
  }
  if (out.numel() == 0) {
    return out;
  }
  const c10::DeviceGuard guard(input.device());
  const at::AutoDispatchBelowADInplaceOrView below;
  const Shared all(kOp, input.view({-1}).narrow(0, 0, out.numel()).view(out.sizes()), group_name);
  if (local_input.has_value()) {
    all.of(all.rank()).copy_(*local_input);
  }
  all.barrier();
  const at::Tensor total = sum(all.size(), [&](int rank) { return all.of(rank); });
  all.barrier(); // everybody has read: the inputs may change, and `out` may be one of them
  return out.copy_(total);
}

at::Tensor& oneShotOut(const at::Tensor& input, std::string reduce_op, std::string group_name, at::Tensor& out) {
  oneShot(input, std::nullopt, reduce_op, group_name, out);
  return out;
}

at::Tensor oneShotNew(const at::Tensor& input, std::string reduce_op, std::string group_name) {
  return oneShot(input, std::nullopt, reduce_op, group_name, at::empty_like(input));
}

at::Tensor& oneShotCopyOut(
    const at::Tensor& buffer,
    const at::Tensor& local_input,
    std::string reduce_op,
    std::string group_name,
    at::Tensor& out) {
  oneShot(buffer, local_input, reduce_op, group_name, out);
  return out;
}

at::Tensor
oneShotCopy(const at::Tensor& buffer, const at::Tensor& local_input, std::string reduce_op, std::string group_name) {
  return oneShot(buffer, local_input, reduce_op, group_name, at::empty_like(local_input));
}

// Each rank reduces its part, in every rank's memory: nobody else touches it until the barrier.
at::Tensor& twoShot(at::Tensor& input, std::string reduce_op, std::string group_name) {
  constexpr const char* kOp = "two_shot_all_reduce_";
  checkReduction(kOp, input, input, reduce_op);
  if (input.numel() == 0) {
    return input;
  }
  const c10::DeviceGuard guard(input.device());
  const at::AutoDispatchBelowADInplaceOrView below;
  const Shared all(kOp, input, group_name);
  all.barrier();
  if (all.part(all.rank(), all.rank()).numel() != 0) {
    const at::Tensor total = sum(all.size(), [&](int rank) { return all.part(rank, all.rank()); });
    for (int step = 0; step < all.size(); ++step) {
      all.part((all.rank() + step) % all.size(), all.rank()).copy_(total);
    }
  }
  all.barrier();
  return input;
}

// As for CUDA, each rank's part of the input has become the result, too.
at::Tensor& twoShotOut(at::Tensor& input, std::string reduce_op, std::string group_name, at::Tensor& output) {
  constexpr const char* kOp = "two_shot_all_reduce_out";
  checkReduction(kOp, input, output, reduce_op);
  checkSameSizes(kOp, input, output);
  if (input.numel() == 0) {
    return output;
  }
  const c10::DeviceGuard guard(input.device());
  const at::AutoDispatchBelowADInplaceOrView below;
  const Shared all(kOp, input, group_name);
  all.barrier();
  at::Tensor own = all.part(all.rank(), all.rank());
  if (own.numel() != 0) {
    own.copy_(sum(all.size(), [&](int rank) { return all.part(rank, all.rank()); }));
  }
  all.barrier();
  at::Tensor flat = output.view({-1});
  int64_t begin = 0;
  for (int rank = 0; rank < all.size(); ++rank) {
    const at::Tensor part = all.part(rank, rank);
    flat.narrow(0, begin, part.numel()).copy_(part);
    begin += part.numel();
  }
  all.barrier();
  return output;
}

at::Tensor& reduceScatterOut(at::Tensor& input, std::string group_name, bool split_last_dim, at::Tensor& output) {
  constexpr const char* kOp = "reduce_scatter_out";
  checkReduction(kOp, input, output, "sum");
  const c10::DeviceGuard guard(input.device());
  const at::AutoDispatchBelowADInplaceOrView below;
  const Shared all(kOp, input, group_name);
  if (split_last_dim) {
    TORCH_CHECK(input.dim() == output.dim() && input.dim() > 0, kOp, ": input and output must have as many dimensions");
  } else {
    TORCH_CHECK(
        input.dim() == 1 && output.dim() == 1,
        kOp,
        ": input and output must have one dimension unless the last one is split, got ",
        input.dim(),
        " and ",
        output.dim());
  }
  auto expected = input.sizes().vec();
  TORCH_CHECK(
      expected.back() % all.size() == 0,
      kOp,
      ": the last dimension of the input must be divisible by the ",
      all.size(),
      " ranks, got ",
      expected.back());
  expected.back() /= all.size();
  TORCH_CHECK(
      output.sizes() == c10::IntArrayRef(expected),
      kOp,
      ": the output must have the sizes ",
      c10::IntArrayRef(expected),
      ", got ",
      output.sizes());
  if (output.numel() == 0) {
    return output;
  }
  all.barrier();
  const at::Tensor total =
      sum(all.size(), [&](int rank) { return all.of(rank).narrow(-1, expected.back() * all.rank(), expected.back()); });
  all.barrier();
  return output.copy_(total);
}

[[noreturn]] void noMulticast(const char* op) {
  C10_THROW_ERROR(
      NotImplementedError,
      c10::str(
          op,
          ": kunlun devices have no multicast memory; use one_shot_all_reduce, two_shot_all_reduce_ or the collectives "
          "of torch.distributed"));
}

at::Tensor& multimemAllReduce(at::Tensor&, std::string, std::string) {
  noMulticast("multimem_all_reduce_");
}
at::Tensor multimemOneShot(const at::Tensor&, std::string, std::string) {
  noMulticast("multimem_one_shot_all_reduce");
}
at::Tensor& multimemOneShotOut(const at::Tensor&, std::string, std::string, at::Tensor&) {
  noMulticast("multimem_one_shot_all_reduce_out");
}
at::Tensor& multimemReduceOut(const at::Tensor&, std::string, int64_t, std::string, at::Tensor&) {
  noMulticast("multimem_one_shot_reduce_out");
}
at::Tensor& multimemAllGatherOut(const at::Tensor&, std::string, at::Tensor&) {
  noMulticast("multimem_all_gather_out");
}

uint32_t* wordsOf(const char* op, at::Tensor& input, int64_t offset, int64_t value, int64_t count) {
  TORCH_CHECK(
      input.dim() == 1 && input.is_contiguous() && input.scalar_type() == at::kUInt32,
      op,
      ": the input must be a flat, contiguous uint32 tensor");
  TORCH_CHECK(offset >= 0, op, ": offset must be at least 0, got ", offset);
  TORCH_CHECK(count > 0, op, ": count must be positive, got ", count);
  TORCH_CHECK(
      value >= 0 && value <= std::numeric_limits<uint32_t>::max(), op, ": val must be in [0, 4294967295], got ", value);
  TORCH_CHECK(
      count <= input.numel() && offset <= input.numel() - count,
      op,
      ": the words from ",
      offset,
      ", ",
      count,
      " of them, do not lie in the input, which has ",
      input.numel());
  return static_cast<uint32_t*>(input.mutable_data_ptr()) + offset;
}

// These two return a value: torch calls them so.
at::Tensor writeWord(at::Tensor& input, int64_t offset, int64_t value) {
  uint32_t* word = wordsOf("stream_write_value32_", input, offset, value, 1);
  const kl_stream stream = currentStreamHandle(input.device().index());
  check(chip::runtime().stream_write_value32(stream, word, static_cast<uint32_t>(value)), "stream_write_value32");
  afterLaunch(stream);
  return input;
}

at::Tensor fillWords(at::Tensor& input, int64_t offset, int64_t value, int64_t count) {
  wordsOf("memset32_", input, offset, value, count);
  input.narrow(0, offset, count).fill_(value);
  return input;
}

} // namespace

// torch before 2.13 declares these operators otherwise than it registers its own kernels, which every other has to
// match.
#if !KUNLUN_TORCH_BEFORE(2, 13)
TORCH_LIBRARY_IMPL(symm_mem, PrivateUse1, m) {
  m.impl("one_shot_all_reduce", TORCH_FN(oneShotNew));
  m.impl("one_shot_all_reduce_out", TORCH_FN(oneShotOut));
  m.impl("one_shot_all_reduce_copy", TORCH_FN(oneShotCopy));
  m.impl("one_shot_all_reduce_copy_out", TORCH_FN(oneShotCopyOut));
  m.impl("two_shot_all_reduce_", TORCH_FN(twoShot));
  m.impl("two_shot_all_reduce_out", TORCH_FN(twoShotOut));
  m.impl("reduce_scatter_out", TORCH_FN(reduceScatterOut));
  m.impl("stream_write_value32_", TORCH_FN(writeWord));
  m.impl("memset32_", TORCH_FN(fillWords));
  m.impl("multimem_all_reduce_", TORCH_FN(multimemAllReduce));
  m.impl("multimem_one_shot_all_reduce", TORCH_FN(multimemOneShot));
  m.impl("multimem_one_shot_all_reduce_out", TORCH_FN(multimemOneShotOut));
  m.impl("multimem_one_shot_reduce_out", TORCH_FN(multimemReduceOut));
  m.impl("multimem_all_gather_out", TORCH_FN(multimemAllGatherOut));
}
#endif

} // namespace kunlun::distributed::symmetric_memory
