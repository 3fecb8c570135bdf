"""Drawing tokens within top-k and top-p by one operator, without sorting the vocabulary."""

from __future__ import annotations

import torch
from vllm.config.model import PROCESSED_LOGPROBS_MODES
from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

from torch_xpu_kunlun import ops


class KunlunTopKTopPSampler(TopKTopPSampler):
    """Draws by the device's generator. Requests with a seed of their own, and modes that report the logits which
    limits leave over, go upstream's way.
    """

    def __init__(self, logprobs_mode, use_fp64_gumbel: bool = False) -> None:
        super().__init__(logprobs_mode, use_fp64_gumbel)
        if logprobs_mode not in PROCESSED_LOGPROBS_MODES and not use_fp64_gumbel:
            self.forward = self.forward_fused

    def forward_fused(
        self,
        logits: torch.Tensor,
        generators: dict[int, torch.Generator],
        k: torch.Tensor | None,
        p: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Tokens ``[rows]`` for logits ``[rows, vocabulary]``; ``k`` and ``p`` hold a limit for each row."""
        if generators or (k is None and p is None):
            return self.forward_native(logits, generators, k, p)
        probs = logits.softmax(dim=-1, dtype=torch.float32)
        if p is None:
            tokens = ops.top_k_sampling_from_probs(probs, k)
        elif k is None:
            tokens = ops.top_p_sampling_from_probs(probs, p)
        else:
            tokens = ops.top_k_top_p_sampling_from_probs(probs, k, p)
        return tokens.long(), None
