/*
 * A third-party chip driver in C: the simulated chip with one operator of its own.
 *
 *   cc -std=c11 -shared -fPIC -Icsrc test/chip/tiny_driver.c -o tiny_driver.so
 *
 * It overrides aten::hardsigmoid.out for contiguous float32 and leaves everything else to the chip it extends. What the
 * loader must refuse is built from the same file:
 *   -DTINY_NO_ENTRY       no kl_chip_open
 *   -DTINY_BAD_MAJOR      a runtime table of another major version
 *   -DTINY_BAD_OPERATORS  an operators table of another major version
 *   -DTINY_NO_RUNTIME     no runtime table
 *   -DTINY_REFUSES        says why it cannot open
 * and what the loader must cope with:
 *   -DTINY_OLD            a runtime table that ends before event_elapsed, as a driver of an older minor version has
 * and what KUNLUN_AUTOCOMPARE must find:
 *   -DTINY_WRONG          an operator that computes something else
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/chip/chip.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT atomic_int tiny_driver_calls; /* times that the driver's own kernel ran */

static kl_chip base;                 /* the chip that this one extends */
static kl_operator base_hardsigmoid; /* its operator; launch is NULL where it has none */
static kl_operators_table operators;
static kl_runtime_table runtime;

/* ---- the operator ---- */

static int is_contiguous_float32(const kl_frame* frame, const kl_value* value) {
  if (value->tag != KL_TAG_TENSOR) {
    return 0;
  }
  const kl_tensor* t = &value->v.t;
  if (t->dtype != KL_FLOAT32 || (t->flags & (KL_TENSOR_NEG | KL_TENSOR_HOST_SCALAR)) != 0) {
    return 0;
  }
  const int64_t* sizes = kl_tensor_sizes(frame, t);
  const int64_t* strides = kl_tensor_strides(frame, t);
  int64_t expected = 1;
  for (uint32_t d = t->ndim; d-- > 0;) {
    if (sizes[d] == 0) {
      return 1;
    }
    if (sizes[d] != 1 && strides[d] != expected) {
      return 0;
    }
    expected *= sizes[d];
  }
  return 1;
}

static int64_t element_count(const kl_frame* frame, const kl_tensor* t) {
  int64_t count = 1;
  for (uint32_t d = 0; d < t->ndim; ++d) {
    count *= kl_tensor_sizes(frame, t)[d];
  }
  return count;
}

static int have_same_shape(const kl_frame* frame, const kl_tensor* a, const kl_tensor* b) {
  return a->ndim == b->ndim &&
      memcmp(kl_tensor_sizes(frame, a), kl_tensor_sizes(frame, b), a->ndim * sizeof(int64_t)) == 0;
}

/* Runs in stream order on the chip's thread. The frame is our copy. */
static kl_result run_hardsigmoid(void* arg, const kl_error* error, kl_error* result) {
  kl_frame* frame = arg;
  (void)result;
  if (error == NULL) { /* behind a failure there is nothing to compute */
    const kl_tensor* self = &kl_frame_args(frame)[0].v.t;
    const kl_tensor* out = &kl_frame_outs(frame)[0].v.t;
    const float* x = (const float*)self->data + self->offset;
    float* y = (float*)out->data + out->offset;
    const int64_t count = element_count(frame, self);
    for (int64_t i = 0; i < count; ++i) {
      const float shifted = x[i] + 3.0f;
      /* The comparisons are false for NaN, which passes through. */
      const float clamped = shifted < 0.0f ? 0.0f : shifted > 6.0f ? 6.0f : shifted;
#ifdef TINY_WRONG
      y[i] = clamped / 6.0f + (i == 2 ? 0.25f : 0.0f);
#else
      y[i] = clamped / 6.0f;
#endif
    }
    atomic_fetch_add(&tiny_driver_calls, 1);
  }
  free(frame);
  return KL_SUCCESS;
}

static kl_result launch_hardsigmoid(void* context, const kl_frame* frame) {
  (void)context;
  const kl_value* args = kl_frame_args(frame);
  const kl_value* outs = kl_frame_outs(frame);
  if (frame->nargs < 1 || frame->nouts != 1 || !is_contiguous_float32(frame, &args[0]) ||
      !is_contiguous_float32(frame, &outs[0]) || !have_same_shape(frame, &args[0].v.t, &outs[0].v.t)) {
    return base_hardsigmoid.launch != NULL ? base_hardsigmoid.launch(base_hardsigmoid.context, frame)
                                           : KL_ERROR_NOT_IMPLEMENTED;
  }
  kl_frame* copy = malloc(frame->bytes);
  if (copy == NULL) {
    return KL_ERROR_OUT_OF_MEMORY;
  }
  memcpy(copy, frame, frame->bytes);
  const kl_result launched = base.runtime->launch_host(frame->stream, frame->schema, run_hardsigmoid, copy);
  if (launched != KL_SUCCESS) {
    free(copy);
  }
  return launched;
}

/* ---- the operators table ---- */

static kl_result lookup(const char* schema, kl_operator* out) {
  if (strcmp(schema, "aten::hardsigmoid.out") == 0) {
    out->launch = launch_hardsigmoid;
    out->context = NULL;
    return KL_SUCCESS;
  }
  return base.operators != NULL ? base.operators->lookup(schema, out) : KL_ERROR_NOT_IMPLEMENTED;
}

static int32_t supports(const char* schema, const int32_t* dtypes, uint32_t count) {
  if (base.operators != NULL) {
    return base.operators->supports == NULL ? 1 : base.operators->supports(schema, dtypes, count);
  }
  for (uint32_t i = 0; i < count; ++i) {
    if (dtypes[i] != KL_FLOAT32) {
      return 0;
    }
  }
  return strcmp(schema, "aten::hardsigmoid.out") == 0;
}

/* ---- the runtime table: forwarded, but for the name ---- */

static kl_result driver_info(kl_driver_info* out) {
  const kl_result result = base.runtime->driver_info(out);
  if (result == KL_SUCCESS) {
    snprintf(out->name, sizeof(out->name), "tiny");
    snprintf(out->driver_version, sizeof(out->driver_version), "1.2.3");
  }
  return result;
}

#ifdef TINY_NO_ENTRY
#define kl_chip_open tiny_open /* the loader looks for the real name */
#endif

EXPORT kl_result kl_chip_open(const kl_loader* loader, kl_chip* out, kl_error* error);

kl_result kl_chip_open(const kl_loader* loader, kl_chip* out, kl_error* error) {
#ifdef TINY_REFUSES
  snprintf(error->text, sizeof(error->text), "the card is on fire");
  return KL_ERROR_DEVICE;
#endif
  if (loader->builtin("sim", &base) != KL_SUCCESS) {
    snprintf(error->text, sizeof(error->text), "the loader has no simulated chip to extend");
    return KL_ERROR_RUNTIME;
  }
  runtime = *base.runtime;
  runtime.driver_info = driver_info;
  if (base.operators == NULL || base.operators->lookup("aten::hardsigmoid.out", &base_hardsigmoid) != KL_SUCCESS) {
    base_hardsigmoid.launch = NULL;
  }
  operators.header.size = sizeof(operators);
  operators.header.abi_major = KL_OPERATORS_ABI_MAJOR;
  operators.header.abi_minor = KL_OPERATORS_ABI_MINOR;
  operators.lookup = lookup;
  operators.supports = supports;
#ifdef TINY_BAD_MAJOR
  runtime.header.abi_major = KL_RUNTIME_ABI_MAJOR + 6;
  runtime.header.abi_minor = 3;
#endif
#ifdef TINY_BAD_OPERATORS
  operators.header.abi_major = KL_OPERATORS_ABI_MAJOR + 1;
#endif
#ifdef TINY_OLD
  runtime.header.size = offsetof(kl_runtime_table, event_elapsed);
#endif
#ifdef TINY_NO_ADDRESSES
  runtime.address_reserve = NULL;
#endif
#ifdef TINY_NO_RUNTIME
  out->runtime = NULL;
#else
  out->runtime = &runtime;
#endif
  out->operators = &operators;
  out->collectives = NULL;
  return KL_SUCCESS;
}
