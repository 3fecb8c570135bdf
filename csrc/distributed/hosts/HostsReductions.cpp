// The arithmetic of reductions over several hosts.
#include <limits>

#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/bitwise_xor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <c10/util/Exception.h>

#include "distributed/hosts/HostsCommunicator.h"

namespace kunlun::distributed::hosts {

namespace {

// The dtype in which partial results travel and are combined. torch has few kernels for unsigned integers.
c10::ScalarType wideType(c10::ScalarType dtype) {
  if (dtype == at::kBool) {
    return at::kBool;
  }
  if (c10::isIntegralType(dtype, false)) {
    return at::kLong;
  }
  if (dtype == at::kComplexHalf) {
    return at::kComplexFloat;
  }
  return c10::isReducedFloatingType(dtype) ? at::kFloat : dtype;
}

// uint64 keeps its order as int64 when its highest bit is turned over, and its bits for everything else.
bool turnsOver(c10::ScalarType dtype, int32_t op) {
  return dtype == at::kUInt64 && (op == KL_REDUCE_MIN || op == KL_REDUCE_MAX);
}

at::Tensor turnedOver(const at::Tensor& wide) {
  return at::bitwise_xor(wide, at::Scalar(std::numeric_limits<int64_t>::min()));
}

at::Tensor widened(const at::Tensor& input, int32_t op) {
  if (input.scalar_type() == at::kUInt64) {
    const at::Tensor bits = input.view(at::kLong);
    return turnsOver(at::kUInt64, op) ? turnedOver(bits) : bits.clone();
  }
  return input.to(wideType(input.scalar_type()), /*non_blocking=*/false, /*copy=*/true);
}

void narrowInto(const at::Tensor& output, const at::Tensor& wide, int32_t op) {
  if (output.scalar_type() == at::kUInt64) {
    output.view(at::kLong).copy_(turnsOver(at::kUInt64, op) ? turnedOver(wide) : wide);
  } else {
    output.copy_(wide);
  }
}

// total = total op part
void combine(at::Tensor& total, const at::Tensor& part, int32_t op) {
  const bool is_bool = total.scalar_type() == at::kBool;
  switch (op) {
    case KL_REDUCE_SUM:
      is_bool ? total.bitwise_or_(part) : total.add_(part);
      return;
    case KL_REDUCE_PRODUCT:
      is_bool ? total.bitwise_and_(part) : total.mul_(part);
      return;
    case KL_REDUCE_MIN:
      total = is_bool ? at::bitwise_and(total, part) : at::minimum(total, part);
      return;
    case KL_REDUCE_MAX:
      total = is_bool ? at::bitwise_or(total, part) : at::maximum(total, part);
      return;
    case KL_REDUCE_BAND:
      total.bitwise_and_(part);
      return;
    case KL_REDUCE_BOR:
      total.bitwise_or_(part);
      return;
    case KL_REDUCE_BXOR:
      total.bitwise_xor_(part);
      return;
    default:
      TORCH_INTERNAL_ASSERT(false, "reduction ", op);
  }
}

void divide(at::Tensor& total, int n) {
  if (c10::isIntegralType(total.scalar_type(), false)) {
    total.div_(at::Scalar(n), "trunc");
  } else {
    total.div_(at::Scalar(n));
  }
}

} // namespace

void HostsCommunicator::reduceToAll(
    const char* name,
    const void* send,
    void* recv,
    uint64_t count,
    c10::ScalarType dtype,
    const kl_reduction& reduction,
    int root,
    kl_stream stream) {
  const Call what = agreed(callOf(name, dtype, count, rank_, root, reduction.op), stream);
  at::Tensor total = widened(view(send, count, dtype), reduction.op);
  kl_reduction within{reduction.op, 0, 1.0, nullptr};
  if (reduction.op == KL_REDUCE_PREMUL_SUM) {
    if (reduction.device_factor != nullptr) {
      total.mul_(view(reduction.device_factor, 1, dtype).to(total.scalar_type()));
    } else {
      total.mul_(at::Scalar(reduction.factor));
    }
    within.op = KL_REDUCE_SUM;
  } else if (reduction.op == KL_REDUCE_AVG && dtype != at::kBool) { // which the chip refuses
    within.op = KL_REDUCE_SUM;
  }
  void* const data = total.mutable_data_ptr();
  local_.reduce(data, data, count, total.scalar_type(), within, 0, stream);
  if (isLeader()) {
    Staging staging(stream);
    const auto bytes = static_cast<int64_t>(total.nbytes());
    const at::Tensor mine = staging.make({bytes});
    const at::Tensor all = staging.make({hosts(), bytes});
    staging.toHost(mine, data);
    links_->enqueue(stream, what, [gloo = links_->leaders(), mine, all](const Call& call) {
      agree(*gloo, call);
      hosts::allGather(*gloo, all, mine);
    });
    std::vector<at::Tensor> parts;
    for (int host = 0; host < hosts(); ++host) {
      parts.push_back(make(count, total.scalar_type()));
      staging.toDevice(parts.back().mutable_data_ptr(), all.select(0, host));
    }
    total = parts.front();
    for (int host = 1; host < hosts(); ++host) {
      combine(total, parts[static_cast<size_t>(host)], within.op);
    }
    if (reduction.op == KL_REDUCE_AVG) {
      divide(total, nranks_);
    }
    narrowInto(view(recv, count, dtype), total, reduction.op);
  }
  local_.broadcast(recv, recv, count, dtype, 0, stream);
}

void HostsCommunicator::allReduce(
    const void* send,
    void* recv,
    uint64_t count,
    c10::ScalarType dtype,
    const kl_reduction& reduction,
    kl_stream stream) {
  const Turn turn(*this, dtype);
  reduceToAll("all_reduce", send, recv, count, dtype, reduction, -1, stream);
}

void HostsCommunicator::reduce(
    const void* send,
    void* recv,
    uint64_t count,
    c10::ScalarType dtype,
    const kl_reduction& reduction,
    int root,
    kl_stream stream) {
  const Turn turn(*this, dtype);
  if (rank_ == root) {
    reduceToAll("reduce", send, recv, count, dtype, reduction, root, stream);
    return;
  }
  const at::Tensor all = make(count, dtype);
  reduceToAll("reduce", send, all.mutable_data_ptr(), count, dtype, reduction, root, stream);
}

void HostsCommunicator::reduceScatter(
    const void* send,
    void* recv,
    uint64_t count,
    c10::ScalarType dtype,
    const kl_reduction& reduction,
    kl_stream stream) {
  const Turn turn(*this, dtype);
  const at::Tensor all = make(count * static_cast<uint64_t>(nranks_), dtype);
  reduceToAll(
      "reduce_scatter",
      send,
      all.mutable_data_ptr(),
      count * static_cast<uint64_t>(nranks_),
      dtype,
      reduction,
      -1,
      stream);
  const auto n = static_cast<int64_t>(count);
  view(recv, count, dtype).copy_(all.narrow(0, rank_ * n, n));
}

} // namespace kunlun::distributed::hosts
