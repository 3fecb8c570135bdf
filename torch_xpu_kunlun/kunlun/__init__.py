"""The module ``torch.kunlun``: devices, streams, memory and random numbers of the Kunlun XPU.

Names, arguments and results are those of ``torch.cuda``. Importing it, asking whether a device is there, how many
there are or what they are called starts nothing; the device starts when something is put on it.
"""

# Inductor looks for these on the module of a device.
from torch_xpu_kunlun._inductor import CppWrapperCodegen as CppWrapperCodegen
from torch_xpu_kunlun._inductor import PythonWrapperCodegen as PythonWrapperCodegen
from torch_xpu_kunlun._inductor import Scheduling as Scheduling
from torch_xpu_kunlun._inductor import WrapperFxCodegen as WrapperFxCodegen
from torch_xpu_kunlun.kunlun import amp, memory, random, streams, telemetry

# The names with an underscore are those that torch itself looks for.
from torch_xpu_kunlun.kunlun._device import (
    _exchange_device as _exchange_device,
)
from torch_xpu_kunlun.kunlun._device import (
    _maybe_exchange_device as _maybe_exchange_device,
)
from torch_xpu_kunlun.kunlun._device import (
    can_device_access_peer,
    current_device,
    device,
    device_count,
    device_of,
    get_amp_supported_dtype,
    get_arch_list,
    get_device_capability,
    get_device_name,
    get_device_properties,
    get_gencode_flags,
    get_sync_debug_mode,
    ipc_collect,
    is_available,
    is_bf16_supported,
    is_tf32_supported,
    reset_device,
    set_device,
    set_sync_debug_mode,
    synchronize,
)
from torch_xpu_kunlun.kunlun._lazy import _is_in_bad_fork as _is_in_bad_fork
from torch_xpu_kunlun.kunlun._lazy import _lazy_init as _lazy_init
from torch_xpu_kunlun.kunlun._lazy import init, is_initialized
from torch_xpu_kunlun.kunlun.memory import (
    KunlunPluggableAllocator,
    MemPool,
    SleepableMemPool,
    caching_allocator_alloc,
    caching_allocator_delete,
    caching_allocator_disabled,
    caching_allocator_enable,
    change_current_allocator,
    device_memory_used,
    empty_cache,
    get_allocator_backend,
    get_per_process_memory_fraction,
    host_memory_stats,
    host_memory_stats_as_nested_dict,
    max_memory_allocated,
    max_memory_cached,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_cached,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_host_memory_stats,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_max_memory_cached,
    reset_peak_host_memory_stats,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
    use_mem_pool,
)
from torch_xpu_kunlun.kunlun.random import (
    _get_generator as _get_generator,
)
from torch_xpu_kunlun.kunlun.random import (
    _get_rng_state_offset as _get_rng_state_offset,
)
from torch_xpu_kunlun.kunlun.random import (
    _set_rng_state_offset as _set_rng_state_offset,
)
from torch_xpu_kunlun.kunlun.random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from torch_xpu_kunlun.kunlun.streams import (
    Event,
    ExternalStream,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    get_stream_from_external,
    is_current_stream_capturing,
    set_stream,
    stream,
)
from torch_xpu_kunlun.kunlun.streams import (
    _set_stream_by_id as _set_stream_by_id,
)
from torch_xpu_kunlun.kunlun.telemetry import (
    clock_rate,
    memory_usage,
    power_draw,
    temperature,
    utilization,
)

__all__ = [
    "Event",
    "ExternalStream",
    "KunlunPluggableAllocator",
    "MemPool",
    "SleepableMemPool",
    "Stream",
    "StreamContext",
    "amp",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "caching_allocator_disabled",
    "caching_allocator_enable",
    "can_device_access_peer",
    "change_current_allocator",
    "clock_rate",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_memory_used",
    "device_of",
    "empty_cache",
    "get_allocator_backend",
    "get_amp_supported_dtype",
    "get_arch_list",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_gencode_flags",
    "get_per_process_memory_fraction",
    "get_rng_state",
    "get_rng_state_all",
    "get_stream_from_external",
    "get_sync_debug_mode",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "init",
    "initial_seed",
    "ipc_collect",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "is_tf32_supported",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_cached",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_cached",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "memory_usage",
    "power_draw",
    "random",
    "reset_accumulated_host_memory_stats",
    "reset_accumulated_memory_stats",
    "reset_device",
    "reset_max_memory_allocated",
    "reset_max_memory_cached",
    "reset_peak_host_memory_stats",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "set_sync_debug_mode",
    "stream",
    "streams",
    "synchronize",
    "telemetry",
    "temperature",
    "use_mem_pool",
    "utilization",
]


def __getattr__(name: str):
    # Made when first asked for: the number of generators is the number of devices, which is not known at import.
    if name == "default_generators":
        return random.default_generators()
    # torch.utils.checkpoint saves the states of the generators only where this is true.
    if name == "_initialized":
        return is_initialized()
    raise AttributeError(f"module 'torch.kunlun' has no attribute {name!r}")
