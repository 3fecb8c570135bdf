"""What vLLM asks of a device: names, memory, which classes work on it, and the defaults of its configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from vllm.platforms.interface import Platform, PlatformEnum

from torch_xpu_kunlun import engines

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.config.kernel import IrOpPriorityConfig
    from vllm.v1.attention.backends.registry import AttentionBackendEnum
    from vllm.v1.attention.selector import AttentionSelectorConfig

PACKAGE = "torch_xpu_kunlun.engines.vllm"


class KunlunPlatform(Platform):
    """The platform of ``kunlun``. Nothing here starts a device: vLLM's front-end process never needs one."""

    _enum = PlatformEnum.OOT
    device_name = "kunlun"
    device_type = "kunlun"
    dispatch_key = "PrivateUse1"
    ray_device_key = ""
    device_control_env_var = "KUNLUN_VISIBLE_DEVICES"
    # Inductor has no code generator for the device; `eager` lets Dynamo's callers through unchanged.
    simple_compile_backend = "eager"
    dist_backend = "xccl"

    # ---- devices ----

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return torch.kunlun.get_device_name(device_id)

    @classmethod
    def get_device_uuid(cls, device_id: int = 0) -> str:
        return str(torch.kunlun.get_device_properties(device_id).uuid)

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return torch.kunlun.get_device_properties(device_id).total_memory

    @classmethod
    def get_current_memory_usage(cls, device: torch.types.Device | None = None) -> float:
        torch.kunlun.reset_peak_memory_stats(device)
        return torch.kunlun.max_memory_allocated(device)

    @classmethod
    def num_compute_units(cls, device_id: int = 0) -> int:
        return torch.kunlun.get_device_properties(device_id).multi_processor_count

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        torch.kunlun.set_device(device)

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        torch.kunlun.manual_seed_all(seed)

    @classmethod
    def check_if_supports_dtype(cls, dtype: torch.dtype) -> None:
        if dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise ValueError(f"kunlun runs models in float32, float16 or bfloat16, not {dtype}: choose one by --dtype")

    # ---- classes that work on the device ----

    @classmethod
    def import_kernels(cls) -> None:
        from torch_xpu_kunlun.engines.vllm import c_ops  # noqa: F401

    @classmethod
    def import_ir_kernels(cls) -> None:
        from torch_xpu_kunlun.engines.vllm import ir  # noqa: F401

    @classmethod
    def get_default_ir_op_priority(cls, vllm_config: VllmConfig) -> IrOpPriorityConfig:
        from vllm.config.kernel import IrOpPriorityConfig

        fused = ["kunlun", "native"] if engines.use_custom_ops() else ["native"]
        return IrOpPriorityConfig.with_default(["native"], rms_norm=fused, fused_add_rms_norm=fused)

    @classmethod
    def get_attn_backend_cls(
        cls,
        selected_backend: AttentionBackendEnum,
        attn_selector_config: AttentionSelectorConfig,
        num_heads: int | None = None,
    ) -> str:
        if selected_backend is not None and selected_backend.name != "CUSTOM":
            raise ValueError(
                f"the attention backend {selected_backend.name} does not run on kunlun: leave the backend unset"
            )
        if attn_selector_config.use_sparse:
            raise NotImplementedError("kunlun has no sparse attention (DeepSeek-V3.2's indexer)")
        from torch_xpu_kunlun.engines.vllm import attention, mla

        backend = mla.KunlunMLABackend if attn_selector_config.use_mla else attention.KunlunAttentionBackend
        reasons = backend.validate_configuration(device_capability=None, **attn_selector_config._asdict())
        if reasons:
            raise ValueError(f"attention on kunlun cannot do this: {', '.join(reasons)} ({attn_selector_config})")
        return f"{backend.__module__}.{backend.__qualname__}"

    @classmethod
    def get_mla_prefill_backend_cls(cls, mla_selector_config):
        from torch_xpu_kunlun.engines.vllm.mla import KunlunMLAPrefillBackend

        return KunlunMLAPrefillBackend

    @classmethod
    def register_triton_kernel_overrides(cls) -> None:
        from torch_xpu_kunlun.engines.vllm import triton_kernels

        triton_kernels.register()

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return f"{PACKAGE}.communicator.KunlunCommunicator"

    @classmethod
    def get_punica_wrapper(cls) -> str:
        return f"{PACKAGE}.lora.KunlunPunicaWrapper"

    # ---- abilities ----

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        return True

    def is_sleep_mode_available(self) -> bool:
        """A chip that lacks what it takes says so when the worker makes its first pool: nothing here starts one."""
        return True

    @classmethod
    def support_hybrid_kv_cache(cls) -> bool:
        return True

    @classmethod
    def check_runner_kv_caches_multi_layer(cls) -> None:
        """Layers that share an index are kept apart by their names."""

    # ---- configuration ----

    @classmethod
    def pre_register_and_update(cls, parser=None) -> None:
        from torch_xpu_kunlun.engines.vllm import quantization

        quantization.register_configs()

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        from vllm.config import CompilationMode, CUDAGraphMode

        compilation = vllm_config.compilation_config
        # Neither Inductor nor graph capture has a backend for the device, so models run eagerly.
        compilation.mode = CompilationMode.NONE
        compilation.cudagraph_mode = CUDAGraphMode.NONE
        compilation.cudagraph_capture_sizes = []
        compilation.compile_sizes = []
        # In eager mode `all` chooses each layer's implementation for the device.
        if "all" not in compilation.custom_ops and "none" not in compilation.custom_ops:
            compilation.custom_ops.append("all")
        compilation.ir_enable_torch_wrap = False

        # The V1 runner's outputs for asynchronous scheduling are made of CUDA streams.
        vllm_config.scheduler_config.async_scheduling = False

        model = vllm_config.model_config
        if model is not None and model.enable_sleep_mode:
            if model.sleep_mode_backend == "cumem":  # vLLM's default, which is CUDA's
                model.sleep_mode_backend = "kunlun"
            if model.enable_nccl_comm_suspend:
                raise ValueError(
                    "XCCL keeps its memory while a model sleeps: leave out --enable-nccl-comm-suspend on kunlun"
                )

        parallel = vllm_config.parallel_config
        if parallel.worker_cls == "auto":
            parallel.worker_cls = f"{PACKAGE}.worker.KunlunWorker"
        parallel.disable_custom_all_reduce = True
        if parallel.enable_dbo:
            raise ValueError("dual batch overlap needs CUDA streams and does not run on kunlun: leave out --enable-dbo")
