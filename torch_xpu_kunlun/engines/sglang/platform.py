"""What SGLang asks a platform: devices, memory, names of backends, classes of caches, defaults of the command line."""

from __future__ import annotations

import logging
from typing import Any

import sglang
import torch
from sglang.srt.platforms import interface
from sglang.srt.platforms.device_mixin import DeviceCapability, PlatformEnum
from sglang.srt.platforms.interface import SRTPlatform

from torch_xpu_kunlun import engines

logger = logging.getLogger(__name__)

DEVICE = "kunlun"
#: Below this size SGLang's own rule reserves more than there is: 512 MiB and 1.5 MiB for each token of a prefill chunk.
_SMALL_DEVICE = 16 << 30
_SMALL_DEVICE_FRACTION = 0.7


class KunlunPlatform(SRTPlatform):
    """The Kunlun XPU, simulated or real, as an out-of-tree platform of SGLang."""

    _enum = PlatformEnum.OOT
    device_name = DEVICE
    device_type = DEVICE

    # The device

    def get_device(self, device_id: int | None = None) -> str:
        return DEVICE if device_id is None else f"{DEVICE}:{device_id}"

    def set_device(self, device: torch.device) -> None:
        torch.kunlun.set_device(device)

    def get_device_name(self, device_id: int = 0) -> str:
        return torch.kunlun.get_device_name(device_id)

    def get_device_uuid(self, device_id: int = 0) -> str:
        return str(torch.kunlun.get_device_properties(device_id).uuid)

    def get_device_capability(self, device_id: int = 0) -> DeviceCapability | None:
        return None  # the numbers are NVIDIA's; SGLang asks before it picks kernels that only CUDA has

    def synchronize(self) -> None:
        torch.kunlun.synchronize()

    # Memory

    def get_device_total_memory(self, device_id: int = 0) -> int:
        return torch.kunlun.mem_get_info(device_id)[1]

    def get_current_memory_usage(self, device: torch.device | None = None) -> float:
        """What is not free, in bytes: SGLang subtracts it from the total to know how large its cache may be."""
        free, total = torch.kunlun.mem_get_info(device)
        return float(total - free)

    def get_available_memory(self, device_id: int = 0) -> tuple[int, int]:
        return torch.kunlun.mem_get_info(device_id)

    def empty_cache(self) -> None:
        torch.kunlun.empty_cache()

    def is_pin_memory_available(self, device: Any = None) -> bool:
        return device is None or torch.device(device).type == DEVICE

    # Backends

    def get_torch_distributed_backend_str(self) -> str:
        return "xccl"

    def get_group_coordinator_device(self, local_rank: int) -> torch.device:
        """SGLang 0.5.23 asks; 0.5.21 takes the CPU for a device that it does not know."""
        return torch.device(DEVICE, local_rank)

    def get_default_attention_backend(self) -> str:
        return DEVICE

    def get_dispatch_key_name(self) -> str:
        """Fused layers registered under this name replace SGLang's composed ones (see ``layers``)."""
        return DEVICE

    def get_compile_backend(self, mode: str | None = None) -> str:
        return "eager"

    # Caches. SGLang 0.5.23 asks with ``kind``, 0.5.21 with a method for each.

    def get_kv_pool_cls(self, *, kind: str) -> type | None:
        from torch_xpu_kunlun.engines.sglang import kv_cache

        return kv_cache.POOLS.get(kind)  # None: SGLang's own

    def get_mha_kv_pool_cls(self) -> type:
        return self.get_kv_pool_cls(kind="mha")

    def get_mla_kv_pool_cls(self) -> type:
        return self.get_kv_pool_cls(kind="mla")

    def get_paged_allocator_cls(self) -> Any:
        if hasattr(interface, "PlatformCapabilities"):
            return None  # from then on SGLang's own does without Triton
        from torch_xpu_kunlun.engines.sglang import kv_cache

        return kv_cache.allocator

    def get_quantization_config(self, quantization: str) -> type | None:
        from torch_xpu_kunlun.engines.sglang import quantization as own

        return own.CONFIGS.get(quantization)

    # Life

    def apply_server_args_defaults(self, server_args: Any) -> None:
        """Defaults of options that the user did not give."""
        if server_args.mem_fraction_static is None and self.get_device_total_memory() < _SMALL_DEVICE:
            server_args.mem_fraction_static = _SMALL_DEVICE_FRACTION
        if server_args.attention_backend is None:
            # Here and not only when asked: rules for single models would choose one of CUDA before they ask.
            server_args.attention_backend = self.get_default_attention_backend()
        # Layers with a window and layers without share one cache: SGLang offers an out-of-tree platform no other.
        server_args.disable_hybrid_swa_memory = True

    def init_backend(self) -> None:
        """Called once in each process that runs a model."""
        logger.info(engines.start_up_line("SGLang", sglang.__version__))
        if warning := engines.untried_warning("sglang", sglang.__version__):
            logger.warning(warning)
        from sglang.srt.layers.attention.attention_registry import register_attention_backend

        from torch_xpu_kunlun.engines.sglang import attention, custom_ops, layers, leftovers

        register_attention_backend(DEVICE)(attention.backend)
        custom_ops.register_existing()
        layers.register()
        leftovers.avoid_semaphore()

    @classmethod
    def seed_everything(cls, seed: int | None = None) -> None:
        super().seed_everything(seed)
        if seed is not None:
            torch.kunlun.manual_seed_all(seed)

    # Profiling

    def get_torch_profiler_activity_str(self) -> str:
        return DEVICE.upper()

    def get_torch_profiler_activity(self) -> torch.profiler.ProfilerActivity:
        return torch.profiler.ProfilerActivity.PrivateUse1
