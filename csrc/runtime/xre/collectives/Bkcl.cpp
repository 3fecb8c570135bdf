// Opening of the vendor's library of collectives, and the meaning of its results.
#include "runtime/xre/collectives/Bkcl.h"

#include <dlfcn.h>

#include <mutex>

#include "runtime/xre/Status.h"

namespace kunlun::xre {
namespace {

constexpr const char* kFile = "libbkcl.so";

struct Opening {
  std::mutex lock; // guards the rest
  bool is_open = false;
  Bkcl functions{};
};

Opening& opening() {
  static Opening& value = *new Opening;
  return value;
}

template <class Function>
void findOptional(void* handle, Function& to, const char* name) {
  to = reinterpret_cast<Function>(dlsym(handle, name));
}

template <class Function>
void find(void* handle, Function& to, const char* name) {
  findOptional(handle, to, name);
  if (to == nullptr) {
    raise(
        KL_ERROR_RUNTIME,
        -1,
        "the vendor's library of collectives %s does not export %s as a C function, so this adapter cannot use it; "
        "install XCCL 3 or newer, or use the process group gloo on CPU tensors",
        kFile,
        name);
  }
}

void open(Bkcl& f) {
  // By name and not by path, so that every library of the process shares one copy of it and of the runtime.
  void* handle = dlopen(kFile, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* reason = dlerror();
    raise(
        KL_ERROR_RUNTIME,
        -1,
        "the vendor's library of collectives (XCCL, %s) cannot be opened: %s; it was looked for on "
        "LD_LIBRARY_PATH, as the process was started with it, and in the system's folders; install XCCL and put its "
        "folder on LD_LIBRARY_PATH (often /usr/local/xccl/so or /opt/xccl/so), or use the process group gloo on CPU "
        "tensors",
        kFile,
        reason);
  }
  find(handle, f.get_unique_id, "bkcl_get_unique_id");
  find(handle, f.init_rank, "bkcl_init_rank");
  find(handle, f.destroy_context, "bkcl_destroy_context");
  findOptional(handle, f.comm_abort, "bkcl_comm_abort");
  find(handle, f.group_start, "bkcl_group_start");
  find(handle, f.group_end, "bkcl_group_end");
  find(handle, f.all_reduce, "bkcl_all_reduce");
  find(handle, f.reduce, "bkcl_reduce");
  find(handle, f.broadcast, "bkcl_broadcast");
  find(handle, f.all_gather, "bkcl_all_gather");
  find(handle, f.reduce_scatter, "bkcl_reduce_scatter");
  findOptional(handle, f.all_to_all_v, "bkcl_all_to_all_v");
  find(handle, f.send, "bkcl_send");
  find(handle, f.recv, "bkcl_recv");
}

} // namespace

const Bkcl& bkcl() {
  Opening& o = opening();
  std::lock_guard lock(o.lock);
  if (!o.is_open) {
    open(o.functions);
    o.is_open = true;
  }
  return o.functions;
}

const char* nameOf(NativeType type) {
  constexpr std::array<const char*, kNativeTypes> kNames{
      "UINT8", "FLOAT", "INT32", "INT64", "FLOAT16", "FLOAT64", "BFLOAT16"};
  return kNames[static_cast<size_t>(type)];
}

const char* nameOf(NativeOp op) {
  constexpr std::array<const char*, kNativeOps> kNames{"ADD", "PRODUCT", "MIN", "MAX", "AVG"};
  return kNames[static_cast<size_t>(op)];
}

void checkBkcl(int result, const char* call, int device) {
  if (result == kNativeSuccess) {
    return;
  }
  const char* text = result == kNativeInvalidArgument ? "an invalid argument"
      : result == kNativeRuntimeError                 ? "a failure of the vendor's runtime, or a call that it forbids"
      : result == kNativeSystemError                  ? "a failure of the operating system"
      : result == kNativeInternalError                ? "an internal error"
                                                      : "an unknown code";
  raise(
      result == kNativeInvalidArgument ? KL_ERROR_VALUE : KL_ERROR_RUNTIME,
      device,
      "the vendor's library of collectives failed in %s with code %d: %s (BKCL_DEBUG=1 makes it say more)",
      call,
      result,
      text);
}

} // namespace kunlun::xre
