/*
 * The chip interface: everything the project asks of a chip, in one C header.
 *
 * A driver is a shared object that exports one function, `kl_chip_open`. It
 * hands back up to three function tables: runtime (devices, memory, copies,
 * streams, events), operators and collectives. Each table begins with its own
 * size and version, so a vendor can ship the three apart and a driver built
 * against an older minor keeps working: entries beyond its `size` read as
 * NULL, and a NULL entry is a capability the driver does not have.
 *
 * Conventions
 *   - Every function returns a kl_result. After a failure, `last_error` of the
 *     runtime table tells the calling thread what happened.
 *   - Functions are thread-safe unless they say otherwise.
 *   - Devices are numbered as the process sees them (after the visible list).
 *   - A failure of enqueued work is reported once for each stream that carries
 *     it: by the next operator, memcpy_async, memset_async or synchronisation.
 *     That call returns the failure's code and does nothing else; what was
 *     enqueued before it is skipped, and the stream is clean afterwards.
 *     stream_query, event_query, event_record, stream_wait_event and
 *     launch_host report none, so that they can be relied upon.
 *   - KL_ERROR_DEVICE is different: every call returns it until device_reset.
 *   - Numbers of tags, dtypes and codes are frozen; they are not ATen's.
 */
#ifndef KUNLUN_CHIP_H
#define KUNLUN_CHIP_H

#include <stddef.h>
#include <stdint.h>

#include "frame.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A driver with another major is refused; a smaller minor is accepted. */
#define KL_RUNTIME_ABI_MAJOR 1
#define KL_RUNTIME_ABI_MINOR 0
#define KL_OPERATORS_ABI_MAJOR 1
#define KL_OPERATORS_ABI_MINOR 0
#define KL_COLLECTIVES_ABI_MAJOR 1
#define KL_COLLECTIVES_ABI_MINOR 0

/* First member of every table. */
typedef struct kl_table_header {
  uint32_t size; /* sizeof the table the driver was built with */
  uint16_t abi_major;
  uint16_t abi_minor;
} kl_table_header;

/* ---- runtime ---------------------------------------------------------- */

/* kl_device_properties.capabilities */
enum {
  KL_CAP_EVENT_TIMING = 1u << 0,     /* event_elapsed works */
  KL_CAP_PEER_ACCESS = 1u << 1,      /* memcpy between devices works directly */
  KL_CAP_HOST_ADDRESSABLE = 1u << 2, /* host calls may dereference device memory */
  KL_CAP_IPC = 1u << 3,              /* ipc_* entries work */
  KL_CAP_PRIORITY = 1u << 4,         /* stream priorities are honoured */
  KL_CAP_FP64 = 1u << 5
};

typedef struct kl_driver_info {
  char name[32]; /* "sim", "xre", or the vendor's word */
  char driver_version[64];
  char runtime_version[64];
  char note[256]; /* shown on the info line; may be empty */
} kl_driver_info;

typedef struct kl_device_properties {
  char name[64];
  char uuid[48];
  uint64_t total_memory; /* bytes of main memory */
  uint64_t l3_memory;    /* bytes of L3, 0 if none */
  int32_t major;         /* chip generation */
  int32_t minor;
  int32_t multi_processor_count; /* clusters */
  int32_t physical_id;           /* number of the card on this host */
  uint64_t capabilities;         /* KL_CAP_* */
} kl_device_properties;

typedef enum kl_memory_kind { KL_MEMORY_MAIN = 0, KL_MEMORY_L3 = 1 } kl_memory_kind;

typedef enum kl_copy_kind {
  KL_COPY_HOST_TO_DEVICE = 0,
  KL_COPY_DEVICE_TO_HOST = 1,
  KL_COPY_DEVICE_TO_DEVICE = 2 /* same or another device */
} kl_copy_kind;

/*
 * By default memcpy_async may be given pageable memory: it returns once the
 * host side may be reused (source read) or read (destination written).
 * KL_COPY_ASYNC promises that the host side stays valid and untouched until
 * the stream has passed the copy, so that the call returns at once.
 */
enum { KL_COPY_ASYNC = 1u << 0 };

typedef enum kl_pointer_type {
  KL_POINTER_UNKNOWN = 0,
  KL_POINTER_HOST = 1, /* from host_malloc */
  KL_POINTER_DEVICE = 2
} kl_pointer_type;

typedef struct kl_pointer_info {
  int32_t type;   /* kl_pointer_type */
  int32_t device; /* -1 unless KL_POINTER_DEVICE */
  void* base;     /* start of the allocation that holds the pointer */
  uint64_t size;  /* its bytes */
} kl_pointer_info;

enum {
  KL_EVENT_TIMING = 1u << 0,
  KL_EVENT_INTERPROCESS = 1u << 1 /* may be handed to other processes; then without timing */
};

/* What device_telemetry measures. */
typedef enum kl_telemetry {
  KL_TELEMETRY_UTILIZATION = 0,        /* percent of the time in which work ran, over the last sample period */
  KL_TELEMETRY_MEMORY_UTILIZATION = 1, /* percent of the time in which memory was read or written, likewise */
  KL_TELEMETRY_TEMPERATURE = 2,        /* degrees Celsius */
  KL_TELEMETRY_POWER = 3,              /* watts */
  KL_TELEMETRY_CLOCK = 4               /* megahertz */
} kl_telemetry;

typedef struct kl_stream_st* kl_stream;
typedef struct kl_event_st* kl_event;

/*
 * A host call runs in stream order on the chip's own thread, where device
 * memory may be dereferenced if the device is host-addressable. `error` is
 * NULL, or the failure that the stream carries: the call still happens, so
 * that whoever waits for it learns of the failure. The call itself reports a
 * failure by filling `result` and returning its code.
 */
typedef kl_result (*kl_host_fn)(void* arg, const kl_error* error, kl_error* result);

/*
 * Whether the calling thread is to stop waiting (non-zero), because somebody
 * pressed Ctrl-C. Called from within waits, several times a second at most, by
 * the thread that waits and while it holds no lock.
 */
typedef int32_t (*kl_interrupt_check)(void);

enum { KL_WAIT_REPLACE = 1u << 0 }; /* kl_wait.flags */

/* A wait of a stream for a word of memory. The writer is the process that is to bring the value about, 0 if it is not
 * known: once it has ended, the wait may fail. Its start is in clock ticks since the boot, because numbers of processes
 * are used again. */
typedef struct kl_wait {
  uint32_t value; /* that the word must have */
  uint32_t flags; /* KL_WAIT_REPLACE: in the same step the word gets `replacement` */
  uint32_t replacement;
  int32_t writer_pid;
  uint64_t writer_start;
  uint64_t timeout_ms; /* from when the stream has come to the wait; 0: none */
  const char* what;    /* who waits for whom, for the error; copied; may be NULL */
} kl_wait;

typedef struct kl_runtime_table {
  kl_table_header header;

  kl_result (*driver_info)(kl_driver_info* out);
  kl_result (*last_error)(kl_error* out); /* of the calling thread */

  /* Neither of these starts a thread, maps memory or opens a device. */
  kl_result (*device_count)(int32_t* out);
  kl_result (*device_properties)(int32_t device, kl_device_properties* out);

  kl_result (*memory_info)(int32_t device, uint64_t* free_bytes, uint64_t* total_bytes);
  /* Synchronous; memory comes in whole pages. KL_ERROR_OUT_OF_MEMORY when full. */
  kl_result (*memory_alloc)(int32_t device, uint64_t bytes, int32_t kind, void** out);
  kl_result (*memory_free)(int32_t device, void* ptr);
  kl_result (*host_malloc)(uint64_t bytes, void** out); /* pinned */
  kl_result (*host_free)(void* ptr);
  kl_result (*pointer_info)(const void* ptr, kl_pointer_info* out);

  kl_result (*stream_create)(int32_t device, int32_t priority, kl_stream* out);
  kl_result (*stream_destroy)(kl_stream stream); /* waits for its work; the stream is gone even if that failed */
  kl_result (*stream_query)(kl_stream stream);   /* KL_SUCCESS or KL_NOT_READY */
  kl_result (*stream_synchronize)(kl_stream stream);
  /* Number of the newest work item enqueued on the stream (0: none yet). */
  kl_result (*stream_sequence)(kl_stream stream, uint64_t* out);
  kl_result (*stream_wait_event)(kl_stream stream, kl_event event);
  kl_result (*device_synchronize)(int32_t device);
  /* Clears a poisoned device: work is dropped, memory contents are lost. */
  kl_result (*device_reset)(int32_t device);

  kl_result (*event_create)(int32_t device, uint32_t flags, kl_event* out);
  kl_result (*event_destroy)(kl_event event);
  kl_result (*event_record)(kl_event event, kl_stream stream);
  kl_result (*event_query)(kl_event event); /* KL_SUCCESS or KL_NOT_READY */
  kl_result (*event_synchronize)(kl_event event);
  /* KL_NOT_READY (with a text in last_error) while one of the two has not happened. */
  kl_result (*event_elapsed)(kl_event start, kl_event end, double* milliseconds);

  kl_result (*memcpy_async)(void* dst, const void* src, uint64_t bytes, int32_t kind, uint32_t flags, kl_stream stream);
  kl_result (*memset_async)(void* dst, int32_t byte, uint64_t bytes, kl_stream stream);
  /* `name` labels the work in errors and traces; it must outlive the call. */
  kl_result (*launch_host)(kl_stream stream, const char* name, kl_host_fn fn, void* arg);

  /*
   * Memory for other processes of the same user. `ptr` is the start of an allocation (pointer_info.base); the handle is
   * plain data that travels by whatever means. It is opened on a device of the same physical_id, and the memory stays
   * until the last opener has closed it, even if the owner has freed it or ended meanwhile.
   */
  kl_result (*ipc_get_handle)(void* ptr, char handle[64]);
  kl_result (*ipc_open_handle)(int32_t device, const char handle[64], void** out);
  kl_result (*ipc_close_handle)(void* ptr);

  /* From now on, calls that wait for work ask `check` now and then, and give up
   * with KL_ERROR_INTERRUPTED when it says so. The work itself goes on, except
   * for a copy to or from pageable memory that has not begun: it is dropped.
   * NULL: waits of this driver cannot be interrupted. */
  kl_result (*set_interrupt_check)(kl_interrupt_check check);

  /* Runs `fn` at once on the calling thread, as the stream's next item, where the stream has nothing left to do and
   * carries no failure: KL_SUCCESS, after the call. Otherwise KL_NOT_READY, and nothing has happened: launch_host then.
   * For short calls that the caller would wait for. NULL: never. */
  kl_result (*try_host)(kl_stream stream, const char* name, kl_host_fn fn, void* arg);

  /* KL_ERROR_NOT_IMPLEMENTED for what the chip has no sensor for. */
  kl_result (*device_telemetry)(int32_t device, int32_t what, double* out);

  /* Events for other processes, made with KL_EVENT_INTERPROCESS. Whoever opened one may record it too. */
  kl_result (*event_ipc_get_handle)(kl_event event, char handle[64]);
  kl_result (*event_ipc_open_handle)(int32_t device, const char handle[64], kl_event* out);

  /* Addresses apart from memory, for segments that grow and shrink in place. A
   * range of addresses is a multiple of `granularity` (bytes, a power of two)
   * and aligned to it; so is every piece of it that is mapped (given memory) or
   * unmapped. KL_ERROR_OUT_OF_MEMORY: address_reserve has no addresses left,
   * memory_map no memory. Memory that is unmapped must not be in use;
   * address_release unmaps what is still mapped. */
  kl_result (*address_reserve)(int32_t device, uint64_t bytes, uint64_t* granularity, void** out);
  kl_result (*address_release)(int32_t device, void* base);
  kl_result (*memory_map)(int32_t device, void* ptr, uint64_t bytes);
  kl_result (*memory_unmap)(int32_t device, void* ptr, uint64_t bytes);

  /* The device of a stream that came from elsewhere. KL_ERROR_VALUE: `stream` is none of this driver's, which must be
   * found out without following the pointer. NULL: cannot be told. */
  kl_result (*stream_device)(kl_stream stream, int32_t* out);

  /* Words of 32 bits by which streams wait for each other, across devices and processes: aligned, in device memory of
   * this process or in memory that it has opened from a handle. What a stream has written before it writes the word,
   * who waited for the word sees. A wait that fails (its time is over, the writer has ended) is a failure of enqueued
   * work and leaves the word alone. It holds up its stream and nothing else, ends with the reset of the device, and
   * finds out sooner or later what ordinary work, on whichever device, has written to the word. */
  kl_result (*stream_write_value32)(kl_stream stream, void* address, uint32_t value);
  kl_result (*stream_wait_value32)(kl_stream stream, void* address, const kl_wait* wait);
} kl_runtime_table;

/* ---- operators -------------------------------------------------------- */

/*
 * Enqueues the operator described by `frame` on `frame->stream` and returns.
 * The frame belongs to the caller again after the return, so a driver that
 * works later copies frame->bytes bytes (the block holds no inner pointers).
 * Frames with KL_FRAME_WAITED stay valid until the caller's wait is over and
 * may call frame->alloc, from any thread.
 */
typedef kl_result (*kl_launch_fn)(void* context, const kl_frame* frame);

typedef struct kl_operator {
  kl_launch_fn launch;
  void* context;
} kl_operator;

typedef struct kl_operators_table {
  kl_table_header header;
  /* `schema` is namespace::name.overload, as in "aten::add.out", "aten::mm.out".
   * KL_ERROR_NOT_IMPLEMENTED when the driver has no such operator.
   * Operators of known result shape are asked for by the schema of their out
   * variant, or of the in-place operator; all others by their functional or
   * in-place schema, with outputs that the operator allocates. */
  kl_result (*lookup)(const char* schema, kl_operator* out);
  /* Whether the operator takes tensors of these dtypes (1 or 0). NULL: all. */
  int32_t (*supports)(const char* schema, const int32_t* dtypes, uint32_t count);
} kl_operators_table;

/* ---- collectives ------------------------------------------------------ */

/* Versioned now, filled in by the distributed package; a driver may leave it NULL. */
typedef struct kl_collectives_table {
  kl_table_header header;
} kl_collectives_table;

/* ---- entry point ------------------------------------------------------ */

typedef struct kl_chip {
  const kl_runtime_table* runtime;
  const kl_operators_table* operators;     /* may be NULL */
  const kl_collectives_table* collectives; /* may be NULL */
} kl_chip;

/* What the loader offers to a driver while it opens. */
typedef struct kl_loader {
  kl_table_header header; /* versioned like the runtime table */
  /* Tables of a built-in driver ("sim" or "xre"), for a driver that extends it. */
  kl_result (*builtin)(const char* name, kl_chip* out);
} kl_loader;

/* The one symbol a driver exports: KL_CHIP_OPEN_SYMBOL. */
#define KL_CHIP_OPEN_SYMBOL "kl_chip_open"
typedef kl_result (*kl_chip_open_fn)(const kl_loader* loader, kl_chip* out, kl_error* error);

#ifdef __cplusplus
}
#endif

#endif /* KUNLUN_CHIP_H */
