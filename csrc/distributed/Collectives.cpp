// The collectives of ProcessGroupXCCL: checks, then what each asks of the chip.
#include "distributed/ProcessGroupXCCL.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "runtime/Error.h"
#include "runtime/frame/DTypes.h"

namespace kunlun::distributed {

namespace {

using c10d::OpType;
using frame::toChipDtype;
using Tensors = std::vector<at::Tensor>;

uint64_t countOf(const at::Tensor& tensor) {
  return static_cast<uint64_t>(tensor.numel());
}

void* dataOf(const at::Tensor& tensor) {
  return tensor.mutable_data_ptr();
}

// torch's reduction for the chip. Keeps the factor of PREMUL_SUM alive in `inputs`.
kl_reduction reductionOf(const c10d::ReduceOp& op, const at::Tensor& tensor, Tensors& inputs) {
  kl_reduction reduction{KL_REDUCE_SUM, 0, 1.0, nullptr};
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return reduction;
    case c10d::ReduceOp::AVG:
      reduction.op = KL_REDUCE_AVG;
      return reduction;
    case c10d::ReduceOp::PRODUCT:
      reduction.op = KL_REDUCE_PRODUCT;
      return reduction;
    case c10d::ReduceOp::MIN:
      reduction.op = KL_REDUCE_MIN;
      return reduction;
    case c10d::ReduceOp::MAX:
      reduction.op = KL_REDUCE_MAX;
      return reduction;
    case c10d::ReduceOp::BAND:
      reduction.op = KL_REDUCE_BAND;
      return reduction;
    case c10d::ReduceOp::BOR:
      reduction.op = KL_REDUCE_BOR;
      return reduction;
    case c10d::ReduceOp::BXOR:
      reduction.op = KL_REDUCE_BXOR;
      return reduction;
    case c10d::ReduceOp::PREMUL_SUM: {
      reduction.op = KL_REDUCE_PREMUL_SUM;
      const auto* supplement = dynamic_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
      TORCH_CHECK_VALUE(supplement != nullptr, "PREMUL_SUM needs a factor");
      const at::Tensor& factor = supplement->tensor_factor;
      if (!factor.defined()) {
        reduction.factor = supplement->double_factor;
      } else if (factor.device() == tensor.device()) {
        TORCH_CHECK_VALUE(
            factor.scalar_type() == tensor.scalar_type(),
            "the factor of PREMUL_SUM must have the tensor's dtype ",
            tensor.scalar_type(),
            ", not ",
            factor.scalar_type());
        reduction.device_factor = factor.const_data_ptr();
        inputs.push_back(factor);
      } else {
        reduction.factor = factor.item<double>();
      }
      return reduction;
    }
    default:
      C10_THROW_ERROR(ValueError, "Unhandled ReduceOp");
  }
}

void checkSameType(const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK_VALUE(
      a.scalar_type() == b.scalar_type(),
      "output tensor must have the same type as input tensor, got ",
      a.scalar_type(),
      " and ",
      b.scalar_type());
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

// Two results in one place would depend on the order of their arrival.
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

// Counts and displacements for the chip.
struct Layout {
  std::vector<uint64_t> counts;
  std::vector<uint64_t> displacements;

  void add(uint64_t count) {
    displacements.push_back(counts.empty() ? 0 : displacements.back() + counts.back());
    counts.push_back(count);
  }
};

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

// One buffer for a list of tensors: themselves where they are one range, otherwise a new one. Made and used under the
// guard of the operation's stream, so its memory is that stream's.
class Flat {
 public:
  explicit Flat(const Tensors& tensors) : tensors_(tensors), is_view_(isOneRange(tensors)) {
    flat_ = is_view_ ? tensors.front() : at::empty({totalCount(tensors)}, tensors.front().options());
  }
  // The contents of the list, for reading.
  static at::Tensor of(const Tensors& tensors) {
    if (isOneRange(tensors)) {
      return tensors.front();
    }
    Tensors parts;
    for (const auto& tensor : tensors) {
      parts.push_back(tensor.reshape({-1}));
    }
    return at::cat(parts);
  }
  void* data() const {
    return dataOf(flat_);
  }
  void scatterBack() {
    if (is_view_) {
      return;
    }
    int64_t start = 0;
    for (auto& tensor : tensors_) {
      tensor.copy_(flat_.narrow(0, start, tensor.numel()).view(tensor.sizes()));
      start += tensor.numel();
    }
  }

 private:
  Tensors tensors_;
  bool is_view_;
  at::Tensor flat_;
};

} // namespace

c10::intrusive_ptr<c10d::Work> ProcessGroupXCCL::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  const at::Tensor& tensor = checkSingle(tensors);
  Tensors inputs{tensor};
  const kl_reduction reduction = reductionOf(opts.reduceOp, tensor, inputs);
  return launch(
      {OpType::ALLREDUCE, "xccl:all_reduce", std::move(inputs), {tensor}, timeoutOr(opts.timeout), opts.asyncOp},
      [&](Communicator& group, kl_stream stream) {
        check(require(collectives().all_reduce, "all_reduce")(
            group.handle(),
            dataOf(tensor),
            dataOf(tensor),
            countOf(tensor),
            toChipDtype(tensor.scalar_type()),
            &reduction,
            stream));
      });
}

c10::intrusive_ptr<c10d::Work> ProcessGroupXCCL::allreduce_coalesced(
    Tensors& tensors,
    const c10d::AllreduceCoalescedOptions& opts) {
  checkTensors(tensors);
  checkDisjoint(tensors);
  Tensors inputs = tensors;
  std::vector<kl_reduction> reductions;
  for (const auto& tensor : tensors) {
    reductions.push_back(reductionOf(opts.reduceOp, tensor, inputs));
  }
  return launch(
      {OpType::ALLREDUCE_COALESCED,
       "xccl:allreduce_coalesced",
       std::move(inputs),
       tensors,
       timeoutOr(opts.timeout),
       opts.asyncOp},
      [&](Communicator& group, kl_stream stream) {
        for (size_t i = 0; i < tensors.size(); ++i) {
          check(require(collectives().all_reduce, "all_reduce")(
              group.handle(),
              dataOf(tensors[i]),
              dataOf(tensors[i]),
              countOf(tensors[i]),
              toChipDtype(tensors[i].scalar_type()),
              &reductions[i],
              stream));
        }
      });
}

c10::intrusive_ptr<c10d::Work> ProcessGroupXCCL::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  const at::Tensor& tensor = checkSingle(tensors);
  checkRoot(opts.rootRank);
  Tensors inputs{tensor};
  const kl_reduction reduction = reductionOf(opts.reduceOp, tensor, inputs);
  return launch(
      {OpType::REDUCE, "xccl:reduce", std::move(inputs), {tensor}, timeoutOr(opts.timeout), opts.asyncOp},
      [&](Communicator& group, kl_stream stream) {
        check(require(collectives().reduce, "reduce")(
            group.handle(),
            dataOf(tensor),
            dataOf(tensor),
            countOf(tensor),
            toChipDtype(tensor.scalar_type()),
            &reduction,
            static_cast<int32_t>(opts.rootRank),
            stream));
      });
}

c10::intrusive_ptr<c10d::Work> ProcessGroupXCCL::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  const at::Tensor& tensor = checkSingle(tensors);
  checkRoot(opts.rootRank);
  Tensors inputs = rank_ == opts.rootRank ? Tensors{tensor} : Tensors{};
  return launch(
      {OpType::BROADCAST, "xccl:broadcast", std::move(inputs), {tensor}, timeoutOr(opts.timeout), opts.asyncOp},
      [&](Communicator& group, kl_stream stream) {
        check(require(collectives().broadcast, "broadcast")(
            group.handle(),
            dataOf(tensor),
            dataOf(tensor),
            countOf(tensor),
            toChipDtype(tensor.scalar_type()),
            static_cast<int32_t>(opts.rootRank),
            stream));
      });
}

namespace {

void allGather(Communicator& group, const at::Tensor& input, void* output, kl_stream stream) {
  check(require(collectives().all_gather, "all_gather")(
      group.handle(), dataOf(input), output, countOf(input), toChipDtype(input.scalar_type()), stream));
}

void reduceScatter(
    Communicator& group,
    void* input,
    const at::Tensor& output,
    const kl_reduction& reduction,
    kl_stream stream) {
  check(require(collectives().reduce_scatter, "reduce_scatter")(
      group.handle(), input, dataOf(output), countOf(output), toChipDtype(output.scalar_type()), &reduction, stream));
}

void allToAll(
    Communicator& group,
    void* input,
    const Layout& sent,
    void* output,
    const Layout& received,
    c10::ScalarType dtype,
    kl_stream stream) {
  check(require(collectives().all_to_all_v, "all_to_all_v")(
      group.handle(),
      input,
      sent.counts.data(),
      sent.displacements.data(),
      output,
      received.counts.data(),
      received.displacements.data(),
      toChipDtype(dtype),
      stream));
}

} // namespace

c10::intrusive_ptr<c10d::Work>
ProcessGroupXCCL::allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  const at::Tensor& input = checkSingle(inputs);
  TORCH_CHECK_VALUE(outputs.size() == 1, "Expecting one list of output tensors but got ", outputs.size());
  const Tensors& list = outputs.front();
  checkList(list, size_, "the list of output tensors");
  checkTensors(list);
  checkDisjoint(list);
  for (const auto& output : list) {
    checkSameType(output, input);
  }
  checkCount(list[static_cast<size_t>(rank_)].numel(), input.numel(), "this rank's place in the output list");
  return launch(
      {OpType::ALLGATHER, "xccl:all_gather", {input}, list, timeoutOr(opts.timeout), opts.asyncOp},
      [&](Communicator& group, kl_stream stream) {
        Flat flat(list);
        if (haveEqualSizes(list)) {
          allGather(group, input, flat.data(), stream);
        } else {
          Layout sent;
          sent.counts.assign(static_cast<size_t>(size_), countOf(input));
          sent.displacements.assign(static_cast<size_t>(size_), 0); // the same to everybody
          allToAll(group, dataOf(input), sent, flat.data(), layoutOf(list), input.scalar_type(), stream);
        }
        flat.scatterBack();
      });
}

c10::intrusive_ptr<c10d::Work>
ProcessGroupXCCL::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) {
  checkTensors({output, input});
  checkSameType(output, input);
  TORCH_CHECK_VALUE(
      output.numel() == input.numel() * size_,
      "output tensor size must be equal to world_size times input tensor size");
  return launch(
      {OpType::_ALLGATHER_BASE, "xccl:_all_gather_base", {input}, {output}, timeoutOr(opts.timeout), opts.asyncOp},
      [&](Communicator& group, kl_stream stream) { allGather(group, input, dataOf(output), stream); });
}

c10::intrusive_ptr<c10d::Work> ProcessGroupXCCL::allgather_coalesced(
    std::vector<Tensors>& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& opts) {
  checkTensors(inputs);
  TORCH_CHECK_VALUE(
      outputs.size() == static_cast<size_t>(size_),
      "output lists should be one for each of the group's ",
      size_,
      " ranks");
  Tensors all;
  for (const auto& list : outputs) {
    checkTensors(list);
    TORCH_CHECK_VALUE(list.size() == inputs.size(), "each output list needs as many tensors as there are inputs");
    for (size_t i = 0; i < list.size(); ++i) {
      checkSameType(list[i], inputs[i]);
      checkCount(list[i].numel(), inputs[i].numel(), "an output tensor");
    }
    all.insert(all.end(), list.begin(), list.end());
  }
  checkDisjoint(all);
  return launch(
      {OpType::ALLGATHER_COALESCED,
       "xccl:ALLGATHER_coalesced",
       inputs,
       std::move(all),
       timeoutOr(opts.timeout),
       opts.asyncOp},
      [&](Communicator& group, kl_stream stream) {
        for (size_t i = 0; i < inputs.size(); ++i) {
          Tensors of_input;
          for (const auto& list : outputs) {
            of_input.push_back(list[i]);
          }
          Flat flat(of_input);
          allGather(group, inputs[i], flat.data(), stream);
          flat.scatterBack();
        }
      });
}

c10::intrusive_ptr<c10d::Work> ProcessGroupXCCL::allgather_into_tensor_coalesced(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::AllgatherOptions& opts) {
  checkTensors(inputs);
  checkTensors(outputs);
  checkDisjoint(outputs);
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "as many outputs as inputs are needed");
  for (size_t i = 0; i < inputs.size(); ++i) {
    checkSameType(outputs[i], inputs[i]);
    TORCH_CHECK_VALUE(
        outputs[i].numel() == inputs[i].numel() * size_,
        "output tensor size must be equal to world_size times input tensor size");
  }
  return launch(
      {OpType::COALESCED,
       "xccl:all_gather_into_tensor_coalesced",
       inputs,
       outputs,
       timeoutOr(opts.timeout),
       opts.asyncOp},
      [&](Communicator& group, kl_stream stream) {
        for (size_t i = 0; i < inputs.size(); ++i) {
          allGather(group, inputs[i], dataOf(outputs[i]), stream);
        }
      });
}

c10::intrusive_ptr<c10d::Work> ProcessGroupXCCL::reduce_scatter(
    Tensors& outputs,
    std::vector<Tensors>& inputs,
    const c10d::ReduceScatterOptions& opts) {
  const at::Tensor& output = checkSingle(outputs);
  TORCH_CHECK_VALUE(inputs.size() == 1, "Expecting one list of input tensors but got ", inputs.size());
  const Tensors& list = inputs.front();
  checkList(list, size_, "the list of input tensors");
  checkTensors(list);
  for (const auto& input : list) {
    checkSameType(output, input);
  }
  checkCount(output.numel(), list[static_cast<size_t>(rank_)].numel(), "output tensor");
  Tensors read = list;
  const kl_reduction reduction = reductionOf(opts.reduceOp, output, read);
  return launch(
      {OpType::REDUCE_SCATTER, "xccl:reduce_scatter", std::move(read), {output}, timeoutOr(opts.timeout), opts.asyncOp},
      [&](Communicator& group, kl_stream stream) {
        if (haveEqualSizes(list)) {
          reduceScatter(group, dataOf(Flat::of(list)), output, reduction, stream);
          return;
        }
        for (int root = 0; root < size_; ++root) {
          const at::Tensor& part = list[static_cast<size_t>(root)];
          check(require(collectives().reduce, "reduce")(
              group.handle(),
              dataOf(part),
              root == rank_ ? dataOf(output) : nullptr,
              countOf(part),
              toChipDtype(part.scalar_type()),
              &reduction,
              root,
              stream));
        }
      });
}

c10::intrusive_ptr<c10d::Work>
ProcessGroupXCCL::_reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) {
  checkTensors({output, input});
  checkSameType(output, input);
  TORCH_CHECK_VALUE(
      input.numel() == output.numel() * size_, "input tensor must be the same size as output size times world size");
  Tensors inputs{input};
  const kl_reduction reduction = reductionOf(opts.reduceOp, output, inputs);
  return launch(
      {OpType::_REDUCE_SCATTER_BASE,
       "xccl:_reduce_scatter_base",
       std::move(inputs),
       {output},
       timeoutOr(opts.timeout),
       opts.asyncOp},
      [&](Communicator& group, kl_stream stream) { reduceScatter(group, dataOf(input), output, reduction, stream); });
}

c10::intrusive_ptr<c10d::Work> ProcessGroupXCCL::reduce_scatter_tensor_coalesced(
    Tensors& outputs,
    Tensors& inputs,
    const c10d::ReduceScatterOptions& opts) {
  checkTensors(inputs);
  checkTensors(outputs);
  checkDisjoint(outputs);
  TORCH_CHECK_VALUE(outputs.size() == inputs.size(), "as many outputs as inputs are needed");
  Tensors read = inputs;
  std::vector<kl_reduction> reductions;
  for (size_t i = 0; i < inputs.size(); ++i) {
    checkSameType(outputs[i], inputs[i]);
    TORCH_CHECK_VALUE(
        inputs[i].numel() == outputs[i].numel() * size_,
        "input tensor must be the same size as output size times world size");
    reductions.push_back(reductionOf(opts.reduceOp, outputs[i], read));
  }
  return launch(
      {OpType::REDUCE_SCATTER_TENSOR_COALESCED,
       "xccl:reduce_scatter_tensor_coalesced",
       std::move(read),
       outputs,
       timeoutOr(opts.timeout),
       opts.asyncOp},
      [&](Communicator& group, kl_stream stream) {
        for (size_t i = 0; i < inputs.size(); ++i) {
          reduceScatter(group, dataOf(inputs[i]), outputs[i], reductions[i], stream);
        }
      });
}

c10::intrusive_ptr<c10d::Work> ProcessGroupXCCL::alltoall_base(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<int64_t>& output_splits,
    std::vector<int64_t>& input_splits,
    const c10d::AllToAllOptions& opts) {
  checkTensors({output, input});
  checkSameType(output, input);
  const Layout sent = layoutOf(input_splits, input, size_);
  const Layout received = layoutOf(output_splits, output, size_);
  return launch(
      {OpType::ALLTOALL_BASE, "xccl:all_to_all", {input}, {output}, timeoutOr(opts.timeout), opts.asyncOp},
      [&](Communicator& group, kl_stream stream) {
        allToAll(group, dataOf(input), sent, dataOf(output), received, input.scalar_type(), stream);
      });
}

c10::intrusive_ptr<c10d::Work>
ProcessGroupXCCL::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) {
  checkList(inputs, size_, "the list of input tensors");
  checkList(outputs, size_, "the list of output tensors");
  checkTensors(inputs);
  checkTensors(outputs);
  checkDisjoint(outputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    checkSameType(outputs[i], inputs.front());
    checkSameType(outputs.front(), inputs[i]);
  }
  return launch(
      {OpType::ALLTOALL, "xccl:all_to_all", inputs, outputs, timeoutOr(opts.timeout), opts.asyncOp},
      [&](Communicator& group, kl_stream stream) {
        Flat flat(outputs);
        allToAll(
            group,
            dataOf(Flat::of(inputs)),
            layoutOf(inputs),
            flat.data(),
            layoutOf(outputs),
            inputs.front().scalar_type(),
            stream);
        flat.scatterBack();
      });
}

c10::intrusive_ptr<c10d::Work>
ProcessGroupXCCL::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) {
  const at::Tensor& input = checkSingle(inputs);
  checkRoot(opts.rootRank);
  Tensors list;
  if (rank_ == opts.rootRank) {
    TORCH_CHECK_VALUE(outputs.size() == 1, "requires a single-element output list containing a list of tensors");
    list = outputs.front();
    checkList(list, size_, "the list of output tensors");
    checkTensors(list);
    checkDisjoint(list);
    for (const auto& output : list) {
      checkSameType(output, input);
      checkCount(output.numel(), input.numel(), "an output tensor of gather");
    }
  } else {
    TORCH_CHECK_VALUE(outputs.empty(), "requires empty output on non-root");
  }
  return launch(
      {OpType::GATHER, "xccl:gather", {input}, list, timeoutOr(opts.timeout), opts.asyncOp},
      [&](Communicator& group, kl_stream stream) {
        std::optional<Flat> flat;
        if (!list.empty()) {
          flat.emplace(list);
        }
        check(require(collectives().gather, "gather")(
            group.handle(),
            dataOf(input),
            flat ? flat->data() : nullptr,
            countOf(input),
            toChipDtype(input.scalar_type()),
            static_cast<int32_t>(opts.rootRank),
            stream));
        if (flat) {
          flat->scatterBack();
        }
      });
}

c10::intrusive_ptr<c10d::Work>
ProcessGroupXCCL::scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts) {
  const at::Tensor& output = checkSingle(outputs);
  checkRoot(opts.rootRank);
  Tensors list;
  if (rank_ == opts.rootRank) {
    TORCH_CHECK_VALUE(inputs.size() == 1, "requires a single-element input list containing a list of tensors");
    list = inputs.front();
    checkList(list, size_, "the list of input tensors");
    checkTensors(list);
    for (const auto& input : list) {
      checkSameType(output, input);
      checkCount(input.numel(), output.numel(), "an input tensor of scatter");
    }
  } else {
    TORCH_CHECK_VALUE(inputs.empty(), "requires empty input on non-root");
  }
  return launch(
      {OpType::SCATTER, "xccl:scatter", list, {output}, timeoutOr(opts.timeout), opts.asyncOp},
      [&](Communicator& group, kl_stream stream) {
        check(require(collectives().scatter, "scatter")(
            group.handle(),
            list.empty() ? nullptr : dataOf(Flat::of(list)),
            dataOf(output),
            countOf(output),
            toChipDtype(output.scalar_type()),
            static_cast<int32_t>(opts.rootRank),
            stream));
      });
}

} // namespace kunlun::distributed
