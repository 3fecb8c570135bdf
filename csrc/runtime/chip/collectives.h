/*
 * The collectives table of the chip interface: what kl_chip.collectives points
 * to. A header of its own, because few parts of the project need it.
 */
#ifndef KUNLUN_COLLECTIVES_H
#define KUNLUN_COLLECTIVES_H

#include "chip.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Communicators and collectives, after BKCL. A communicator joins `nranks`
 * ranks, each with one device. Every operation is enqueued on a stream of that
 * device and happens in stream order; the call returns at once.
 *
 *   - All ranks issue the collectives of a communicator in the same order.
 *     Operations of one communicator that were enqueued on several streams
 *     are carried out in the order of their calls.
 *   - Buffers are device memory, contiguous, aligned to their dtype; `count`
 *     counts elements of `dtype`. A buffer of no elements may be NULL. In-place
 *     operation: all_reduce, reduce and broadcast with send == recv, all_gather
 *     with send at the rank's place in recv, reduce_scatter with recv at the
 *     rank's place in send. Other overlaps are the caller's error.
 *   - Ranks that disagree about operation, dtype, reduction, root or count get
 *     the same KL_ERROR_VALUE on every rank, before anything is read or
 *     written, and the communicator stays usable. A rank whose stream carries a
 *     failure when the operation's turn comes takes part all the same and makes
 *     it fail on every rank.
 *   - When a peer is lost, or after comm_abort, every operation fails with one
 *     KL_ERROR_RUNTIME that says why, and comm_error reports it from then on.
 *   - A NULL entry is an operation the driver does not have.
 */
#define KL_COMM_ID_BYTES 8192

typedef struct kl_comm_id {
  unsigned char bytes[KL_COMM_ID_BYTES];
} kl_comm_id;

typedef struct kl_comm_st* kl_comm;

typedef enum kl_reduce_op {
  KL_REDUCE_SUM = 0,
  KL_REDUCE_AVG = 1,
  KL_REDUCE_PRODUCT = 2,
  KL_REDUCE_MIN = 3,
  KL_REDUCE_MAX = 4,
  KL_REDUCE_BAND = 5,
  KL_REDUCE_BOR = 6,
  KL_REDUCE_BXOR = 7,
  KL_REDUCE_PREMUL_SUM = 8 /* each rank's input times the factor it names, then the sum */
} kl_reduce_op;

typedef struct kl_reduction {
  int32_t op; /* kl_reduce_op */
  int32_t reserved;
  double factor;             /* PREMUL_SUM */
  const void* device_factor; /* if not NULL: one element of the dtype in device memory, instead of `factor` */
} kl_reduction;

enum {
  /* A communicator may have ranks on several hosts. Otherwise those of one host get a communicator of their own. */
  KL_COLLECTIVES_ACROSS_HOSTS = 1u << 0,
  /* The driver does not see that a peer is lost: operations wait for it until comm_abort. The caller looks after the
   * processes of the ranks. */
  KL_COLLECTIVES_PEERS_UNSEEN = 1u << 1
};

typedef struct kl_collectives {
  kl_table_header header;

  /* Made by one rank and brought to the others by the caller. That process must also call comm_init as rank 0. */
  kl_result (*unique_id)(kl_comm_id* out);
  /* Waits until every rank has called it, for at most `timeout_ms`. */
  kl_result (*comm_init)(
      int32_t device,
      int32_t rank,
      int32_t nranks,
      const kl_comm_id* id,
      uint64_t timeout_ms,
      kl_comm* out);
  /* The communicator goes once what is enqueued has passed. Peers that wait for this rank get an error. */
  kl_result (*comm_destroy)(kl_comm comm);
  /* Ends every operation on every rank, running ones too. `reason` becomes part of their error. */
  kl_result (*comm_abort)(kl_comm comm, const char* reason);
  /* KL_SUCCESS while the communicator works; otherwise fills `out` and returns its code. */
  kl_result (*comm_error)(kl_comm comm, kl_error* out);
  /* What the communicator waits for: the ranks that have not joined its current collective, one bit in
   * `missing[rank / 64]` each, and the number of that collective (0: none is running). */
  kl_result (*comm_progress)(kl_comm comm, uint64_t* sequence, uint64_t* missing, uint32_t words);

  /* send and recv between the two calls make progress together, on one stream. Per thread; not nested. */
  kl_result (*group_start)(void);
  kl_result (*group_end)(void);

  kl_result (*all_reduce)(
      kl_comm comm,
      const void* send,
      void* recv,
      uint64_t count,
      int32_t dtype,
      const kl_reduction* reduction,
      kl_stream stream);
  kl_result (*reduce)(
      kl_comm comm,
      const void* send,
      void* recv, /* read on the root only, as is the result of gather */
      uint64_t count,
      int32_t dtype,
      const kl_reduction* reduction,
      int32_t root,
      kl_stream stream);
  kl_result (*broadcast)(
      kl_comm comm,
      const void* send,
      void* recv,
      uint64_t count,
      int32_t dtype,
      int32_t root,
      kl_stream stream);
  /* `count` elements of each rank */
  kl_result (*all_gather)(kl_comm comm, const void* send, void* recv, uint64_t count, int32_t dtype, kl_stream stream);
  kl_result (*reduce_scatter)(
      kl_comm comm,
      const void* send,
      void* recv,
      uint64_t count, /* of the result */
      int32_t dtype,
      const kl_reduction* reduction,
      kl_stream stream);
  /* Counts and displacements in elements, one for each rank, in host memory; they are copied. */
  kl_result (*all_to_all_v)(
      kl_comm comm,
      const void* send,
      const uint64_t* send_counts,
      const uint64_t* send_displacements,
      void* recv,
      const uint64_t* recv_counts,
      const uint64_t* recv_displacements,
      int32_t dtype,
      kl_stream stream);
  kl_result (*gather)(
      kl_comm comm,
      const void* send,
      void* recv,
      uint64_t count,
      int32_t dtype,
      int32_t root,
      kl_stream stream);
  kl_result (*scatter)(
      kl_comm comm,
      const void* send,
      void* recv,
      uint64_t count,
      int32_t dtype,
      int32_t root,
      kl_stream stream);
  kl_result (*barrier)(kl_comm comm, kl_stream stream);

  /* A send completes when the peer has the data. */
  kl_result (*send)(kl_comm comm, const void* buffer, uint64_t count, int32_t dtype, int32_t peer, kl_stream stream);
  kl_result (*recv)(kl_comm comm, void* buffer, uint64_t count, int32_t dtype, int32_t peer, kl_stream stream);
  /* Whether a send of that peer waits for a recv that has not been called yet (1 or 0). */
  kl_result (*probe)(kl_comm comm, int32_t peer, int32_t* out);

  /* A collective may be carried out by the call itself, which is faster where the stream has nothing else to do. This
   * is for how long the calling thread lets its collectives wait for peers, in nanoseconds from each call; then the
   * stream goes on without it. 0, as at the start of each thread: not at all. NULL: calls never wait. */
  kl_result (*set_patience)(uint64_t nanoseconds);

  uint64_t flags; /* KL_COLLECTIVES_* */

  /* Whether communicators can be made at all: KL_SUCCESS, or an error that says what is missing and what to do, such as
   * a library that is not installed. Starts no device. NULL: nothing can be missing. */
  kl_result (*available)(void);

  /* Closes the calling thread's group, if one is open, and forgets it: for a caller that has failed between group_start
   * and group_end. NULL: group_end closes it, and what is in it takes place. */
  kl_result (*group_cancel)(void);
} kl_collectives;

#ifdef __cplusplus
}
#endif

#endif /* KUNLUN_COLLECTIVES_H */
