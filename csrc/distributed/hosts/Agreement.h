// Ranks on several hosts agree about an operation before any of its data moves.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "runtime/chip/chip.h"

namespace kunlun::distributed::hosts {

// What a rank was called with, as it travels. A rank whose stream carries a failure says so instead.
struct Call {
  char name[32];
  int32_t dtype;
  int32_t reduction;
  int32_t root;
  int32_t rank; // in the group
  uint64_t count;
  int32_t failure; // kl_result
  char text[452];

  void fail(const kl_error& error);
  std::string describe() const;
};

Call callOf(
    const char* name,
    c10::ScalarType dtype,
    uint64_t count,
    int rank,
    int root = -1,
    int reduction = -1) noexcept;

// Raises the same error on all ranks of `gloo` if one of them has failed (of its class) or if two were called with
// different things (ValueError). Blocks the calling thread.
void agree(c10d::Backend& gloo, const Call& mine);
// The same between this rank and `peer`. `tag` and the next one are used.
void agreeWith(c10d::Backend& gloo, int peer, int tag, const Call& mine);

// For all_to_all: what each rank sends to another must be what that one expects. In bytes, one entry for each rank.
void agreeAboutSizes(c10d::Backend& gloo, const std::vector<int64_t>& sent, const std::vector<int64_t>& received);

// ---- gloo on host memory; each call waits for its end

void allGather(c10d::Backend& gloo, const at::Tensor& all, const at::Tensor& mine); // all: [ranks, bytes of mine]
void broadcast(c10d::Backend& gloo, at::Tensor data, int root);

} // namespace kunlun::distributed::hosts
