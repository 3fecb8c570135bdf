"""Makes torch.distributed know XCCL: the backend ``xccl``, its other name ``bkcl``, and the defaults for ``kunlun``.

torch keeps the name ``xccl`` for another vendor's group, which its builds for that vendor bring along. On all other
builds the name is free but wired into the code that makes groups, so a class has to be put where that code looks for
it. ``bkcl`` needs nothing of this: it goes through torch's public registry only.
"""

from __future__ import annotations

import copy
import functools
from datetime import timedelta

import torch

DEVICE = "kunlun"
NAME = "xccl"
ALIAS = "bkcl"

_libraries: list[torch.library.Library] = []  # what one implements goes with it


def dump_flight_recorder(include_stacks: bool = True, only_active: bool = False) -> bytes:
    """The last operations of all XCCL groups of this process, pickled.

    Written to a file whose name ends in the rank, one for each rank in a folder, it is what
    ``python -m torch.distributed.flight_recorder.fr_trace`` reads. With ``XCCL_TRACE_FILE`` a timeout writes it.

    Args:
        include_stacks: adds the Python stack of each call.
        only_active: leaves out what has ended.
    """
    from torch_xpu_kunlun import _C

    return _C._dump_flight_recorder(include_stacks, only_active)


def _create(group, options=None):
    """The creator of torch's registry: the caller's options, completed with what torch knows of the group."""
    from torch_xpu_kunlun._C import ProcessGroupXCCL

    if options is not None and not isinstance(options, ProcessGroupXCCL.Options):
        raise TypeError(f"pg_options of an XCCL group must be ProcessGroupXCCL.Options, not {type(options).__name__}")
    options = ProcessGroupXCCL.Options() if options is None else options
    options._timeout = group.timeout
    options.group_name = group.group_id
    options.global_ranks_in_group = group.global_ranks_in_group
    return ProcessGroupXCCL(group.store, group.group_rank, group.group_size, options)


def _install_as_built_in(c10d) -> None:
    """Puts the class where torch's branch for ``xccl`` takes it from."""
    from torch_xpu_kunlun import _C

    given = None  # the caller's options, which that branch would drop

    class ProcessGroupXCCL(_C.ProcessGroupXCCL):
        __doc__ = _C.ProcessGroupXCCL.__doc__

        class Options:
            def __new__(cls, *args, **kwargs):
                if given is not None and not args and not kwargs:
                    return copy.copy(given)
                return _C.ProcessGroupXCCL.Options(*args, **kwargs)

    ProcessGroupXCCL.__module__ = c10d.__name__
    ProcessGroupXCCL.__qualname__ = "ProcessGroupXCCL"
    torch.distributed.Backend.backend_type_map[NAME] = torch.distributed.ProcessGroup.BackendType.XCCL
    torch._C._distributed_c10d.ProcessGroupXCCL = _C.ProcessGroupXCCL
    torch.distributed.ProcessGroupXCCL = c10d.ProcessGroupXCCL = ProcessGroupXCCL
    c10d._XCCL_AVAILABLE = True

    make_group = c10d._new_process_group_helper

    @functools.wraps(make_group)
    def _new_process_group_helper(group_size, group_rank, global_ranks_in_group, backend, *args, **kwargs):
        nonlocal given
        options = kwargs.get("backend_options")
        given = options if isinstance(options, _C.ProcessGroupXCCL.Options) else None
        try:
            made = make_group(group_size, group_rank, global_ranks_in_group, backend, *args, **kwargs)
        finally:
            given = None
        # Without a name torch takes the device's default backend, but notes down gloo as the group's default.
        group = made[0]
        is_unnamed = str(backend) == torch.distributed.Backend.UNDEFINED
        is_member = isinstance(group, torch.distributed.ProcessGroup)
        if is_unnamed and is_member and torch.device(DEVICE) in group._device_types:
            group._set_default_backend(torch.distributed.ProcessGroup.BackendType.XCCL)
        return made

    c10d._new_process_group_helper = _new_process_group_helper


def _install_default_timeout(c10d) -> None:
    """Groups that are made without a timeout and may hold kunlun tensors get that of ``XCCL_TIMEOUT``, if it is set."""
    from torch_xpu_kunlun import _C

    torch_default = c10d._get_default_timeout

    @functools.wraps(torch_default)
    def _get_default_timeout(backend):
        seconds = _C._xccl_timeout_seconds()
        names = str(backend).lower()
        if seconds and (names == torch.distributed.Backend.UNDEFINED or NAME in names or ALIAS in names):
            return timedelta(seconds=seconds)
        return torch_default(backend)

    c10d._get_default_timeout = _get_default_timeout


def _refuse_for_kunlun(c10d) -> None:
    """Where ``xccl`` is another vendor's: say so when somebody asks for it with kunlun, instead of failing later."""
    make_config = c10d.BackendConfig.__init__

    @functools.wraps(make_config)
    def __init__(self, backend):
        make_config(self, backend)
        if self.device_backend_map.get(DEVICE) == NAME:
            raise ValueError(
                f"this build of torch brings its own {NAME!r}, for the device 'xpu'; "
                f"for {DEVICE!r} use the backend {ALIAS!r}"
            )

    c10d.BackendConfig.__init__ = __init__


# Of the operators of symmetric memory, those that torch writes in Python, and only for CUDA.
_SYMMETRIC_MEMORY = (
    "_low_contention_all_gather",
    "_low_contention_reduce_scatter",
    "fused_all_gather_matmul",
    "fused_all_gather_scaled_matmul",
    "fused_matmul_reduce_scatter",
    "fused_scaled_matmul_reduce_scatter",
    "get_remote_tensors",
)


def _implement_symmetric_memory() -> torch.library.Library:
    """torch defines these operators when somebody imports its module; theirs is imported with the first call."""

    def calling(name: str):
        def call(*args, **kwargs):
            from torch_xpu_kunlun.distributed import symmetric_memory

            with torch.no_grad():  # as for CUDA, there is no derivative
                return getattr(symmetric_memory, name)(*args, **kwargs)

        return call

    library = torch.library.Library("symm_mem", "IMPL")
    for name in _SYMMETRIC_MEMORY:
        library.impl(name, calling(name), "PrivateUse1")
    return library


def register() -> None:
    """Called once, by the import of the package. Starts nothing."""
    if not torch.distributed.is_available():
        return
    from torch.distributed import distributed_c10d as c10d

    backend = torch.distributed.Backend
    if torch.distributed.is_xccl_available():
        _refuse_for_kunlun(c10d)
    else:
        backend.register_backend(NAME, _create, extended_api=True, devices=[DEVICE])
        _install_as_built_in(c10d)
    _install_default_timeout(c10d)
    backend.register_backend(ALIAS, _create, extended_api=True, devices=[DEVICE])
    _libraries.append(_implement_symmetric_memory())
