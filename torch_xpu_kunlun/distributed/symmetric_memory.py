"""The operators of ``torch.distributed._symmetric_memory`` that torch writes in Python, for kunlun.

torch's own go through ``torch.cuda`` for their streams, events and workspace. These compute the same, on the same
schemas: matrix products that overlap with the exchange of what they need or make, and collectives that leave the
device to other work.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence

import torch
from torch.distributed import _symmetric_memory as symmetric_memory
from torch.distributed import distributed_c10d as c10d

Tensors = Sequence[torch.Tensor]

_workspaces: dict[tuple[str, int], tuple[weakref.ref, torch.Tensor]] = {}
_side_streams: dict[int, torch.Stream] = {}


def get_symm_mem_workspace(group_name: str, min_size: int):
    """The workspace of a group on the current kunlun device; torch's function of this name is for CUDA.

    Collective: every rank of the group asks for the same sizes in the same order.

    Args:
        group_name: name of the process group.
        min_size: bytes. A workspace that is smaller is replaced.

    Returns:
        The ``_SymmetricMemory`` of the workspace, of at least ``min_size`` bytes on every rank.
    """
    device = torch.device("kunlun", torch.kunlun.current_device())
    key = (group_name, device.index)
    group = c10d._resolve_process_group(group_name)
    made_for, tensor = _workspaces.get(key, (lambda: None, None))
    # A group of the same name may have taken the place of another, whose ranks had other sizes.
    if made_for() is not group or tensor.numel() < min_size:
        tensor = symmetric_memory.empty(min_size, dtype=torch.uint8, device=device)
        _workspaces[key] = (weakref.ref(group), tensor)
    return symmetric_memory.rendezvous(tensor, group_name)


def _side_stream() -> torch.Stream:
    device = torch.kunlun.current_device()
    if device not in _side_streams:
        _side_streams[device] = torch.kunlun.Stream()
    return _side_streams[device]


def _start(memory) -> tuple[torch.Stream, torch.Stream]:
    """The current and the side stream, at the beginning of an operator that uses the workspace.

    The side stream may be at work in the workspace still, and so may the other ranks.
    """
    main, side = torch.kunlun.current_stream(), _side_stream()
    main.wait_stream(side)
    memory.barrier()
    return main, side


def _buffers(memory, rank: int, like: Tensors) -> list[torch.Tensor]:
    """Tensors of these shapes, one behind the other in the workspace of a rank."""
    found, start = [], 0
    for tensor in like:
        size = tensor.element_size()
        offset = math.ceil(start / size)
        found.append(memory.get_buffer(rank, tensor.shape, tensor.dtype, offset))
        start = offset * size + tensor.numel() * size
    return found


def _bytes_of(like: Tensors) -> int:
    """Upper bound of what ``_buffers`` needs, gaps included."""
    return sum(tensor.numel() * tensor.element_size() + 16 for tensor in like)


def _gather_and_consume(
    shards: Tensors, gathered: Tensors, consume: Callable[[int, Tensors], None], group_name: str
) -> None:
    """Gathers each of ``shards`` along the first dimension; ``consume(rank, shards of that rank)`` as they arrive.

    Two streams take turns, so that one fetches while the other computes. ``consume`` is called on the stream that has
    fetched; calls for different ranks must not depend on each other.
    """
    memory = get_symm_mem_workspace(group_name, _bytes_of(shards))
    rank, size = memory.rank, memory.world_size
    pieces = list(zip(*(whole.chunk(size) for whole in gathered), strict=True))
    main, side = _start(memory)
    for buffer, shard in zip(_buffers(memory, rank, shards), shards, strict=True):
        buffer.copy_(shard)
    memory.barrier()
    side.wait_stream(main)
    for step in range(size):
        source = (rank + step) % size
        with torch.kunlun.stream(side if step % 2 else main):
            for piece, buffer in zip(pieces[source], _buffers(memory, source, shards), strict=True):
                piece.copy_(buffer)
            consume(source, pieces[source])
    main.wait_stream(side)
    memory.barrier()


def _check_matrices(a: torch.Tensor, bs: Tensors, dim: int) -> None:
    if a.dim() < 2:
        raise ValueError("A_shard must be a matrix")
    if any(b.dim() != 2 for b in bs):
        raise ValueError("B must be a matrix")
    if not 0 <= dim < a.dim():
        raise ValueError(f"the dimension must be in [0, {a.dim()}), got {dim}")


def fused_all_gather_matmul(
    A_shard: torch.Tensor, Bs: list[torch.Tensor], gather_dim: int, group_name: str, *, return_A: bool = True
) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
    """``A = all_gather(A_shard, gather_dim)`` and ``A @ B`` for each B; products begin as soon as a shard is there.

    Args:
        A_shard: [..., K], at least two dimensions.
        Bs: [K, N] each; [K * ranks, N] where the last dimension is gathered.
        gather_dim: not negative, unless the last one (-1).
        return_A: otherwise None is in A's place.
    """
    gather_dim = gather_dim + A_shard.dim() if gather_dim == -1 else gather_dim
    _check_matrices(A_shard, Bs, gather_dim)
    if symmetric_memory._is_test_mode:
        return symmetric_memory._fused_all_gather_matmul_fallback(
            A_shard, Bs, gather_dim, group_name, return_A=return_A
        )
    size = c10d._resolve_process_group(group_name).size()
    is_last = gather_dim == A_shard.dim() - 1
    # Rows, which are gathered one shard behind the other. Each product needs whole rows, so shards of the last
    # dimension are put side by side first.
    shard = (A_shard if is_last else A_shard.movedim(gather_dim, 0)).flatten(0, -2).contiguous()
    whole = shard.new_empty(size * shard.shape[0], shard.shape[1])
    if is_last:
        rows = shard.new_empty(shard.shape[0], size * shard.shape[1])
        places = rows.chunk(size, dim=1)
        _gather_and_consume([shard], [whole], lambda rank, pieces: places[rank].copy_(pieces[0]), group_name)
        lead = A_shard.shape[:-1]
        products = [torch.mm(rows, b).view(*lead, -1) for b in Bs]
        return (rows.view(*lead, -1) if return_A else None), products

    outputs = [shard.new_empty(whole.shape[0], b.shape[1], dtype=b.dtype) for b in Bs]
    parts = [output.chunk(size) for output in outputs]

    def consume(rank: int, pieces: Tensors) -> None:
        for b, part in zip(Bs, parts, strict=True):
            torch.mm(pieces[0], b, out=part[rank])

    _gather_and_consume([shard], [whole], consume, group_name)
    lead = A_shard.movedim(gather_dim, 0).shape[:-1]

    def unflatten(rows: torch.Tensor) -> torch.Tensor:
        return rows.view(size * lead[0], *lead[1:], -1).movedim(0, gather_dim)

    return (unflatten(whole) if return_A else None), [unflatten(output) for output in outputs]


def _check_reduction(reduce_op: str) -> None:
    if reduce_op not in ("sum", "avg"):
        raise ValueError(f"reduce_op must be sum or avg, got {reduce_op!r}")


def _sum_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _finish(total: torch.Tensor, reduce_op: str, size: int, dtype: torch.dtype) -> torch.Tensor:
    if reduce_op == "avg":
        total = total.div_(size) if total.is_floating_point() else total.to(torch.float32).div_(size)
    return total.to(dtype)


def fused_matmul_reduce_scatter(
    A: torch.Tensor, B: torch.Tensor, reduce_op: str, scatter_dim: int, group_name: str
) -> torch.Tensor:
    """``reduce_scatter(A @ B, reduce_op, scatter_dim)``; each rank's part is on its way while the next is computed.

    Summed up in the order of the ranks, half types in fp32.

    Args:
        A: [..., K], at least two dimensions.
        B: [K, N].
        reduce_op: "sum" or "avg".
        scatter_dim: of the product, not negative; divisible by the number of ranks.
    """
    _check_matrices(A, [B], scatter_dim)
    _check_reduction(reduce_op)
    if symmetric_memory._is_test_mode:
        return symmetric_memory._fused_matmul_reduce_scatter_fallback(A, B, reduce_op, scatter_dim, group_name)
    size = c10d._resolve_process_group(group_name).size()
    is_last = scatter_dim == A.dim() - 1
    length = B.shape[1] if is_last else A.shape[scatter_dim]
    if length % size:
        raise ValueError(f"dimension {scatter_dim} of the product, {length}, is not divisible by the {size} ranks")
    if is_last:
        rows = A.flatten(0, -2)
        factors = [(rows, b) for b in B.chunk(size, dim=1)]
    else:
        factors = [(rows, B) for rows in A.movedim(scatter_dim, 0).flatten(0, -2).chunk(size)]
    part = A.new_empty(factors[0][0].shape[0], factors[0][1].shape[1], device="meta")

    like = [part] * size  # the part for each rank
    memory = get_symm_mem_workspace(group_name, _bytes_of(like))
    rank = memory.rank
    own = _buffers(memory, rank, like)
    main, side = _start(memory)
    side.wait_stream(main)
    for step in range(1, size + 1):
        to = (rank + step) % size
        torch.mm(*factors[to], out=own[to])
        if to != rank:
            memory.put_signal(to)
    total = None
    with torch.kunlun.stream(side):
        for source in range(size):
            if source == rank:
                side.wait_stream(main)
            else:
                memory.wait_signal(source)
            addend = _buffers(memory, source, like)[rank]
            if total is None:
                total = addend.to(_sum_dtype(addend.dtype), copy=True)
            else:
                total.add_(addend)
        total = _finish(total, reduce_op, size, A.dtype)
    main.wait_stream(side)
    total.record_stream(main)
    memory.barrier()
    if is_last:
        return total.view(*A.shape[:-1], -1)
    lead = A.movedim(scatter_dim, 0).shape[:-1]
    return total.view(lead[0] // size, *lead[1:], -1).movedim(0, scatter_dim).contiguous()


class _Work(torch._C._distributed_c10d.Work):
    """What ``wait_tensor`` waits for: the current stream waits, the host does not."""

    def __init__(self) -> None:
        super().__init__()
        self.event = torch.kunlun.Event()
        self.event.record()

    def wait(self, timeout=None) -> bool:
        self.event.wait()
        return True


def _peer_inputs(memory, tensor: torch.Tensor, is_own: bool) -> list[torch.Tensor]:
    """The input of each rank, where it lies or where it has been put."""
    offset = tensor.storage_offset() if is_own else 0
    return [memory.get_buffer(rank, tensor.shape, tensor.dtype, offset) for rank in range(memory.world_size)]


def _pull(tensor: torch.Tensor, group_name: str, fetch: Callable[[int, Tensors], torch.Tensor]) -> torch.Tensor:
    """``fetch(rank, inputs of all ranks)`` on the side stream, while nobody changes them."""
    tensor = tensor.contiguous()
    memory = symmetric_memory.rendezvous(tensor, group_name)
    is_own = memory is not None  # in symmetric memory already
    if not is_own:
        memory = get_symm_mem_workspace(group_name, tensor.numel() * tensor.element_size())
    side = _side_stream()
    side.wait_stream(torch.kunlun.current_stream())
    with torch.kunlun.stream(side):
        inputs = _peer_inputs(memory, tensor, is_own)
        if not is_own:
            inputs[memory.rank].copy_(tensor)
        memory.barrier()
        result = fetch(memory.rank, inputs)
        memory.barrier()
        tensor.record_stream(side)
        torch._C._distributed_c10d._register_work(result, _Work())
    return result


def _low_contention_all_gather(tensor: torch.Tensor, group_name: str) -> torch.Tensor:
    """All-gather along the first dimension, by copies only and without the current stream, until ``wait_tensor``."""
    size = c10d._resolve_process_group(group_name).size()
    output = tensor.new_empty(tensor.shape[0] * size, *tensor.shape[1:])

    def fetch(rank: int, inputs: Tensors) -> torch.Tensor:
        chunks = output.chunk(size)
        for step in range(size):
            source = (rank + step) % size
            chunks[source].copy_(inputs[source])
        output.record_stream(torch.kunlun.current_stream())
        return output

    return _pull(tensor, group_name, fetch)


def _low_contention_reduce_scatter(tensor: torch.Tensor, reduce_op: str, group_name: str) -> torch.Tensor:
    """Reduce-scatter along the first dimension without the current stream, until ``wait_tensor``.

    Summed up in the order of the ranks, half types in fp32.
    """
    _check_reduction(reduce_op)
    size = c10d._resolve_process_group(group_name).size()
    if tensor.shape[0] % size:
        raise ValueError(f"the first dimension, {tensor.shape[0]}, is not divisible by the {size} ranks")

    def fetch(rank: int, inputs: Tensors) -> torch.Tensor:
        parts = [source.chunk(size)[rank] for source in inputs]
        total = parts[0].to(_sum_dtype(tensor.dtype), copy=True)
        for part in parts[1:]:
            total.add_(part)
        return _finish(total, reduce_op, size, tensor.dtype)

    return _pull(tensor, group_name, fetch)


def get_remote_tensors(x: torch.Tensor, group_name: str) -> tuple[torch.Tensor, ...]:
    """The tensors of all ranks, in their order, that lie where ``x`` lies in this rank's symmetric memory."""
    memory = symmetric_memory.rendezvous(x, group_name)
    if memory is None:
        raise ValueError("Tensor is not allocated from Symmetric Memory")
    return tuple(_peer_inputs(memory, x, True))


# The fp8 variants run as their parts: torch's own words for what they mean, over the collectives of the group.
fused_all_gather_scaled_matmul = symmetric_memory._fused_all_gather_scaled_matmul_fallback
fused_scaled_matmul_reduce_scatter = symmetric_memory._fused_scaled_matmul_reduce_scatter_fallback
