// Random operators: each takes a seed and an offset from the device's generator.
#include <ATen/MemoryOverlap.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "aten/Empty.h"
#include "aten/Launch.h"
#include "aten/random/Philox.h"

namespace kunlun::aten {

namespace {

using Generator = std::optional<at::Generator>;

OpHandle k_uniform{"aten::uniform_"};
OpHandle k_normal{"aten::normal_"};
OpHandle k_random{"aten::random_"};
OpHandle k_random_from{"aten::random_.from"};
OpHandle k_random_to{"aten::random_.to"};
OpHandle k_bernoulli_float{"aten::bernoulli_.float"};
OpHandle k_bernoulli_tensor{"aten::bernoulli_.Tensor"};
OpHandle k_exponential{"aten::exponential_"};
OpHandle k_cauchy{"aten::cauchy_"};
OpHandle k_log_normal{"aten::log_normal_"};
OpHandle k_geometric{"aten::geometric_"};
OpHandle k_multinomial{"aten::multinomial.out"};
OpHandle k_randperm{"aten::randperm.generator_out"};

// Every in-place random operator: self, its parameters, the generator.
template <class... Parameters>
at::Tensor& draw(OpHandle& op, at::Tensor& self, const Generator& generator, const Parameters&... parameters) {
  at::assert_no_internal_overlap(self);
  launch(op, self.device(), {}, self, parameters..., drawPhilox(generator, self.device()));
  return self;
}

at::Tensor& uniform_(at::Tensor& self, double from, double to, Generator generator) {
  TORCH_CHECK(from <= to, "uniform_ expects to return a [from, to) range, but found from=", from, " > to=", to);
  return draw(k_uniform, self, generator, from, to);
}

at::Tensor& normal_(at::Tensor& self, double mean, double std, Generator generator) {
  TORCH_CHECK(std >= 0.0, "normal expects std >= 0.0, but found std ", std);
  return draw(k_normal, self, generator, mean, std);
}

at::Tensor& random_(at::Tensor& self, Generator generator) {
  return draw(k_random, self, generator);
}

at::Tensor& randomFrom(at::Tensor& self, int64_t from, std::optional<int64_t> to, Generator generator) {
  TORCH_CHECK(
      !to.has_value() || from < *to,
      "random_ expects 'from' to be less than 'to', but got from=",
      from,
      " >= to=",
      to.value_or(0));
  return draw(k_random_from, self, generator, from, to);
}

at::Tensor& randomTo(at::Tensor& self, int64_t to, Generator generator) {
  TORCH_CHECK(to > 0, "random_ expects 'from' to be less than 'to', but got from=0 >= to=", to);
  return draw(k_random_to, self, generator, to);
}

at::Tensor& bernoulliFloat(at::Tensor& self, double p, Generator generator) {
  TORCH_CHECK(0 <= p && p <= 1, "bernoulli_ expects p to be in [0, 1], but got p=", p);
  return draw(k_bernoulli_float, self, generator, p);
}

at::Tensor& bernoulliTensor(at::Tensor& self, const at::Tensor& p, Generator generator) {
  return draw(k_bernoulli_tensor, self, generator, p);
}

at::Tensor& exponential_(at::Tensor& self, double lambda, Generator generator) {
  TORCH_CHECK(lambda > 0.0, "exponential_ expects lambda > 0.0, but found lambda=", lambda);
  return draw(k_exponential, self, generator, lambda);
}

at::Tensor& cauchy_(at::Tensor& self, double median, double sigma, Generator generator) {
  TORCH_CHECK(sigma > 0.0, "cauchy_ expects sigma > 0.0, but found sigma=", sigma);
  return draw(k_cauchy, self, generator, median, sigma);
}

at::Tensor& logNormal_(at::Tensor& self, double mean, double std, Generator generator) {
  TORCH_CHECK(std > 0.0, "log_normal_ expects std > 0.0, but found std=", std);
  return draw(k_log_normal, self, generator, mean, std);
}

at::Tensor& geometric_(at::Tensor& self, double p, Generator generator) {
  TORCH_CHECK(0 < p && p < 1, "geometric_ expects p to be in (0, 1), but got p=", p);
  return draw(k_geometric, self, generator, p);
}

// Which values are no probabilities the kernel finds.
at::Tensor&
multinomialOut(const at::Tensor& self, int64_t num_samples, bool replacement, Generator generator, at::Tensor& out) {
  TORCH_CHECK(
      out.device() == self.device(),
      "multinomial arguments must have the same device, got ",
      out.device(),
      " and ",
      self.device());
  TORCH_CHECK(self.dim() > 0 && self.dim() <= 2, "prob_dist must be 1 or 2 dim");
  TORCH_CHECK(
      at::isFloatingType(self.scalar_type()),
      "multinomial only supports floating-point dtypes for input, got: ",
      self.scalar_type());
  TORCH_CHECK(out.scalar_type() == at::kLong, "multinomial expects Long tensor out, got: ", out.scalar_type());
  TORCH_CHECK(num_samples > 0, "cannot sample n_sample <= 0 samples");
  const int64_t categories = self.size(-1);
  TORCH_CHECK(
      replacement || num_samples <= categories,
      "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  constexpr int64_t kMaxCategories = int64_t{1} << 24; // a float counts no further
  TORCH_CHECK(categories <= kMaxCategories, "number of categories cannot exceed 2^24");
  if (self.dim() == 1) {
    out.resize_({num_samples});
  } else {
    out.resize_({self.size(0), num_samples});
  }
  if (out.numel() != 0) {
    const std::array<const at::Tensor*, 1> outs{&out};
    launch(k_multinomial, self.device(), outs, self, num_samples, replacement, drawPhilox(generator, self.device()));
  }
  return out;
}

at::Tensor multinomial(const at::Tensor& self, int64_t num_samples, bool replacement, Generator generator) {
  auto out = empty({0}, at::kLong, self.device());
  return multinomialOut(self, num_samples, replacement, std::move(generator), out);
}

at::Tensor& randpermOut(int64_t n, Generator generator, at::Tensor& out) {
  TORCH_CHECK(n >= 0, "n must be non-negative, got", n);
  out.resize_({n});
  const std::array<const at::Tensor*, 1> outs{&out};
  launch(k_randperm, out.device(), outs, n, drawPhilox(generator, out.device()));
  return out;
}

std::tuple<at::Tensor, at::Tensor> nativeDropout(const at::Tensor& input, double p, std::optional<bool> train) {
  if (input.numel() == 0) {
    return {input, at::empty_like(input, input.options().dtype(at::kBool))};
  }
  TORCH_CHECK(p >= 0 && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  if (!train.value_or(true) || p == 0) {
    return {input.clone(), at::ones_like(input, input.options().dtype(at::kBool))};
  }
  if (p == 1) {
    return {at::zeros_like(input), at::zeros_like(input, input.options().dtype(at::kBool))};
  }
  auto mask = emptyLike(input, at::kBool);
  bernoulliFloat(mask, 1 - p, std::nullopt);
  auto out = at::mul(input, mask);
  out.mul_(1.0 / (1.0 - p));
  return {std::move(out), std::move(mask)};
}

at::Tensor nativeDropoutBackward(const at::Tensor& grad, const at::Tensor& mask, double scale) {
  auto result = at::mul(grad, mask);
  // A gradient of whole numbers becomes one of fractions, as on the CPU.
  return at::isFloatingType(result.scalar_type()) || at::isComplexType(result.scalar_type()) ? result.mul_(scale)
                                                                                             : result.mul(scale);
}

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("multinomial", TORCH_FN(multinomial));
  m.impl("multinomial.out", TORCH_FN(multinomialOut));
  m.impl("uniform_", TORCH_FN(uniform_));
  m.impl("normal_", TORCH_FN(normal_));
  m.impl("random_", TORCH_FN(random_));
  m.impl("random_.from", TORCH_FN(randomFrom));
  m.impl("random_.to", TORCH_FN(randomTo));
  m.impl("bernoulli_.float", TORCH_FN(bernoulliFloat));
  m.impl("bernoulli_.Tensor", TORCH_FN(bernoulliTensor));
  m.impl("exponential_", TORCH_FN(exponential_));
  m.impl("cauchy_", TORCH_FN(cauchy_));
  m.impl("log_normal_", TORCH_FN(logNormal_));
  m.impl("geometric_", TORCH_FN(geometric_));
  m.impl("randperm.generator_out", TORCH_FN(randpermOut));
  m.impl("native_dropout", TORCH_FN(nativeDropout));
  m.impl("native_dropout_backward", TORCH_FN(nativeDropoutBackward));
}

} // namespace kunlun::aten
