"""vLLM's Triton kernels that the V1 runner cannot do without, in plain torch: there is no Triton for the device."""

from __future__ import annotations

import torch

from torch_xpu_kunlun.engines.vllm import rejection


def compute_slot_mapping(
    num_tokens,
    max_num_tokens,
    query_start_loc_ptr,
    positions_ptr,
    block_table_ptr,
    block_table_stride,
    slot_mapping_ptr,
    KV_CACHE_BLOCK_SIZE,
    TOTAL_CP_WORLD_SIZE,
    TOTAL_CP_RANK,
    CP_KV_CACHE_INTERLEAVE_SIZE,
    PAD_ID,
    BLOCK_SIZE,
) -> None:
    """Slot of every token in the cache: its block, from its request's row of the table, and its row in the block.

    Parameters are named as the kernel's, by which vLLM passes them. ``positions`` has ``num_tokens`` elements and
    ``slot_mapping`` ``max_num_tokens``, of which the rest is filled with ``PAD_ID``.
    """
    if TOTAL_CP_WORLD_SIZE != 1:
        raise NotImplementedError(
            "context parallelism does not run on kunlun: leave out --decode-context-parallel-size and "
            "--prefill-context-parallel-size"
        )
    starts = query_start_loc_ptr
    requests = starts.shape[0] - 1
    if num_tokens == requests:
        rows = torch.arange(num_tokens, device=starts.device)
    else:
        # How many requests began before a token or with it, less one. Those without tokens are counted too.
        begun = torch.zeros(num_tokens + 1, dtype=torch.int32, device=starts.device)
        begun.scatter_add_(0, starts[1:].long(), torch.ones_like(starts[1:], dtype=torch.int32))
        rows = begun.cumsum(0)[:num_tokens]
    positions = positions_ptr[:num_tokens]
    columns = positions.div(KV_CACHE_BLOCK_SIZE, rounding_mode="floor")
    slots = block_table_ptr[rows, columns] * KV_CACHE_BLOCK_SIZE + positions % KV_CACHE_BLOCK_SIZE
    slot_mapping_ptr[:num_tokens] = slots
    slot_mapping_ptr[num_tokens:max_num_tokens].fill_(PAD_ID)


def register() -> None:
    """Tells vLLM's dispatcher of kernels; before its first runner is made."""
    from vllm.triton_utils.dispatcher import _registry, register_kernels

    kernels = {
        "vllm.v1.worker.block_table.ComputeSlotMappingKernel.kernel": compute_slot_mapping,
        **rejection.KERNELS,
    }
    # Registration searches all modules that are loaded, so it is not for every engine of a process.
    if missing := {name: kernel for name, kernel in kernels.items() if name not in _registry}:
        register_kernels(missing)
