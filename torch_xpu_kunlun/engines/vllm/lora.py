"""Low-rank adapters, one for each token, by the project's operators."""

from __future__ import annotations

import torch
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

from torch_xpu_kunlun import engines, ops
from torch_xpu_kunlun.ops import reference


class KunlunPunicaWrapper(PunicaWrapperCPU):
    """vLLM's wrapper for devices without a Triton, with other products inside.

    Weights are ``[adapters, 1, rank, in]`` and ``[adapters, 1, columns, rank]``; a token's index is -1 where it has no
    adapter. Prefills and decodes are computed alike: neighbouring tokens of one adapter go together.
    """

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.kernels = ops if engines.use_custom_ops() else reference

    def _indices(self, x: torch.Tensor) -> torch.Tensor:
        return self._token_lora_indices[: x.shape[0]]

    @staticmethod
    def _flat(weights: torch.Tensor) -> torch.Tensor:
        return weights.squeeze(1) if weights.dim() == 4 else weights

    def _apply_shrink(self, y, x, w_t_all, scale: float) -> None:
        flat = y.view(-1, y.shape[-1])
        flat.copy_(self.kernels.bgmv_shrink(x, self._flat(w_t_all), self._indices(x), scale))

    def _apply_expand(self, y, x, w_t_all, y_offset: int, y_slice_size: int, add_inputs: bool = True) -> None:
        weights = self._flat(w_t_all)
        x = x[:, : weights.shape[-1]].float().contiguous()
        self.kernels.bgmv_expand(x, weights, y, self._indices(x), y_offset, add_inputs)

    def add_lora_embedding(self, y, x, lora_b_stacked, add_inputs: bool = True, **kwargs) -> None:
        """Adds the second half of an adapter to ``y``: ``x`` is ``[tokens, rank]`` from the embedding's own table."""
        self._apply_expand(y, x, lora_b_stacked, 0, y.shape[-1], add_inputs)

    def add_lora_logits(self, y, x, lora_a_stacked, lora_b_stacked, scale, *, buffer=None, **kwargs) -> None:
        """Adds the adapter of the output layer to the logits ``[samples, vocabulary]``."""
        indices = self.sampler_indices
        x, y = x.view(-1, x.shape[-1]), y.view(-1, y.shape[-1])
        middle = self.kernels.bgmv_shrink(x, self._flat(lora_a_stacked), indices, scale)
        self.kernels.bgmv_expand(middle, self._flat(lora_b_stacked), y, indices, 0, True)
