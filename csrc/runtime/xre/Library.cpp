// Opening of the vendor's runtime library.
#include "runtime/xre/Library.h"

#include <dlfcn.h>

#include "runtime/xre/Status.h"

namespace kunlun::xre {
namespace {

Library functions;
std::string file;

template <class Function>
void find(void* handle, Function& to, const char* name) {
  to = reinterpret_cast<Function>(dlsym(handle, name));
  if (to == nullptr) {
    raise(
        KL_ERROR_RUNTIME,
        -1,
        "the vendor's runtime %s does not export %s; XRE 5 or newer is needed",
        file.c_str(),
        name);
  }
}

} // namespace

void openLibrary() {
  void* handle = nullptr;
  std::string reasons;
  // By name and not by path, so that every library of the process shares one copy.
  for (const char* name : {"libxpurt.so", "libxpurt.so.2", "libxpurt.so.1"}) {
    handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) {
      file = name;
      break;
    }
    reasons += std::string(reasons.empty() ? "" : "; ") + dlerror();
  }
  if (handle == nullptr) {
    raise(
        KL_ERROR_RUNTIME,
        -1,
        "the vendor's runtime cannot be opened (%s); install XRE and put its folder on LD_LIBRARY_PATH, or use "
        "KUNLUN_CHIP=sim for the simulated chip",
        reasons.c_str());
  }
  find(handle, functions.get_driver_version, "xpu_get_driver_version");
  find(handle, functions.get_runtime_version, "xpu_get_runtime_version");
  find(handle, functions.device_count, "xpu_device_count");
  find(handle, functions.set_device, "xpu_set_device");
  find(handle, functions.device_get_attr, "xpu_device_get_attr");
  find(handle, functions.malloc, "xpu_malloc");
  find(handle, functions.free, "xpu_free");
  find(handle, functions.memcpy, "xpu_memcpy");
  find(handle, functions.memcpy_async, "xpu_memcpy_async");
  find(handle, functions.memcpy_peer, "xpu_memcpy_peer");
  find(handle, functions.host_alloc, "xpu_host_alloc");
  find(handle, functions.host_free, "xpu_host_free");
  find(handle, functions.stream_create, "xpu_stream_create");
  find(handle, functions.stream_destroy, "xpu_stream_destroy");
  find(handle, functions.stream_wait_event, "xpu_stream_wait_event");
  find(handle, functions.wait, "xpu_wait");
  find(handle, functions.event_create, "xpu_event_create");
  find(handle, functions.event_destroy, "xpu_event_destroy");
  find(handle, functions.event_record, "xpu_event_record");
  find(handle, functions.event_query, "xpu_event_query");
  find(handle, functions.event_wait, "xpu_event_wait");
}

const Library& library() {
  return functions;
}

const std::string& libraryFile() {
  return file;
}

} // namespace kunlun::xre
