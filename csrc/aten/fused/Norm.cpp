// Root mean square normalisation.
#include <ATen/ops/empty.h>

#include "aten/Empty.h"
#include "aten/Launch.h"
#include "aten/fused/Checks.h"
#include "aten/fused/Define.h"

namespace kunlun::aten::fused {

namespace {

OpHandle k_rmsnorm{"kunlun::rmsnorm"};
OpHandle k_add_rmsnorm{"kunlun::add_rmsnorm"};
OpHandle k_add_rmsnorm_in_place{"kunlun::add_rmsnorm_"};

void check(const char* op, const at::Tensor& x, const at::Tensor& weight) {
  TORCH_CHECK(x.dim() >= 1, op, ": x must have at least one dimension");
  checkFloat(op, "x", x);
  checkParameterDtype(op, "weight", weight, x);
  checkDims(op, "weight", weight, 1);
  checkSize(op, "weight", weight, 0, x.sym_size(-1));
}

void checkResidual(const char* op, const at::Tensor& x, const at::Tensor& residual) {
  checkDtype(op, "residual", residual, x.scalar_type());
  checkShape(op, "residual", residual, x.sym_sizes());
}

void checkOut(const char* op, const at::Tensor& x, const at::Tensor& out) {
  checkDtype(op, "out", out, x.scalar_type());
  checkShape(op, "out", out, x.sym_sizes());
  checkWritable(op, "out", out);
}

void run(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& out) {
  if (x.numel() == 0) {
    return;
  }
  const std::array<const at::Tensor*, 1> outs{&out};
  launch(k_rmsnorm, x.device(), outs, dense(x), dense(weight), eps);
}

at::Tensor rmsnorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  check("rmsnorm", x, weight);
  auto out = empty(x.sizes(), x.scalar_type(), x.device());
  run(x, weight, eps, out);
  return out;
}

at::Tensor rmsnormMeta(const at::Tensor& x, const at::Tensor& weight, double) {
  check("rmsnorm", x, weight);
  return at::empty_symint(x.sym_sizes(), x.options());
}

void rmsnormOut(const at::Tensor& x, const at::Tensor& weight, double eps, at::Tensor& out) {
  check("rmsnorm", x, weight);
  checkOut("rmsnorm", x, out);
  run(x, weight, eps, out);
}

void rmsnormOutMeta(const at::Tensor& x, const at::Tensor& weight, double, at::Tensor& out) {
  check("rmsnorm", x, weight);
  checkOut("rmsnorm", x, out);
}

std::tuple<at::Tensor, at::Tensor>
addRmsnorm(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, double eps) {
  check("add_rmsnorm", x, weight);
  checkResidual("add_rmsnorm", x, residual);
  auto out = empty(x.sizes(), x.scalar_type(), x.device());
  auto sum = empty(x.sizes(), x.scalar_type(), x.device());
  if (x.numel() != 0) {
    const std::array<const at::Tensor*, 2> outs{&out, &sum};
    launch(k_add_rmsnorm, x.device(), outs, dense(x), dense(residual), dense(weight), eps);
  }
  return {std::move(out), std::move(sum)};
}

std::tuple<at::Tensor, at::Tensor>
addRmsnormMeta(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight, double) {
  check("add_rmsnorm", x, weight);
  checkResidual("add_rmsnorm", x, residual);
  return {at::empty_symint(x.sym_sizes(), x.options()), at::empty_symint(x.sym_sizes(), x.options())};
}

void checkInPlace(const at::Tensor& x, const at::Tensor& residual, const at::Tensor& weight) {
  check("add_rmsnorm_", x, weight);
  checkResidual("add_rmsnorm_", x, residual);
  checkWritable("add_rmsnorm_", "x", x);
  checkWritable("add_rmsnorm_", "residual", residual);
}

void addRmsnormInPlace(at::Tensor& x, at::Tensor& residual, const at::Tensor& weight, double eps) {
  checkInPlace(x, residual, weight);
  TORCH_CHECK(!x.is_same(residual), "add_rmsnorm_: x and residual are one tensor, which cannot hold both results");
  if (x.numel() != 0) {
    const std::array<const at::Tensor*, 2> outs{&x, &residual};
    launch(k_add_rmsnorm_in_place, x.device(), outs, x, residual, dense(weight), eps);
  }
}

void addRmsnormInPlaceMeta(at::Tensor& x, at::Tensor& residual, const at::Tensor& weight, double) {
  checkInPlace(x, residual, weight);
}

} // namespace

TORCH_LIBRARY_FRAGMENT(kunlun, m) {
  define<"rmsnorm", &rmsnorm, &rmsnormMeta>(m, "rmsnorm(Tensor x, Tensor weight, float eps=1e-06) -> Tensor");
  define<"rmsnorm.out", &rmsnormOut, &rmsnormOutMeta>(
      m, "rmsnorm.out(Tensor x, Tensor weight, float eps=1e-06, *, Tensor(a!) out) -> ()");
  define<"add_rmsnorm", &addRmsnorm, &addRmsnormMeta>(
      m, "add_rmsnorm(Tensor x, Tensor residual, Tensor weight, float eps=1e-06) -> (Tensor, Tensor)");
  define<"add_rmsnorm_", &addRmsnormInPlace, &addRmsnormInPlaceMeta>(
      m, "add_rmsnorm_(Tensor(a!) x, Tensor(b!) residual, Tensor weight, float eps=1e-06) -> ()");
}

} // namespace kunlun::aten::fused
