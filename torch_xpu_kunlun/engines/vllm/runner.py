"""The model runner: batches, forward pass and sampling of one device."""

from __future__ import annotations

from contextlib import contextmanager
from unittest import mock

import torch
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from torch_xpu_kunlun import engines
from torch_xpu_kunlun.engines.vllm.sampler import KunlunTopKTopPSampler


@contextmanager
def _streams_of_the_accelerator():
    """Upstream's constructor makes a stream for drafted tokens by ``torch.cuda.Stream``; ``torch.Stream`` fits all."""
    with mock.patch.object(torch.cuda, "Stream", torch.Stream):
        yield


class KunlunModelRunner(GPUModelRunner):
    """vLLM's runner for accelerators, the one named V1: V2 is written in Triton."""

    def __init__(self, vllm_config, device: torch.device) -> None:
        with _streams_of_the_accelerator():
            super().__init__(vllm_config, device)
        # A stage of a pipeline prepares its next batch while the device still works on the last one. Upstream makes the
        # buffers on the host wait for that under asynchronous scheduling only; a stage that samples waits anyway.
        if vllm_config.parallel_config.pipeline_parallel_size > 1:
            self.prepare_inputs_event = torch.Event(device)
        if engines.use_custom_ops():
            native = self.sampler.topk_topp_sampler
            self.sampler.topk_topp_sampler = KunlunTopKTopPSampler(native.logprobs_mode, native.use_fp64_gumbel)

    def sample_tokens(self, grammar_output):
        """As upstream's; xgrammar compiles its masking for any device, and there is no compiler for this one."""
        if grammar_output is None:
            return super().sample_tokens(None)
        with torch.compiler.set_stance("force_eager"):
            return super().sample_tokens(grammar_output)
