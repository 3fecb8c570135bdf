"""The hooks of the plug-in, through SGLang's own registry of them; ``docs/ledger.md`` has a line for each."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.arg_groups.choices import (
    add_attention_backend_choices,
    add_deterministic_attention_backend_choices,
    add_radix_supported_deterministic_attention_backend_choices,
)
from sglang.srt.platforms import interface
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

import torch_xpu_kunlun
from torch_xpu_kunlun.engines.sglang import custom_ops, leftovers, seeds, triton_kernels

logger = logging.getLogger(__name__)

DEVICE = BACKEND = "kunlun"
#: SGLang 0.5.23 asks the platform whether Triton's kernels run on it; 0.5.21 goes by the name of the attention backend.
_ASKS_PLATFORM = hasattr(interface, "PlatformCapabilities")


def _support_triton(original: Callable[[str], bool], backend: str) -> bool:
    return backend != BACKEND and original(backend)


def _async_d2h(original: Callable[[torch.Tensor], torch.Tensor], tensor: torch.Tensor) -> torch.Tensor:
    """A copy to pinned memory on the current stream, which keeps the source from being used again before."""
    if tensor.device.type != DEVICE:
        return original(tensor)
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    tensor.record_stream(torch.kunlun.current_stream(tensor.device))
    return host


def _apply_vocab_mask(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Methods of grammars with ``(logits, vocab_mask)``, of which one has ``self`` before them."""
    values = [*args, *kwargs.values()]
    logits = kwargs.get("logits", values[-2])
    if logits.device.type != DEVICE:
        original(*args, **kwargs)
        return
    triton_kernels.apply_bitmask_(logits, kwargs.get("vocab_mask", values[-1]))


def _finish_start(*args: Any, **kwargs: Any) -> None:
    """Waits for what the start has put on the default stream, the filling of the caches above all.

    The scheduler works on streams of its own, which wait for each other only.
    """
    torch.kunlun.synchronize()


def _no_batch_invariance(*args: Any, **kwargs: Any) -> None:
    """``--enable-deterministic-inference``: seeds of requests are obeyed, but sums are not those of every batch."""
    logger.warning(
        "matrix products on kunlun are not batch invariant: with --enable-deterministic-inference each request's seed "
        "is obeyed, and a run repeats exactly if its batches do; in another batch the last digits may differ"
    )


def _add_operators(result: Any, *args: Any, **kwargs: Any) -> None:
    """Adds the counts of operators by tier to what ``get_server_info`` tells of a scheduler."""
    result.internal_state["kunlun_operators"] = torch_xpu_kunlun.operator_statistics()


HOOKS = (
    # what the engine tells and waits for
    ("sglang.srt.managers.scheduler.Scheduler.run_event_loop", _finish_start, HookType.BEFORE),
    ("sglang.srt.managers.scheduler.Scheduler.get_internal_state", _add_operators, HookType.AFTER),
    (
        "sglang.srt.batch_invariant_ops.batch_invariant_ops.enable_batch_invariant_mode",
        _no_batch_invariance,
        HookType.REPLACE,
    ),
    # operators that are registered for CUDA
    ("sglang.srt.utils.common.direct_register_custom_op", custom_ops.after_direct_register, HookType.AFTER),
    # what is left behind
    (
        "sglang.srt.managers.load_snapshot.create_load_snapshot_reader",
        leftovers.remember_load_file,
        HookType.AFTER,
    ),
    ("sglang.srt.entrypoints.engine.Engine._launch_subprocesses", leftovers.unlink_load_file, HookType.AFTER),
    ("sglang.srt.entrypoints.engine.Engine.shutdown", leftovers.remove_load_files, HookType.AFTER),
    ("sglang.srt.managers.scheduler.Scheduler.__init__", leftovers.remove_load_file_of_failed_start, HookType.AROUND),
    (
        "sglang.srt.distributed.device_communicators.shm_broadcast.MessageQueue.wait_until_ready",
        leftovers.unlink_queue,
        HookType.AFTER,
    ),
    # kernels of Triton
    (
        "sglang.srt.model_executor.forward_batch_info.compute_position",
        triton_kernels.compute_position,
        HookType.REPLACE,
    ),
    (
        "sglang.kernels.ops.elementwise.elementwise.fused_gate_sigmoid_mul",
        triton_kernels.gated_expert,
        HookType.REPLACE,
    ),
    (
        "sglang.kernels.ops.elementwise.elementwise.fused_gate_sigmoid_mul_add",
        triton_kernels.add_gated_expert,
        HookType.REPLACE,
    ),
    ("sglang.srt.constrained.xgrammar_backend.XGrammarGrammar.apply_vocab_mask", _apply_vocab_mask, HookType.AROUND),
    (
        "sglang.srt.constrained.xgrammar_backend.XGrammarGrammarBackend.apply_vocab_mask",
        _apply_vocab_mask,
        HookType.AROUND,
    ),
    ("sglang.srt.constrained.llguidance_backend.GuidanceGrammar.apply_vocab_mask", _apply_vocab_mask, HookType.AROUND),
    ("sglang.srt.layers.sampler.multinomial_with_seed", seeds.multinomial_with_seed, HookType.REPLACE),
    ("sglang.kernels.ops.activation.softcap.softcap_inplace_logits", triton_kernels.softcap_, HookType.REPLACE),
)
HOOKS_OF_0_5_21 = (
    ("sglang.srt.utils.common.async_d2h", _async_d2h, HookType.AROUND),
    ("sglang.srt.utils.common.support_triton", _support_triton, HookType.AROUND),
    ("sglang.srt.mem_cache.allocation.get_last_loc", triton_kernels.get_last_loc, HookType.REPLACE),
)


def register() -> None:
    """Called by SGLang in each of its processes, before it reads its arguments."""
    # The attention is the same whatever shares the batch, and wherever a prompt is cut.
    for add_choice in (
        add_attention_backend_choices,
        add_deterministic_attention_backend_choices,
        add_radix_supported_deterministic_attention_backend_choices,
    ):
        add_choice([BACKEND])
    # The scheduler's writes to the table of slots wait for the forward pass that reads it. SGLang's default on CUDA.
    os.environ.setdefault("SGLANG_ENABLE_WAR_BARRIER", "1")
    hooks = [*HOOKS, *([] if _ASKS_PLATFORM else HOOKS_OF_0_5_21)]
    for target, hook, kind in hooks:
        HookRegistry.register(target, hook, kind)
