"""The model runner: batches, forward pass and sampling of one device."""

from __future__ import annotations

from vllm.v1.worker.gpu_model_runner import GPUModelRunner


class KunlunModelRunner(GPUModelRunner):
    """vLLM's runner for accelerators, the one named V1: V2 is written in Triton."""
