/*
 * The call frame of an operator: one relocatable block of memory.
 *
 *   kl_frame | kl_value args[nargs] | kl_value outs[nouts] | tail
 *
 * Lists, strings, sizes and strides live in the tail and are named by their
 * byte offset from the start of the frame, so a frame can be copied with one
 * memcpy. Arguments come in the order of the operator's schema; `outs` holds
 * the tensors that the operator writes and returns.
 */
#ifndef KUNLUN_FRAME_H
#define KUNLUN_FRAME_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- results ---------------------------------------------------------- */

typedef enum kl_result {
  KL_SUCCESS = 0,
  KL_NOT_READY = 1, /* stream_query, event_query and event_elapsed only */
  KL_ERROR_INDEX = 2,
  KL_ERROR_VALUE = 3,
  KL_ERROR_TYPE = 4,
  KL_ERROR_NOT_IMPLEMENTED = 5,
  KL_ERROR_OUT_OF_MEMORY = 6,
  KL_ERROR_DEVICE = 7, /* the device is faulty or gone; poisons until reset */
  KL_ERROR_RUNTIME = 8,
  KL_ERROR_LINALG = 9,
  KL_ERROR_INTERRUPTED = 10 /* a wait was given up because the interrupt check said so */
} kl_result;

typedef struct kl_error {
  int32_t code;      /* kl_result */
  int32_t device;    /* -1 when none is involved */
  uint64_t sequence; /* number of the work item on its stream, 0 when none */
  char op[128];      /* operator or call, empty when none */
  char text[2048];
} kl_error;

/* ---- values ----------------------------------------------------------- */

typedef enum kl_dtype {
  KL_DTYPE_UNDEFINED = 0,
  KL_BOOL = 1,
  KL_UINT8 = 2,
  KL_INT8 = 3,
  KL_INT16 = 4,
  KL_INT32 = 5,
  KL_INT64 = 6,
  KL_UINT16 = 7,
  KL_UINT32 = 8,
  KL_UINT64 = 9,
  KL_FLOAT16 = 10,
  KL_BFLOAT16 = 11,
  KL_FLOAT32 = 12,
  KL_FLOAT64 = 13,
  KL_COMPLEX32 = 14, /* two halves */
  KL_COMPLEX64 = 15,
  KL_COMPLEX128 = 16,
  KL_FLOAT8_E4M3FN = 17,
  KL_FLOAT8_E5M2 = 18,
  KL_FLOAT8_E4M3FNUZ = 19,
  KL_FLOAT8_E5M2FNUZ = 20,
  KL_FLOAT8_E8M0FNU = 21,
  KL_DTYPE_COUNT = 22
} kl_dtype;

typedef enum kl_tag {
  KL_TAG_ABSENT = 0, /* None of an optional argument */
  KL_TAG_TENSOR = 1,
  KL_TAG_TENSOR_LIST = 2, /* elements may be ABSENT */
  KL_TAG_BOOL = 3,
  KL_TAG_INT = 4,
  KL_TAG_DOUBLE = 5,
  KL_TAG_COMPLEX = 6,
  KL_TAG_INT_LIST = 7,
  KL_TAG_DOUBLE_LIST = 8,
  KL_TAG_BOOL_LIST = 9, /* one byte each */
  KL_TAG_STRING = 10,
  KL_TAG_DTYPE = 11,         /* i is a kl_dtype */
  KL_TAG_LAYOUT = 12,        /* i: 0 strided */
  KL_TAG_MEMORY_FORMAT = 13, /* i: 0 contiguous, 1 preserve, 2 channels_last, 3 channels_last_3d */
  KL_TAG_PHILOX = 14,        /* u[0] seed, u[1] offset */
  KL_TAG_SCALAR_LIST = 15    /* kl_value elements: BOOL, INT, DOUBLE or COMPLEX */
} kl_tag;

/* kl_tensor.flags */
enum {
  KL_TENSOR_CONJ = 1u << 0,
  KL_TENSOR_NEG = 1u << 1,
  KL_TENSOR_WRAPPED_NUMBER = 1u << 2, /* takes no part in type promotion as a tensor */
  KL_TENSOR_HOST_SCALAR = 1u << 3     /* 0-dim host tensor; its value is in `scalar` */
};

typedef struct kl_tensor {
  void* data;          /* start of the storage, NULL for a host scalar */
  uint64_t storage_id; /* equal iff two arguments share their storage */
  uint64_t tensor_id;  /* equal iff two arguments are one tensor */
  uint64_t storage_bytes;
  int64_t offset; /* of the first element, in elements */
  int32_t dtype;  /* kl_dtype */
  uint32_t ndim;
  uint32_t flags;
  uint32_t dims; /* where int64 sizes[ndim], then strides[ndim] lie (elements) */
  unsigned char scalar[16];
} kl_tensor;

typedef struct kl_value {
  uint32_t tag;   /* kl_tag */
  uint32_t count; /* elements of a list, bytes of a string */
  union {
    int64_t i; /* BOOL, INT, DTYPE, LAYOUT, MEMORY_FORMAT */
    double d[2];
    uint64_t u[2];
    uint64_t tail; /* where a list or a string lies */
    kl_tensor t;
  } v;
} kl_value;

/* kl_frame.flags */
enum {
  KL_FRAME_WAITED = 1u << 0 /* the caller waits; the frame stays, alloc may be called */
};

struct kl_stream_st;
struct kl_frame;

/*
 * Allocates output `slot`, whose shape only the operator knows, and fills in
 * its kl_value. Sizes and strides are in elements; strides may be NULL for
 * contiguous. Fails with KL_ERROR_OUT_OF_MEMORY.
 */
typedef kl_result (*kl_frame_alloc_fn)(
    struct kl_frame* frame,
    uint32_t slot,
    int32_t dtype,
    uint32_t ndim,
    const int64_t* sizes,
    const int64_t* strides);

typedef struct kl_frame {
  uint32_t bytes; /* of the whole block */
  uint32_t flags;
  const char* schema; /* static string */
  struct kl_stream_st* stream;
  kl_frame_alloc_fn alloc; /* NULL unless KL_FRAME_WAITED */
  void* alloc_context;     /* the caller's */
  uint32_t nargs;
  uint32_t nouts;
} kl_frame;

static inline const kl_value* kl_frame_args(const kl_frame* f) {
  return (const kl_value*)(f + 1);
}
static inline const kl_value* kl_frame_outs(const kl_frame* f) {
  return kl_frame_args(f) + f->nargs;
}
static inline const void* kl_frame_at(const kl_frame* f, uint64_t tail) {
  return (const char*)f + tail;
}
static inline const int64_t* kl_tensor_sizes(const kl_frame* f, const kl_tensor* t) {
  return (const int64_t*)kl_frame_at(f, t->dims);
}
static inline const int64_t* kl_tensor_strides(const kl_frame* f, const kl_tensor* t) {
  return kl_tensor_sizes(f, t) + t->ndim;
}

#ifdef __cplusplus
}
#endif

#endif /* KUNLUN_FRAME_H */
