// Three operators of one's own, in the three ways an operator can come to the device kunlun.
#include <array>
#include <cmath>

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <torch/library.h>
#include <torch_xpu_kunlun/extension.h>

namespace {

// ---- 1. A CPU kernel alone. On kunlun it runs in the boxed tier: without a copy, but the caller waits for it. ----

at::Tensor clip_cpu(const at::Tensor& x, double limit) {
  return x.clamp(-limit, limit);
}

// ---- 2. A launcher. It checks, allocates the result, and puts a call frame on the stream. The chip's kernel of this
//         name is taken where its driver has one, else the CPU kernel runs on the chip's thread. ----

at::Tensor hypot3_cpu(const at::Tensor& x, const at::Tensor& y, const at::Tensor& z) {
  return (x * x + y * y + z * z).sqrt();
}

kunlun::aten::OpHandle hypot3_operator{"my_ops::hypot3"};

at::Tensor hypot3_kunlun(const at::Tensor& x, const at::Tensor& y, const at::Tensor& z) {
  TORCH_CHECK(x.sizes() == y.sizes() && x.sizes() == z.sizes(), "hypot3: x, y and z must have one shape");
  auto out = kunlun::aten::emptyLike(x);
  const std::array<const at::Tensor*, 1> outs{&out};
  kunlun::aten::launch(hypot3_operator, x.device(), outs, x, y, z);
  return out;
}

// ---- 3. Code of one's own on the stream. Here it is a C++ function that the chip's thread runs; on a card it would be
//         a kernel of the vendor's compiler, launched on `stream.handle()`. ----

at::Tensor scaled_add_kunlun(const at::Tensor& x, const at::Tensor& y, double alpha) {
  TORCH_CHECK(x.sizes() == y.sizes(), "scaled_add: x is ", x.sizes(), " and y is ", y.sizes());
  TORCH_CHECK_TYPE(
      x.scalar_type() == y.scalar_type() && x.is_floating_point(), "scaled_add: floating point of one dtype");
  TORCH_CHECK(x.device() == y.device(), "scaled_add: x is on ", x.device(), " and y on ", y.device());
  TORCH_CHECK_NOT_IMPLEMENTED(
      kunlun::isHostAddressable(x.device().index()), "scaled_add: this chip's memory cannot be reached by the host");
  const auto a = x.contiguous(), b = y.contiguous();
  auto out = kunlun::aten::empty(x.sizes(), x.scalar_type(), x.device());
  const auto stream = kunlun::getCurrentKunlunStream(x.device().index());
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "scaled_add", [&] {
    const auto* p = a.const_data_ptr<scalar_t>();
    const auto* q = b.const_data_ptr<scalar_t>();
    auto* result = out.mutable_data_ptr<scalar_t>();
    const int64_t count = out.numel();
    const auto factor = static_cast<scalar_t>(alpha);
    kunlun::launchHostFunction(
        stream,
        "my_ops::scaled_add",
        [=] {
          TORCH_CHECK_VALUE(std::isfinite(static_cast<double>(factor)), "alpha must be finite");
          at::parallel_for(0, count, 32768, [&](int64_t begin, int64_t end) {
            for (int64_t i = begin; i < end; ++i) {
              result[i] = p[i] + factor * q[i];
            }
          });
        },
        count);
  });
  return out;
}

} // namespace

TORCH_LIBRARY(my_ops, m) {
  m.def("clip(Tensor x, float limit) -> Tensor");
  m.def("hypot3(Tensor x, Tensor y, Tensor z) -> Tensor");
  m.def("scaled_add(Tensor x, Tensor y, float alpha) -> Tensor");
}
TORCH_LIBRARY_IMPL(my_ops, CPU, m) {
  m.impl("clip", &clip_cpu);
  m.impl("hypot3", &hypot3_cpu);
}
TORCH_LIBRARY_IMPL(my_ops, PrivateUse1, m) { // the dispatch key of kunlun
  m.impl("hypot3", &hypot3_kunlun);
  m.impl("scaled_add", &scaled_add_kunlun);
}
