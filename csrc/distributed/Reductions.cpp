// The collectives of ProcessGroupXCCL that reduce: checks, then what each asks of the chip.
#include "distributed/ProcessGroupXCCL.h"

#include <utility>

#include "distributed/Buffers.h"
#include "runtime/Error.h"
#include "runtime/TorchVersion.h"

namespace kunlun::distributed {

using c10d::OpType;

namespace {

#if KUNLUN_TORCH_BEFORE(2, 12)
constexpr OpType kReduceScatterCoalesced = OpType::COALESCED;
#else
constexpr OpType kReduceScatterCoalesced = OpType::REDUCE_SCATTER_TENSOR_COALESCED;
#endif
#if KUNLUN_TORCH_BEFORE(2, 13)
using PreMulSumSupplement = c10d::NCCLPreMulSumSupplement;
#else
using c10d::PreMulSumSupplement;
#endif

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
      const auto* supplement = dynamic_cast<const PreMulSumSupplement*>(op.supplement_.get());
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

} // namespace

c10::intrusive_ptr<c10d::Work> ProcessGroupXCCL::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  const BatchGuard guard(*this);
  const at::Tensor& tensor = checkSingle(tensors);
  Tensors inputs{tensor};
  const kl_reduction reduction = reductionOf(opts.reduceOp, tensor, inputs);
  return launch(
      {OpType::ALLREDUCE, "xccl:all_reduce", std::move(inputs), {tensor}, timeoutOr(opts.timeout), opts.asyncOp},
      [&](Communicator& group, kl_stream stream) { allReduce(group, tensor, reduction, stream); });
}

c10::intrusive_ptr<c10d::Work> ProcessGroupXCCL::allreduce_coalesced(
    Tensors& tensors,
    const c10d::AllreduceCoalescedOptions& opts) {
  const BatchGuard guard(*this);
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
          allReduce(group, tensors[i], reductions[i], stream);
        }
      });
}

c10::intrusive_ptr<c10d::Work> ProcessGroupXCCL::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  const BatchGuard guard(*this);
  const at::Tensor& tensor = checkSingle(tensors);
  checkRoot(opts.rootRank);
  Tensors inputs{tensor};
  const kl_reduction reduction = reductionOf(opts.reduceOp, tensor, inputs);
  return launch(
      {OpType::REDUCE, "xccl:reduce", std::move(inputs), {tensor}, timeoutOr(opts.timeout), opts.asyncOp},
      [&](Communicator& group, kl_stream stream) {
        reduceTo(group, tensor, dataOf(tensor), reduction, static_cast<int32_t>(opts.rootRank), stream);
      });
}

c10::intrusive_ptr<c10d::Work> ProcessGroupXCCL::reduce_scatter(
    Tensors& outputs,
    std::vector<Tensors>& inputs,
    const c10d::ReduceScatterOptions& opts) {
  const BatchGuard guard(*this);
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
          reduceTo(group, part, root == rank_ ? dataOf(output) : nullptr, reduction, root, stream);
        }
      });
}

c10::intrusive_ptr<c10d::Work>
ProcessGroupXCCL::_reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) {
  const BatchGuard guard(*this);
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
  const BatchGuard guard(*this);
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
      {kReduceScatterCoalesced,
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

} // namespace kunlun::distributed
