// The vendor's runtime library: the functions that the adapter calls, declared from their documented behaviour.
#pragma once

#include <cstdint>
#include <string>

namespace kunlun::xre {

// Opaque to us.
using NativeStream = void*;
using NativeEvent = void*;

// Kinds of copies and attributes of a device, by the numbers of the vendor's interface.
enum NativeCopy : int { kDeviceToHost = 0, kHostToDevice = 1, kDeviceToDevice = 2 };
enum NativeAttribute : int { kPhysicalId = 1, kModel = 4, kMainCapacity = 5, kL3Capacity = 6, kClusters = 7 };
enum NativeMemory : int { kMainMemory = 0, kL3Memory = 1 };

// Every function returns 0 or a code that Status.h explains. All are members of the plain C interface.
struct Library {
  int (*get_driver_version)(uint32_t* major, uint32_t* minor);
  int (*get_runtime_version)(uint32_t* major, uint32_t* minor);
  int (*device_count)(int* count);
  int (*set_device)(int device); // of the calling thread
  int (*device_get_attr)(uint64_t* value, int attribute, int device);
  int (*malloc)(void** out, uint64_t bytes, int kind);
  int (*free)(void* ptr);
  int (*memcpy)(void* dst, const void* src, uint64_t bytes, int kind); // at once, whatever the streams do
  int (*memcpy_async)(void* dst, const void* src, uint64_t bytes, int kind, NativeStream stream);
  int (*memcpy_peer)(int dst_device, void* dst, int src_device, const void* src, uint64_t bytes); // at once
  int (*host_alloc)(void** out, uint64_t bytes, unsigned flags);
  int (*host_free)(void* ptr);
  int (*stream_create)(NativeStream* out);
  int (*stream_destroy)(NativeStream stream);
  int (*stream_wait_event)(NativeStream stream, NativeEvent event);
  int (*wait)(NativeStream stream); // for a stream; NULL is the default stream and not the device
  int (*event_create)(NativeEvent* out);
  int (*event_destroy)(NativeEvent event);
  int (*event_record)(NativeEvent event, NativeStream stream);
  int (*event_query)(NativeEvent event); // 0: complete
  int (*event_wait)(NativeEvent event);
};

// Opens the library; throws Failure (Status.h). Called once by open().
void openLibrary();

// After openLibrary().
const Library& library();
const std::string& libraryFile();

} // namespace kunlun::xre
