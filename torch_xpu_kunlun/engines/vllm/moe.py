"""Mixtures of experts: the routed experts of a layer, and the choice of experts by groups."""

from __future__ import annotations

import torch
from torch.nn import functional
from vllm.distributed import get_ep_group
from vllm.model_executor.custom_op import CustomOp
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.router.grouped_topk_router import GroupedTopk
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

from torch_xpu_kunlun import engines, ops
from torch_xpu_kunlun.ops import reference

#: What stands between the two layers of an expert, from ``[tokens, k, 2 * inner]`` (gate first) or ``[..., inner]``.
_ACTIVATIONS = {
    MoEActivation.SILU: lambda gate, up: functional.silu(gate) * up,
    MoEActivation.GELU: lambda gate, up: functional.gelu(gate) * up,
    MoEActivation.GELU_TANH: lambda gate, up: functional.gelu(gate, approximate="tanh") * up,
    MoEActivation.RELU2: lambda gate, up: functional.relu(gate).square() * up,
    MoEActivation.SILU_NO_MUL: functional.silu,
    MoEActivation.GELU_NO_MUL: functional.gelu,
    MoEActivation.GELU_TANH_NO_MUL: lambda x: functional.gelu(x, approximate="tanh"),
    MoEActivation.RELU2_NO_MUL: lambda x: functional.relu(x).square(),
}


def _activate(layer, x: torch.Tensor) -> torch.Tensor:
    kind = layer.activation
    if kind == MoEActivation.SWIGLUOAI:
        return ops.swigluoai_and_mul(x) if engines.use_custom_ops() else reference.swigluoai_and_mul(x)
    function = _ACTIVATIONS.get(kind)
    if function is None:
        raise NotImplementedError(f"experts on kunlun have no activation {kind.value!r}")
    return function(*x.chunk(2, dim=-1)) if kind.is_gated else function(x)


class KunlunUnquantizedFusedMoEMethod(UnquantizedFusedMoEMethod):
    """Experts whose weights stay as vLLM loads them: ``[experts, 2 * inner, hidden]``, ``[experts, hidden, inner]``."""

    is_monolithic = False  # the router chooses, then forward_oot computes
    # Replicas exchange tokens in forward_oot, after each has chosen for its own: vLLM knows the padding of those only.
    supports_internal_mk = True

    def forward_native(self, *args, **kwargs):
        """vLLM's would need a kernel of its own kinds, of which none is for the device."""
        return self.forward_oot(*args, **kwargs)

    def forward_oot(self, layer, x, topk_weights, topk_ids, shared_experts=None, shared_experts_input=None):
        """The sum over the chosen experts of weight times output.

        Args:
            x: ``[tokens, hidden]``; topk_weights, topk_ids: ``[tokens, k]``, ids of all ranks' experts.
        """
        in_sequence = self.moe.is_sequence_parallel
        if self.moe.dp_size == 1 and not in_sequence:
            return self._compute(layer, x, topk_weights, topk_ids)
        group = get_ep_group()
        x, topk_weights, topk_ids = group.dispatch(x, topk_weights, topk_ids, in_sequence)
        return group.combine(self._compute(layer, x, topk_weights, topk_ids), in_sequence)

    def _compute(self, layer, x, topk_weights, topk_ids):
        """Of the sum, what this rank's experts add."""
        if layer.expert_map is not None:
            local = layer.expert_map[topk_ids.long().clamp(min=0)]
            topk_ids = torch.where(topk_ids < 0, -1, local)
        weights = topk_weights.float()
        if layer.apply_router_weight_on_input:
            if weights.shape[1] != 1:
                raise ValueError("the router's weight can be applied to the input of one expert only")
            x, weights = x * topk_weights.to(x.dtype), torch.ones_like(weights)
        kernels = ops if engines.use_custom_ops() else reference
        if layer.activation == MoEActivation.SILU and not self.moe.has_bias:
            return kernels.moe_ffn_block(x, layer.w13_weight, layer.w2_weight, weights, topk_ids)
        inner = kernels.moe_fc(x, layer.w13_weight, topk_ids)
        if self.moe.has_bias:
            inner = inner + layer.w13_bias[topk_ids.long().clamp(min=0)]
        out = kernels.moe_fc(_activate(layer, inner), layer.w2_weight, topk_ids)
        if self.moe.has_bias:
            bias = layer.w2_bias[topk_ids.long().clamp(min=0)]
            out = out + torch.where(topk_ids[..., None] < 0, 0, bias)
        return (out * weights[..., None]).sum(1).to(x.dtype)


class KunlunGroupedTopk(GroupedTopk):
    """The choice of DeepSeek's models: the best groups of experts, then the best experts of those."""

    def forward_oot(self, hidden_states, gating_output, e_score_correction_bias=None):
        biased = e_score_correction_bias is not None
        if self.scoring_func == "sigmoid" and self.renormalize and biased and self.num_fused_shared_experts == 0:
            return ops.moe_sigmoid_group_topk_norm(
                gating_output,
                e_score_correction_bias,
                self.topk,
                self.num_expert_group,
                self.topk_group,
                self.routed_scaling_factor,
            )
        return self.forward_native(hidden_states, gating_output, e_score_correction_bias)


def register() -> None:
    """Registers the experts, which no device can do without, and with fused operators the choice by groups."""
    CustomOp.register_oot(KunlunUnquantizedFusedMoEMethod, name=UnquantizedFusedMoEMethod.__name__)
    if engines.use_custom_ops():
        CustomOp.register_oot(KunlunGroupedTopk, name=GroupedTopk.__name__)
