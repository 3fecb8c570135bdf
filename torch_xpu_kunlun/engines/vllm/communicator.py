"""Collectives between the ranks of a group, over XCCL."""

from __future__ import annotations

import torch
from torch import distributed
from vllm.distributed.device_communicators.base_device_communicator import DeviceCommunicatorBase


class KunlunCommunicator(DeviceCommunicatorBase):
    """vLLM's communicator over torch.distributed, with the exchange that experts spread over ranks need."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        if self.use_all2all:
            from vllm.distributed.device_communicators.all2all import AgRsAll2AllManager

            self.all2all_manager = AgRsAll2AllManager(self.cpu_group)

    def all_gatherv(self, input_, dim: int = 0, sizes: list[int] | None = None):
        """All ranks' rows, of which rank ``i`` has ``sizes[i]``, one after the other; for one tensor or a list."""
        if dim != 0:
            raise NotImplementedError("all_gatherv works along the first dimension only")
        if isinstance(input_, list):
            return [self.all_gatherv(tensor, dim, sizes) for tensor in input_]
        sizes = sizes or [input_.shape[0]] * self.world_size
        parts = [torch.empty((size, *input_.shape[1:]), dtype=input_.dtype, device=input_.device) for size in sizes]
        distributed.all_gather(parts, input_.contiguous(), group=self.device_group)
        return torch.cat(parts)

    def reduce_scatterv(self, input_, dim: int = -1, sizes: list[int] | None = None):
        """This rank's rows of the sum over ranks; rank ``i`` keeps ``sizes[i]``."""
        moved = input_.movedim(0, dim).contiguous()
        sizes = sizes or [moved.shape[0] // self.world_size] * self.world_size
        parts = [part.contiguous() for part in moved.split(sizes)]
        output = torch.empty_like(parts[self.rank_in_group])
        distributed.reduce_scatter(output, parts, group=self.device_group)
        return output.movedim(0, dim).contiguous()

    def dispatch_router_logits(
        self, hidden_states, router_logits, is_sequence_parallel: bool = False, extra_tensors=None
    ):
        return self.all2all_manager.dispatch_router_logits(
            hidden_states, router_logits, is_sequence_parallel, extra_tensors
        )

    def dispatch(self, hidden_states, topk_weights, topk_ids, is_sequence_parallel: bool = False, extra_tensors=None):
        return self.all2all_manager.dispatch(
            hidden_states, topk_weights, topk_ids, is_sequence_parallel, extra_tensors=extra_tensors
        )

    def combine(self, hidden_states, is_sequence_parallel: bool = False):
        return self.all2all_manager.combine(hidden_states, is_sequence_parallel)
