// Indexing, embedding and selection.
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorIterator.h>
#include <ATen/core/IListRef.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/index_meta.h>
#include <ATen/ops/result_type.h>
#include <torch/library.h>

#include "aten/Empty.h"
#include "aten/Launch.h"
#include "aten/Structured.h"

namespace kunlun::aten {

namespace {

OpHandle k_index{"aten::index.Tensor_out"};
OpHandle k_index_put{"aten::_index_put_impl_"};
OpHandle k_index_select{"aten::index_select.out"};
OpHandle k_embedding_backward{"aten::embedding_dense_backward"};
OpHandle k_where{"aten::where.self_out"};

using Indices = c10::List<std::optional<at::Tensor>>;

// As on CUDA, indices may live on the host; they are moved to the device.
Indices onDevice(const Indices& indices, c10::Device device) {
  bool all_there = true;
  for (const auto& index : at::IOptTensorListRef(indices)) {
    all_there &= !index.has_value() || index->device() == device;
  }
  if (all_there) {
    return indices;
  }
  Indices moved;
  for (const auto& index : at::IOptTensorListRef(indices)) {
    if (index.has_value() && index->defined() && index->device().is_cpu()) {
      moved.push_back(std::optional<at::Tensor>(index->to(device)));
    } else {
      moved.push_back(index.has_value() ? std::optional<at::Tensor>(*index) : std::nullopt);
    }
  }
  return moved;
}

at::Tensor indexTensor(const at::Tensor& self, const Indices& indices) {
  const auto device = self.device();
  TORCH_CHECK(
      device.is_privateuseone(),
      "indices should be either on cpu or on the same device as the indexed tensor (",
      device,
      ")");
  const auto moved = onDevice(indices, device);
  FunctionalOp<at::meta::structured_index_Tensor, 1> op(device);
  op.meta(self, moved);
  launch(k_index, device, op.outputs(), self, moved);
  return op.take();
}

at::Tensor& indexTensorOut(const at::Tensor& self, const Indices& indices, at::Tensor& out) {
  const auto device = self.device();
  const auto moved = onDevice(indices, device);
  OutOp<at::meta::structured_index_Tensor, 1> op(device, {&out});
  op.meta(self, moved);
  launch(k_index, device, op.outputs(), self, moved);
  return out;
}

// Shape of self[indices] where no index is a mask; none when one is, because
// only the mask's contents tell.
std::optional<at::DimVector> indexedShape(const at::Tensor& self, const Indices& indices) {
  std::vector<at::IntArrayRef> shapes;
  int64_t first = -1;
  int64_t last = -1;
  bool adjacent = true;
  int64_t dim = 0;
  for (const auto& index : at::IOptTensorListRef(indices)) {
    if (index.has_value() && index->defined()) {
      if (index->scalar_type() == at::kBool || index->scalar_type() == at::kByte) {
        return std::nullopt;
      }
      shapes.push_back(index->sizes());
      first = first < 0 ? dim : first;
      adjacent &= last < 0 || last == dim - 1;
      last = dim;
    }
    ++dim;
  }
  TORCH_CHECK_INDEX(dim <= self.dim(), "too many indices for tensor of dimension ", self.dim(), " (got ", dim, ")");
  if (shapes.empty()) {
    return at::DimVector(self.sizes());
  }
  at::DimVector broadcast(shapes[0]);
  for (const auto& shape : shapes) {
    broadcast = at::infer_size_dimvector(broadcast, shape);
  }
  at::DimVector result;
  std::vector<bool> indexed(self.dim(), false);
  dim = 0;
  for (const auto& index : at::IOptTensorListRef(indices)) {
    indexed[dim++] = index.has_value() && index->defined();
  }
  if (!adjacent) {
    result.append(broadcast.begin(), broadcast.end());
  }
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (adjacent && d == first) {
      result.append(broadcast.begin(), broadcast.end());
    }
    if (!indexed[d]) {
      result.push_back(self.size(d));
    }
  }
  return result;
}

at::Tensor&
indexPutImpl_(at::Tensor& self, const Indices& indices, const at::Tensor& values, bool accumulate, bool unsafe) {
  const auto device = self.device();
  const auto moved = onDevice(indices, device);
  auto value = values;
  if (value.device() != device && value.numel() == 1 && value.dim() == 0) {
    value = value.to(device);
  }
  TORCH_CHECK(
      self.scalar_type() == value.scalar_type(),
      "Index put requires the source and destination dtypes match, got ",
      self.scalar_type(),
      " for the destination and ",
      value.scalar_type(),
      " for the source.");
  if (at::has_internal_overlap(self) == at::MemOverlap::Yes) {
    TORCH_WARN(
        "Use of index_put_ on expanded tensors is deprecated. Please clone() the tensor before performing this "
        "operation. This also applies to advanced indexing e.g. tensor[indices] = tensor");
  }
  if (const auto shape = indexedShape(self, moved)) {
    TORCH_CHECK(
        at::is_expandable_to(value.sizes(), *shape),
        "shape mismatch: value tensor of shape ",
        value.sizes(),
        " cannot be broadcast to indexing result of shape ",
        at::IntArrayRef(*shape));
  }
  launch(k_index_put, device, {}, self, moved, value, accumulate, unsafe);
  return self;
}

void checkIndexSelect(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  TORCH_CHECK_INDEX(index.dim() <= 1, "index_select(): Index is supposed to be a vector");
  TORCH_CHECK(
      index.scalar_type() == at::kLong || index.scalar_type() == at::kInt,
      "index_select(): Expected dtype int32 or int64 for index");
  TORCH_CHECK(dim == 0 || dim < self.dim(), "index_select(): Indexing dim ", dim, " is out of bounds of tensor");
}

at::Tensor& indexSelectOut(const at::Tensor& self, int64_t dim, const at::Tensor& index, at::Tensor& out) {
  dim = at::maybe_wrap_dim(dim, self.dim());
  checkIndexSelect(self, dim, index);
  TORCH_CHECK(
      self.scalar_type() == out.scalar_type(), "index_select(): self and result must have the same scalar type");
  at::assert_no_internal_overlap(out);
  at::assert_no_overlap(out, self);
  at::assert_no_overlap(out, index);
  at::DimVector shape(self.sizes());
  if (self.dim() > 0) {
    shape[dim] = index.numel();
  }
  at::native::resize_output(out, shape);
  const std::array<const at::Tensor*, 1> outs{&out};
  launch(k_index_select, deviceOf(self, index), outs, self, dim, index);
  return out;
}

at::Tensor indexSelect(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  auto out = empty({0}, self.scalar_type(), deviceOf(self, index));
  return indexSelectOut(self, dim, index, out);
}

at::Tensor embeddingDenseBackward(
    const at::Tensor& grad,
    const at::Tensor& indices,
    int64_t num_weights,
    int64_t padding_idx,
    bool scale_grad_by_freq) {
  TORCH_CHECK(
      indices.scalar_type() == at::kLong || indices.scalar_type() == at::kInt,
      "Expected tensor for argument #2 'indices' to have one of the following scalar types: Long, Int; but got ",
      indices.scalar_type(),
      " instead (while checking arguments for embedding_backward)");
  auto out = empty({num_weights, grad.size(-1)}, grad.scalar_type(), grad.device());
  const std::array<const at::Tensor*, 1> outs{&out};
  launch(k_embedding_backward, grad.device(), outs, grad, indices, num_weights, padding_idx, scale_grad_by_freq);
  return out;
}

at::Tensor& whereOut(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other, at::Tensor& out) {
  const auto dtype = at::result_type(self, other);
  TORCH_CHECK(out.scalar_type() == dtype, "Expected out type to be ", dtype, " but got ", out.scalar_type());
  if (condition.scalar_type() == at::kByte) {
    TORCH_WARN_ONCE(
        "where received a uint8 condition tensor. This behavior is deprecated and will be removed in a future version "
        "of PyTorch. Use a boolean condition instead.");
  } else {
    TORCH_CHECK(
        condition.scalar_type() == at::kBool,
        "where expected condition to be a boolean tensor, but got a tensor with dtype ",
        condition.scalar_type());
  }
  const auto device = deviceOf(condition, self, other, out);
  // Shape, strides and overlap as torch's own iterator decides them.
  at::TensorIteratorConfig()
      .check_all_same_dtype(false)
      .check_all_same_device(false)
      .allow_cpu_scalars(true)
      .add_output(out)
      .add_const_input(condition)
      .add_const_input(self)
      .add_const_input(other)
      .build();
  const std::array<const at::Tensor*, 1> outs{&out};
  launch(k_where, device, outs, condition, self, other);
  return out;
}

at::Tensor where(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other) {
  auto out = empty({0}, at::result_type(self, other), deviceOf(condition, self, other));
  return whereOut(condition, self, other, out);
}

} // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("index.Tensor", TORCH_FN(indexTensor));
  m.impl("index.Tensor_out", TORCH_FN(indexTensorOut));
  m.impl("_index_put_impl_", TORCH_FN(indexPutImpl_));
  m.impl("index_select", TORCH_FN(indexSelect));
  m.impl("index_select.out", TORCH_FN(indexSelectOut));
  m.impl("embedding_dense_backward", TORCH_FN(embeddingDenseBackward));
  m.impl("where.self", TORCH_FN(where));
  m.impl("where.self_out", TORCH_FN(whereOut));
}

} // namespace kunlun::aten
