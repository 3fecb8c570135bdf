// The collectives of ProcessGroupXCCL that move: checks, then what each asks of the chip.
#include "distributed/ProcessGroupXCCL.h"

#include <utility>

#include "distributed/Buffers.h"

namespace kunlun::distributed {

using c10d::OpType;

c10::intrusive_ptr<c10d::Work> ProcessGroupXCCL::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  const BatchGuard guard(*this);
  const at::Tensor& tensor = checkSingle(tensors);
  checkRoot(opts.rootRank);
  Tensors inputs = rank_ == opts.rootRank ? Tensors{tensor} : Tensors{};
  return launch(
      {OpType::BROADCAST, "xccl:broadcast", std::move(inputs), {tensor}, timeoutOr(opts.timeout), opts.asyncOp},
      [&](Communicator& group, kl_stream stream) {
        const int root = static_cast<int>(opts.rootRank);
        group.broadcast(dataOf(tensor), dataOf(tensor), countOf(tensor), tensor.scalar_type(), root, stream);
      });
}

c10::intrusive_ptr<c10d::Work>
ProcessGroupXCCL::allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  const BatchGuard guard(*this);
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
          group.allToAll(dataOf(input), sent, flat.data(), layoutOf(list), input.scalar_type(), stream);
        }
        flat.scatterBack();
      });
}

c10::intrusive_ptr<c10d::Work>
ProcessGroupXCCL::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) {
  const BatchGuard guard(*this);
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
  const BatchGuard guard(*this);
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
  const BatchGuard guard(*this);
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

c10::intrusive_ptr<c10d::Work> ProcessGroupXCCL::alltoall_base(
    at::Tensor& output,
    at::Tensor& input,
    std::vector<int64_t>& output_splits,
    std::vector<int64_t>& input_splits,
    const c10d::AllToAllOptions& opts) {
  const BatchGuard guard(*this);
  checkTensors({output, input});
  checkSameType(output, input);
  const Layout sent = layoutOf(input_splits, input, size_);
  const Layout received = layoutOf(output_splits, output, size_);
  return launch(
      {OpType::ALLTOALL_BASE, "xccl:all_to_all", {input}, {output}, timeoutOr(opts.timeout), opts.asyncOp},
      [&](Communicator& group, kl_stream stream) {
        group.allToAll(dataOf(input), sent, dataOf(output), received, input.scalar_type(), stream);
      });
}

c10::intrusive_ptr<c10d::Work>
ProcessGroupXCCL::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) {
  const BatchGuard guard(*this);
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
        const at::Tensor sent = Flat::of(inputs);
        group.allToAll(dataOf(sent), layoutOf(inputs), flat.data(), layoutOf(outputs), sent.scalar_type(), stream);
        flat.scatterBack();
      });
}

c10::intrusive_ptr<c10d::Work>
ProcessGroupXCCL::gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) {
  const BatchGuard guard(*this);
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
        void* const to = flat ? flat->data() : nullptr;
        const int root = static_cast<int>(opts.rootRank);
        group.gather(dataOf(input), to, countOf(input), input.scalar_type(), root, stream);
        if (flat) {
          flat->scatterBack();
        }
      });
}

c10::intrusive_ptr<c10d::Work>
ProcessGroupXCCL::scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts) {
  const BatchGuard guard(*this);
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
        const at::Tensor sent = list.empty() ? at::Tensor() : Flat::of(list);
        const void* const from = sent.defined() ? dataOf(sent) : nullptr;
        const int root = static_cast<int>(opts.rootRank);
        group.scatter(from, dataOf(output), countOf(output), output.scalar_type(), root, stream);
      });
}

} // namespace kunlun::distributed
