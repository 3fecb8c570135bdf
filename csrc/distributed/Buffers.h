// Tensors as the chip's collectives take them: one range of memory, counts and displacements; and the checks of them.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "distributed/Communicator.h"

namespace kunlun::distributed {

using Tensors = std::vector<at::Tensor>;

inline uint64_t countOf(const at::Tensor& tensor) {
  return static_cast<uint64_t>(tensor.numel());
}

inline void* dataOf(const at::Tensor& tensor) {
  return tensor.mutable_data_ptr();
}

// ---- checks; raise ValueError

void checkSameType(const at::Tensor& output, const at::Tensor& input);
void checkCount(int64_t actual, int64_t expected, const char* what);
// One tensor for each rank.
void checkList(const Tensors& list, int size, const char* what);
// Two results in one place would depend on the order of their arrival.
void checkDisjoint(const Tensors& outputs);
bool haveEqualSizes(const Tensors& tensors);

// ---- layouts

Layout layoutOf(const Tensors& tensors);
// Rows of `tensor`: `splits` for each rank, or the same for all.
Layout layoutOf(const std::vector<int64_t>& splits, const at::Tensor& tensor, int size);

// One buffer for a list of tensors: themselves where they are one range, otherwise a new one. Made and used under the
// guard of the operation's stream, so its memory is that stream's.
class Flat {
 public:
  explicit Flat(const Tensors& tensors);
  // The contents of the list, for reading.
  static at::Tensor of(const Tensors& tensors);
  void* data() const {
    return dataOf(flat_);
  }
  // Brings the buffer's contents to the tensors.
  void scatterBack();

 private:
  Tensors tensors_;
  bool is_view_;
  at::Tensor flat_;
};

// ---- calls of the chip that several collectives are made of

void allReduce(Communicator& group, const at::Tensor& tensor, const kl_reduction& reduction, kl_stream stream);
void reduceTo(
    Communicator& group,
    const at::Tensor& input,
    void* output, // on the root
    const kl_reduction& reduction,
    int root,
    kl_stream stream);
void reduceScatter(
    Communicator& group,
    void* input,
    const at::Tensor& output,
    const kl_reduction& reduction,
    kl_stream stream);
void allGather(Communicator& group, const at::Tensor& input, void* output, kl_stream stream);

} // namespace kunlun::distributed
