// CPU tensors that stand for kunlun tensors during one call, over the device's memory or over host copies of it.
#pragma once

#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>

#include "aten/boxed/HostCopies.h"

namespace kunlun::aten {

// Strided memory and nothing else: what can be described by pointer, sizes and strides.
inline bool isPlain(const at::Tensor& tensor) {
  return tensor.layout() == c10::kStrided && !tensor.is_quantized() && !tensor.is_nested();
}

// Arguments go to the host side before the call, results come back after it.
//
// One alias storage stands for each distinct device storage, so that overlap
// and aliasing look the same on both sides. What the CPU kernel does to its
// arguments is carried over: new sizes, replaced memory, replaced members of
// sparse tensors. Results that alias an argument become views of its storage;
// all other results already lie in device memory (HostMemory.h) and are adopted.
//
// With host copies all of that holds as well: results are copied to the device,
// and so are the arguments that the operator writes.
class Aliases {
 public:
  enum class Use { Read, Written, Out }; // Out: the operator may give it another size

  // `copies`, if any, outlives this object.
  explicit Aliases(c10::Device device, HostCopies* copies = nullptr) : device_(device), copies_(copies) {}

  // `op` is for error texts. How the argument is used matters with copies only.
  c10::IValue toHost(const c10::IValue& value, const char* op, Use use = Use::Read);
  void writeBack();
  c10::IValue toDevice(const c10::IValue& value);

 private:
  at::Tensor hostTensor(const at::Tensor& tensor, const char* op, Use use);
  at::Tensor hostStrided(const at::Tensor& tensor, Use use);
  at::Tensor hostSparse(const at::Tensor& tensor, const char* op, Use use);
  at::Tensor hostSparseCompressed(const at::Tensor& tensor, const char* op, Use use);
  at::Tensor hostQuantized(const at::Tensor& tensor, const char* op, Use use);
  at::Tensor hostNested(const at::Tensor& tensor);
  // What the host side of `tensor` lies in. With copies, has the contents of the tensor, or of its whole storage.
  c10::Storage hostStorage(const at::Tensor& tensor, bool whole);
  void writeBackStrided(const at::Tensor& device, const at::Tensor& host);
  void writeBackSparse(const at::Tensor& device, const at::Tensor& host);
  void writeBackSparseCompressed(const at::Tensor& device, const at::Tensor& host);
  void writeBackQuantized(const at::Tensor& device, const at::Tensor& host);

  at::Tensor deviceTensor(const at::Tensor& host);
  at::Tensor deviceStrided(const at::Tensor& host);
  at::Tensor deviceSparse(const at::Tensor& host);
  at::Tensor deviceSparseCompressed(const at::Tensor& host);
  at::Tensor deviceQuantized(const at::Tensor& host);
  at::Tensor deviceNested(const at::Tensor& host);
  at::Tensor inHostMemory(const at::Tensor& metadata);
  c10::Storage deviceStorage(const c10::Storage& host);

  struct TensorPair {
    at::Tensor device;
    at::Tensor host;
    bool written = false;
  };
  struct StoragePair {
    c10::Storage device;
    c10::Storage host;
    const void* data;      // where the host side pointed before the call
    bool replaced = false; // by the call
  };
  bool isReplaced(const c10::Storage& device) const;

  c10::Device device_;
  HostCopies* copies_;
  // Inline for what most operators take: a call costs about as much as a dozen trips to malloc.
  c10::SmallVector<TensorPair, 5> tensors_;
  c10::SmallVector<StoragePair, 5> storages_;
};

} // namespace kunlun::aten
