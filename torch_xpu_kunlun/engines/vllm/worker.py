"""The process that owns a device: starts it, measures its memory, loads the model."""

from __future__ import annotations

import gc
from contextlib import AbstractContextManager, nullcontext

import torch
import vllm
from vllm.distributed.parallel_state import get_pp_group
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.profiler import wrapper
from vllm.utils.mem_utils import MemorySnapshot
from vllm.utils.torch_utils import set_random_seed
from vllm.v1.worker.gpu_worker import Worker, init_worker_distributed_environment
from vllm.v1.worker.utils import request_memory
from vllm.v1.worker.worker_base import CompilationTimes

from torch_xpu_kunlun import engines
from torch_xpu_kunlun.engines.vllm import layers, sleep

logger = init_logger("vllm.plugins.kunlun")  # below vLLM's logger, which shows it


def _let_the_profiler_in() -> None:
    """vLLM keeps closed lists of the devices that torch's profiler may run on: this one joins as the CPU is there."""
    for table in (
        wrapper._SUPPORTED_PROFILER_KINDS,
        wrapper._DEFAULT_TORCH_PROFILER_ACTIVITIES,
        wrapper._SUPPORTED_TORCH_PROFILER_ACTIVITIES,
    ):
        table.setdefault(current_platform.device_type, table["cpu"])


class KunlunWorker(Worker):
    """vLLM's worker for accelerators, without the parts that only CUDA has."""

    def __init__(self, *args, **kwargs) -> None:
        _let_the_profiler_in()
        sleep.register()
        super().__init__(*args, **kwargs)

    def init_device(self) -> None:
        """As upstream's for CUDA: device, process groups, then the measurement that the cache is sized by."""
        parallel = self.parallel_config
        if parallel.data_parallel_size > 1 and parallel.distributed_executor_backend not in (
            "ray",
            "external_launcher",
        ):
            replica = parallel.data_parallel_rank_local
            replica = parallel.data_parallel_index if replica is None else replica
            self.local_rank += replica * parallel.world_size
        count = torch.kunlun.device_count()
        if self.local_rank >= count:
            raise RuntimeError(
                f"rank {self.rank} needs the device kunlun:{self.local_rank}, but there are {count}: lower "
                "--tensor-parallel-size, or show more by KUNLUN_VISIBLE_DEVICES or KUNLUN_SIM_DEVICES"
            )
        self.device = torch.device("kunlun", self.local_rank)
        torch.kunlun.set_device(self.device)
        current_platform.check_if_supports_dtype(self.model_config.dtype)
        layers.register()
        if self.rank == 0:
            self._introduce()

        init_worker_distributed_environment(
            self.vllm_config, self.rank, self.distributed_init_method, self.local_rank, current_platform.dist_backend
        )
        set_random_seed(self.model_config.seed)

        gc.collect()
        torch.kunlun.empty_cache()
        self.init_snapshot = MemorySnapshot(device=self.device)
        self.requested_memory = request_memory(self.init_snapshot, self.cache_config)
        self._init_workspace_and_model_runner()

    def _introduce(self) -> None:
        logger.info(engines.start_up_line("vLLM", vllm.__version__))
        if warning := engines.untried_warning("vllm", vllm.__version__):
            logger.warning(warning)

    def _make_model_runner(self):
        from torch_xpu_kunlun.engines.vllm.runner import KunlunModelRunner

        return KunlunModelRunner(self.vllm_config, self.device)

    def _maybe_get_memory_pool_context(self, tag: str) -> AbstractContextManager:
        """Upstream knows CUDA's and XPU's allocators by name; pools apart serve the sleep mode only."""
        if not self.model_config.enable_sleep_mode:
            return nullcontext()
        backend = self.sleep_mode_backend
        # A backend from elsewhere has its own way.
        return backend.pool(tag) if isinstance(backend, sleep.KunlunSleepModeBackend) else nullcontext()

    def compile_or_warm_up_model(self) -> CompilationTimes:
        """Nothing is compiled or captured; one step of the largest batch settles the allocator's segments."""
        runner = self.model_runner
        runner.maybe_remove_all_loras(runner.lora_config)
        if get_pp_group().is_last_rank:
            tokens = min(self.scheduler_config.max_num_seqs, self.scheduler_config.max_num_batched_tokens)
            hidden, last_hidden = runner._dummy_run(num_tokens=tokens, skip_eplb=True)
            if runner.is_pooling_model:
                runner._dummy_pooler_run(hidden)
            else:
                runner._dummy_sampler_run(hidden_states=last_hidden)
        set_random_seed(self.model_config.seed, self.parallel_config.data_parallel_index)
        return CompilationTimes(language_model=0.0, encoder=0.0)
