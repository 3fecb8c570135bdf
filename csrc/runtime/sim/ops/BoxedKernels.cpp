// Schemas that the simulated chip serves through the dispatcher's boxed calling
// convention: unstructured operators whose launchers know the result's shape.
#include "runtime/sim/ops/Kernels.h"

namespace kunlun::sim {

namespace {

constexpr const char* kSchemas[] = {
    // creation
    "aten::eye.m_out",
    "aten::linspace.out",
    "aten::logspace.out",
    // random
    "aten::bernoulli_.Tensor",
    "aten::bernoulli_.float",
    "aten::cauchy_",
    "aten::exponential_",
    "aten::geometric_",
    "aten::log_normal_",
    "aten::multinomial.out",
    "aten::normal_",
    "aten::random_",
    "aten::random_.from",
    "aten::random_.to",
    "aten::randperm.generator_out",
    "aten::uniform_",
    // normalisation, embedding
    "aten::embedding_dense_backward",
    "aten::native_layer_norm_backward",
    // search
    "aten::bucketize.Tensor_out",
    "aten::histc.out",
    "aten::searchsorted.Tensor_out",
    // pointwise
    "aten::floor_divide.out",
    "aten::logical_and.out",
    "aten::logical_not.out",
    "aten::logical_or.out",
    "aten::logical_xor.out",
};

} // namespace

c10::ArrayRef<const char*> boxedKernels() {
  return kSchemas;
}

} // namespace kunlun::sim
