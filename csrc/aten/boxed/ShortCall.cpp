// Small boxed calls on an idle stream, which their caller runs itself.
#include "aten/boxed/ShortCall.h"

#include <array>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/clone.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>

#include "aten/boxed/Aliases.h"
#include "aten/boxed/HostCall.h"
#include "aten/boxed/HostMemory.h"
#include "runtime/CachingAllocator.h"

namespace kunlun::aten {

namespace {

const c10::Device kHost(c10::DeviceType::CPU);

// CPU tensors that are used again by the thread's next call: making and destroying one takes longer than a small
// kernel. Only what nobody else holds is kept.
class HostTensors {
 public:
  HostTensors() = default;
  HostTensors(const HostTensors&) = delete;
  HostTensors& operator=(const HostTensors&) = delete;

  ~HostTensors() {
    seen_.clear();
    for (size_t i = 0; i < used_; ++i) {
      auto& tensor = kept()[i];
      if (tensor.use_count() != 1 || tensor.storage().use_count() != 1) {
        tensor.reset();
      } else {
        tensor.storage().set_data_ptr_noswap({}); // the memory is its owner's to give back
      }
    }
  }

  // The same tensor for the same argument, and one storage for arguments that share theirs.
  at::Tensor over(const at::Tensor& argument) {
    const auto* storage = argument.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    for (const auto& seen : seen_) {
      if (seen.argument == argument.unsafeGetTensorImpl()) {
        return seen.tensor;
      }
    }
    for (const auto& seen : seen_) {
      if (seen.argument->unsafe_storage().unsafeGetStorageImpl() == storage) {
        return remember(argument, describe(make(seen.tensor.storage()), argument));
      }
    }
    const c10::DataPtr data(const_cast<void*>(storage->data()), kHost);
    CachingAllocator::checkAwake(data.get());
    const bool marked = argument.is_conj() || argument.is_neg() || argument.unsafeGetTensorImpl()->is_wrapped_number();
    if (used_ == kKept || marked) {
      return remember(argument, describe(make(newStorage(storage->nbytes(), data.get())), argument));
    }
    auto& tensor = kept()[used_];
    if (!tensor.defined()) {
      tensor = make(newStorage(storage->nbytes(), data.get()));
    } else {
      auto* own = tensor.storage().unsafeGetStorageImpl();
      own->set_data_ptr_noswap({data.get(), kHost});
      own->set_nbytes(storage->nbytes());
    }
    ++used_;
    return remember(argument, describe(tensor, argument));
  }

 private:
  static constexpr size_t kKept = 4;
  static std::array<at::Tensor, kKept>& kept() {
    thread_local std::array<at::Tensor, kKept> tensors;
    return tensors;
  }

  static c10::Storage newStorage(size_t nbytes, void* data) {
    return c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(),
        static_cast<int64_t>(nbytes),
        c10::DataPtr(data, kHost),
        /*allocator=*/nullptr,
        /*resizable=*/false);
  }

  static at::Tensor make(c10::Storage storage) {
    return at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), caffe2::TypeMeta::Make<float>());
  }

  static at::Tensor describe(const at::Tensor& tensor, const at::Tensor& argument) {
    auto* impl = tensor.unsafeGetTensorImpl();
    const auto* from = argument.unsafeGetTensorImpl();
    if (impl->dtype() != from->dtype()) {
      impl->set_storage_and_dtype(impl->storage(), from->dtype());
    }
    impl->set_storage_offset(from->storage_offset());
    impl->set_sizes_and_strides(from->sizes(), from->strides());
    if (from->is_wrapped_number()) {
      impl->set_wrapped_number(true);
    }
    if (argument.is_conj()) {
      impl->_set_conj(true);
    }
    if (argument.is_neg()) {
      impl->_set_neg(true);
    }
    return tensor;
  }

  at::Tensor remember(const at::Tensor& argument, at::Tensor tensor) {
    seen_.push_back({argument.unsafeGetTensorImpl(), tensor});
    return tensor;
  }

  struct Seen {
    const c10::TensorImpl* argument;
    at::Tensor tensor;
  };
  c10::SmallVector<Seen, kKept> seen_;
  size_t used_ = 0;
};

// A stack whose memory the thread keeps. Such calls do not nest: inside one, the stream is not idle.
class KeptStack {
 public:
  KeptStack() = default;
  KeptStack(const KeptStack&) = delete;
  KeptStack& operator=(const KeptStack&) = delete;
  ~KeptStack() {
    values().clear();
  }
  static torch::jit::Stack& values() {
    thread_local torch::jit::Stack stack;
    return stack;
  }
};

bool isShortArgument(const c10::IValue& value, c10::Device device) {
  if (!value.isTensor()) {
    return !value.isTensorList() && !value.isOptionalTensorList();
  }
  const auto& tensor = value.toTensor();
  return !tensor.defined() || tensor.device() == device || (tensor.is_cpu() && tensor.dim() == 0);
}

// What a schema calls new memory, and is.
at::Tensor owned(at::Tensor result) {
  const bool own = result.storage().use_count() == 1 &&
      result.storage().data_ptr().get_deleter() == deviceAllocator()->raw_deleter();
  return own && !result.is_conj() && !result.is_neg() && !result._is_zerotensor() ? std::move(result)
                                                                                  : at::clone(result);
}

// A tensor of the device in the memory of a CPU tensor, which ends here.
at::Tensor moveToDevice(at::Tensor&& host, c10::Device device) {
  const auto* from = host.unsafeGetTensorImpl();
  c10::Storage storage = from->unsafe_storage();
  auto* memory = storage.unsafeGetStorageImpl();
  memory->set_data_ptr_noswap(adopt(memory->set_data_ptr({}), memory->nbytes(), device));
  memory->set_allocator(deviceAllocator());
  memory->set_resizable(true);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), from->dtype());
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_offset(from->storage_offset());
  impl->set_sizes_and_strides(from->sizes(), from->strides());
  host.reset();
  return tensor;
}

} // namespace

ShortCall runShort(const c10::OperatorHandle& op, const char* name, c10::Device device, torch::jit::Stack* stack) {
  const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
  int64_t work = 0;
  bool lazy = false; // has an argument whose conjugation or negation torch does before the kernel
  for (const auto& argument : arguments) {
    if (!isShortArgument(argument, device)) {
      return ShortCall::NotNow;
    }
    if (argument.isTensor() && argument.toTensor().defined()) {
      work += argument.toTensor().numel();
      lazy |= argument.toTensor().is_conj() || argument.toTensor().is_neg();
    }
  }
  c10::SmallVector<at::Tensor, 2> results;
  bool special = false;
  const auto compute = [&] {
    HostTensors tensors;
    const KeptStack kept;
    auto& values = kept.values();
    for (const auto& argument : arguments) {
      const bool alias = argument.isTensor() && argument.toTensor().defined() && !argument.toTensor().is_cpu();
      alias ? values.emplace_back(tensors.over(argument.toTensor())) : values.emplace_back(argument);
    }
    if (lazy) {
      op.callBoxed(values);
    } else {
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &values); // what callBoxed would find out
    }
    for (auto& value : values) {
      auto tensor = std::move(value).toTensor();
      special |= tensor.defined() && !isPlain(tensor);
      results.push_back(tensor.defined() && !special ? owned(std::move(tensor)) : at::Tensor());
    }
  };
  if (!tryOnCaller(device, name, work, compute)) {
    return ShortCall::NotNow;
  }
  if (special) {
    return ShortCall::Special;
  }
  torch::jit::drop(*stack, arguments.size());
  for (auto& result : results) {
    stack->emplace_back(result.defined() ? moveToDevice(std::move(result), device) : at::Tensor());
  }
  return ShortCall::Done;
}

} // namespace kunlun::aten
