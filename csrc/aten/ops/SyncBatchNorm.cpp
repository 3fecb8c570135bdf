// What torch.nn.SyncBatchNorm is made of. torch has kernels of these operators for CUDA only, so they are composed here
// of others. Statistics of half types are float, as they are there.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/var_mean.h>
#include <torch/library.h>

namespace kunlun::aten {

namespace {

using OptionalTensor = std::optional<at::Tensor>;

void checkInput(const at::Tensor& input, const char* name) {
  TORCH_CHECK(input.dim() >= 2, name, ": expected an input of two dimensions at least, got ", input.sizes());
}

at::ScalarType statisticsDtype(const at::Tensor& input) {
  return c10::isReducedFloatingType(input.scalar_type()) ? at::kFloat : input.scalar_type();
}

// All dimensions but that of the channels.
at::DimVector reducedDims(const at::Tensor& input) {
  at::DimVector dims;
  for (int64_t dim = 0; dim < input.dim(); ++dim) {
    if (dim != 1) {
      dims.push_back(dim);
    }
  }
  return dims;
}

// One value for each channel, in the shape and the dtype in which it meets the input.
at::Tensor perChannel(const at::Tensor& values, const at::Tensor& input) {
  at::DimVector shape(input.dim(), 1);
  shape[1] = input.size(1);
  return values.to(statisticsDtype(input)).view(shape);
}

at::Tensor centred(const at::Tensor& input, const at::Tensor& mean) {
  return input.to(statisticsDtype(input)) - perChannel(mean, input);
}

// input: (N, C, ...). Returns the mean and 1 / sqrt(variance + eps) of each channel, both (C).
std::tuple<at::Tensor, at::Tensor> batchNormStats(const at::Tensor& input, double eps) {
  checkInput(input, "batch_norm_stats");
  auto [variance, mean] =
      at::var_mean(input.to(statisticsDtype(input)), reducedDims(input), /*correction=*/0, /*keepdim=*/false);
  return {std::move(mean), variance.add_(eps).rsqrt_()};
}

// means, invstds: (R, C), what each of R ranks has found for counts[r] values. Returns those of all values together and
// brings the running statistics up to date.
std::tuple<at::Tensor, at::Tensor> batchNormGatherStatsWithCounts(
    const at::Tensor& input,
    const at::Tensor& means,
    const at::Tensor& invstds,
    const OptionalTensor& running_mean,
    const OptionalTensor& running_var,
    double momentum,
    double eps,
    const at::Tensor& counts) {
  const auto dtype = statisticsDtype(input);
  const auto weights = counts.to(dtype).view({-1, 1});
  const auto total = weights.sum();
  const auto rank_means = means.to(dtype);
  auto mean = (rank_means * weights).sum(0).div_(total);
  const auto variances = invstds.to(dtype).pow(-2).sub_(eps);
  const auto squares = ((variances + (rank_means - mean).square_()) * weights).sum(0);
  auto invstd = (squares / total).add_(eps).rsqrt_();
  if (running_mean.has_value() && running_mean->defined()) {
    running_mean->mul_(1 - momentum).add_(mean, momentum);
  }
  if (running_var.has_value() && running_var->defined()) {
    running_var->mul_(1 - momentum).add_(squares / (total - 1), momentum);
  }
  return {std::move(mean), std::move(invstd)};
}

std::tuple<at::Tensor, at::Tensor> batchNormGatherStats(
    const at::Tensor& input,
    const at::Tensor& means,
    const at::Tensor& invstds,
    const OptionalTensor& running_mean,
    const OptionalTensor& running_var,
    double momentum,
    double eps,
    int64_t count) {
  const auto counts = at::full({means.size(0)}, count, means.options().dtype(statisticsDtype(input)));
  return batchNormGatherStatsWithCounts(input, means, invstds, running_mean, running_var, momentum, eps, counts);
}

at::Tensor batchNormElemt(
    const at::Tensor& input,
    const OptionalTensor& weight,
    const OptionalTensor& bias,
    const at::Tensor& mean,
    const at::Tensor& invstd,
    double) {
  checkInput(input, "batch_norm_elemt");
  auto scale = perChannel(invstd, input);
  if (weight.has_value() && weight->defined()) {
    scale = scale * perChannel(*weight, input);
  }
  auto output = centred(input, mean).mul_(scale);
  if (bias.has_value() && bias->defined()) {
    output.add_(perChannel(*bias, input));
  }
  return output.to(input.scalar_type());
}

// Returns the sums over each channel of the gradient and of the gradient times (input - mean), and the gradients of
// weight and bias; undefined where they are not asked for.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> batchNormBackwardReduce(
    const at::Tensor& grad,
    const at::Tensor& input,
    const at::Tensor& mean,
    const at::Tensor& invstd,
    const OptionalTensor& weight,
    bool needs_input,
    bool needs_weight,
    bool needs_bias) {
  checkInput(input, "batch_norm_backward_reduce");
  const auto dims = reducedDims(input);
  const auto gradient = grad.to(statisticsDtype(input));
  auto sum = gradient.sum(dims);
  auto sum_centred = (gradient * centred(input, mean)).sum(dims);
  const auto dtype = weight.has_value() && weight->defined() ? weight->scalar_type() : sum.scalar_type();
  at::Tensor grad_weight;
  at::Tensor grad_bias;
  if (needs_weight) {
    grad_weight = (sum_centred * invstd).to(dtype);
  }
  if (needs_bias) {
    grad_bias = sum.to(dtype, /*non_blocking=*/false, /*copy=*/true);
  }
  if (!needs_input) {
    sum = sum_centred = at::Tensor();
  }
  return {std::move(sum), std::move(sum_centred), std::move(grad_weight), std::move(grad_bias)};
}

at::Tensor batchNormBackwardElemt(
    const at::Tensor& grad,
    const at::Tensor& input,
    const at::Tensor& mean,
    const at::Tensor& invstd,
    const OptionalTensor& weight,
    const at::Tensor& sum,
    const at::Tensor& sum_centred,
    const at::Tensor& counts) {
  checkInput(input, "batch_norm_backward_elemt");
  const auto dtype = statisticsDtype(input);
  const auto total = counts.sum().to(dtype);
  auto scale = perChannel(invstd, input);
  const auto slope = perChannel(sum_centred / total, input) * scale.square();
  if (weight.has_value() && weight->defined()) {
    scale = scale * perChannel(*weight, input);
  }
  auto result = grad.to(dtype) - perChannel(sum / total, input);
  return result.sub_(centred(input, mean).mul_(slope)).mul_(scale).to(input.scalar_type());
}

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("batch_norm_stats", TORCH_FN(batchNormStats));
  m.impl("batch_norm_gather_stats", TORCH_FN(batchNormGatherStats));
  m.impl("batch_norm_gather_stats_with_counts", TORCH_FN(batchNormGatherStatsWithCounts));
  m.impl("batch_norm_elemt", TORCH_FN(batchNormElemt));
  m.impl("batch_norm_backward_reduce", TORCH_FN(batchNormBackwardReduce));
  m.impl("batch_norm_backward_elemt", TORCH_FN(batchNormBackwardElemt));
}

} // namespace kunlun::aten
