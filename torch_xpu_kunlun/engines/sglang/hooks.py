"""The hooks of the plug-in, through SGLang's own registry of them; ``docs/ledger.md`` has a line for each."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.arg_groups.choices import add_attention_backend_choices
from sglang.srt.platforms import interface
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

import torch_xpu_kunlun
from torch_xpu_kunlun.engines.sglang import custom_ops, leftovers

DEVICE = BACKEND = "kunlun"
#: SGLang 0.5.23 asks the platform whether Triton's kernels run on it; 0.5.21 goes by the name of the attention backend.
_ASKS_PLATFORM = hasattr(interface, "PlatformCapabilities")


def _support_triton(original: Callable[[str], bool], backend: str) -> bool:
    return backend != BACKEND and original(backend)


def _get_last_loc(
    req_to_token: torch.Tensor, req_pool_indices_tensor: torch.Tensor, prefix_lens_tensor: torch.Tensor
) -> torch.Tensor:
    from sglang.srt.mem_cache.allocation import get_last_loc_torch

    return get_last_loc_torch(req_to_token, req_pool_indices_tensor, prefix_lens_tensor)


def compute_position(
    attn_backend: str, extend_prefix_lens: torch.Tensor, extend_seq_lens: torch.Tensor, extend_seq_lens_sum: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions of the new tokens, ``[tokens]`` in int64, and where each sequence begins among them.

    SGLang's form without Triton makes a range for each sequence from lengths that it waits for.
    """
    ends = torch.cumsum(extend_seq_lens, 0)
    starts = ends - extend_seq_lens
    tokens = torch.arange(extend_seq_lens_sum, device=extend_seq_lens.device, dtype=torch.int64)
    # To which sequence a token belongs: so many have ended before it.
    sequence = (ends.unsqueeze(1) <= tokens).sum(0)
    positions = tokens + (extend_prefix_lens - starts)[sequence]
    return positions, starts


def _async_d2h(original: Callable[[torch.Tensor], torch.Tensor], tensor: torch.Tensor) -> torch.Tensor:
    """A copy to pinned memory on the current stream, which keeps the source from being used again before."""
    if tensor.device.type != DEVICE:
        return original(tensor)
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    tensor.record_stream(torch.kunlun.current_stream(tensor.device))
    return host


def _finish_start(*args: Any, **kwargs: Any) -> None:
    """Waits for what the start has put on the default stream, the filling of the caches above all.

    The scheduler works on streams of its own, which wait for each other only.
    """
    torch.kunlun.synchronize()


def _add_operators(result: Any, *args: Any, **kwargs: Any) -> None:
    """Adds the counts of operators by tier to what ``get_server_info`` tells of a scheduler."""
    result.internal_state["kunlun_operators"] = torch_xpu_kunlun.operator_statistics()


def register() -> None:
    """Called by SGLang in each of its processes, before it reads its arguments."""
    add_attention_backend_choices([BACKEND])
    # The scheduler's writes to the table of slots wait for the forward pass that reads it. SGLang's default on CUDA.
    os.environ.setdefault("SGLANG_ENABLE_WAR_BARRIER", "1")
    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.run_event_loop", _finish_start, HookType.BEFORE)
    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.get_internal_state", _add_operators, HookType.AFTER)
    HookRegistry.register(
        "sglang.srt.managers.load_snapshot.create_load_snapshot_reader", leftovers.remember_load_file, HookType.AFTER
    )
    HookRegistry.register("sglang.srt.entrypoints.engine.Engine.shutdown", leftovers.remove_load_files, HookType.AFTER)
    HookRegistry.register(
        "sglang.srt.utils.common.direct_register_custom_op", custom_ops.after_direct_register, HookType.AFTER
    )
    HookRegistry.register(
        "sglang.srt.model_executor.forward_batch_info.compute_position", compute_position, HookType.REPLACE
    )
    if not _ASKS_PLATFORM:
        HookRegistry.register("sglang.srt.utils.common.async_d2h", _async_d2h, HookType.AROUND)
        HookRegistry.register("sglang.srt.utils.common.support_triton", _support_triton, HookType.AROUND)
        HookRegistry.register("sglang.srt.mem_cache.allocation.get_last_loc", _get_last_loc, HookType.REPLACE)
