// Aliases of sparse tensors: their members are strided tensors and alias as such.
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/native/SparseTensorUtils.h>

#include "aten/boxed/Aliases.h"

namespace kunlun::aten {

namespace {

at::Tensor makeCoo(c10::DispatchKey key, const at::Tensor& like, const at::Tensor& indices, const at::Tensor& values) {
  auto tensor = at::detail::make_tensor<at::SparseTensorImpl>(c10::DispatchKeySet(key), like.dtype());
  auto* to = at::sparse::get_sparse_impl(tensor);
  const auto* from = at::sparse::get_sparse_impl(like);
  to->raw_resize_(from->sparse_dim(), from->dense_dim(), like.sizes());
  to->set_indices_and_values_unsafe(indices, values);
  to->set_coalesced(from->coalesced());
  return tensor;
}

at::Tensor makeCompressed(
    c10::DispatchKey key,
    c10::Device device,
    const at::Tensor& like,
    const at::Tensor& compressed,
    const at::Tensor& plain,
    const at::Tensor& values) {
  auto tensor =
      at::detail::make_tensor<at::SparseCsrTensorImpl>(c10::DispatchKeySet(key), device, like.layout(), like.dtype());
  at::sparse_csr::get_sparse_csr_impl(tensor)->set_member_tensors(compressed, plain, values, like.sizes());
  return tensor;
}

} // namespace

at::Tensor Aliases::hostSparse(const at::Tensor& tensor, const char* op, Use use) {
  const auto* impl = at::sparse::get_sparse_impl(tensor);
  return makeCoo(
      c10::DispatchKey::SparseCPU, tensor, hostTensor(impl->indices(), op, use), hostTensor(impl->values(), op, use));
}

at::Tensor Aliases::hostSparseCompressed(const at::Tensor& tensor, const char* op, Use use) {
  const auto* impl = at::sparse_csr::get_sparse_csr_impl(tensor);
  return makeCompressed(
      c10::DispatchKey::SparseCsrCPU,
      c10::Device(c10::DeviceType::CPU),
      tensor,
      hostTensor(impl->compressed_indices(), op, use),
      hostTensor(impl->plain_indices(), op, use),
      hostTensor(impl->values(), op, use));
}

at::Tensor Aliases::deviceSparse(const at::Tensor& host) {
  const auto* impl = at::sparse::get_sparse_impl(host);
  return makeCoo(
      c10::DispatchKey::SparsePrivateUse1, host, deviceTensor(impl->indices()), deviceTensor(impl->values()));
}

at::Tensor Aliases::deviceSparseCompressed(const at::Tensor& host) {
  const auto* impl = at::sparse_csr::get_sparse_csr_impl(host);
  return makeCompressed(
      c10::DispatchKey::SparseCsrPrivateUse1,
      device_,
      host,
      deviceTensor(impl->compressed_indices()),
      deviceTensor(impl->plain_indices()),
      deviceTensor(impl->values()));
}

void Aliases::writeBackSparse(const at::Tensor& device, const at::Tensor& host) {
  auto* to = at::sparse::get_sparse_impl(device);
  const auto* from = at::sparse::get_sparse_impl(host);
  const auto indices = deviceTensor(from->indices());
  const auto values = deviceTensor(from->values());
  if (indices.is_same(to->indices()) && values.is_same(to->values()) && device.sizes() == host.sizes() &&
      to->coalesced() == from->coalesced()) {
    return;
  }
  to->raw_resize_(from->sparse_dim(), from->dense_dim(), host.sizes());
  to->set_indices_and_values_unsafe(indices, values);
  to->set_coalesced(from->coalesced());
}

void Aliases::writeBackSparseCompressed(const at::Tensor& device, const at::Tensor& host) {
  auto* to = at::sparse_csr::get_sparse_csr_impl(device);
  const auto* from = at::sparse_csr::get_sparse_csr_impl(host);
  const auto compressed = deviceTensor(from->compressed_indices());
  const auto plain = deviceTensor(from->plain_indices());
  const auto values = deviceTensor(from->values());
  if (compressed.is_same(to->compressed_indices()) && plain.is_same(to->plain_indices()) &&
      values.is_same(to->values()) && device.sizes() == host.sizes()) {
    return;
  }
  to->set_member_tensors(compressed, plain, values, host.sizes());
}

} // namespace kunlun::aten
