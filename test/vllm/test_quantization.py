# Quantised checkpoints: the text is that of the weights which their numbers stand for.
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from vllm import SamplingParams

GROUP = 32
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def packed(values: torch.Tensor, dim: int, order=range(8)) -> torch.Tensor:
    """Eight values of four bits in each word along `dim`; value `order[i]` comes to bits 4 * i and up."""
    parts = values.long().unflatten(dim, (-1, 8)).movedim(dim + 1 if dim >= 0 else dim, -1)
    words = sum(parts[..., j] << (4 * i) for i, j in enumerate(order))
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def four_bits(weight: torch.Tensor, symmetric: bool):
    """Values, scales and zero points of ``[in, out]`` weights by groups of inputs, and the weights they stand for."""
    groups = weight.t().unflatten(0, (-1, GROUP))
    if symmetric:
        scales = groups.abs().amax(1) / 7
        zeros = torch.full_like(scales, 8)
    else:
        low, high = groups.amin(1).clamp(max=0), groups.amax(1).clamp(min=0)
        scales = (high - low) / 15
        zeros = (-low / scales).round()
    scales = scales.half().float()
    values = (groups / scales[:, None] + zeros[:, None]).round().clamp(0, 15)
    meant = ((values - zeros[:, None]) * scales[:, None]).flatten(0, 1).t()
    return values.flatten(0, 1), scales, zeros, meant


def gptq(weight):
    values, scales, zeros, meant = four_bits(weight, True)
    return {"qweight": packed(values, 0), "scales": scales.half(), "qzeros": packed(zeros - 1, 1)}, meant


def awq(weight):
    values, scales, zeros, meant = four_bits(weight, False)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    return {"qweight": packed(values, 1, order), "scales": scales.half(), "qzeros": packed(zeros, 1, order)}, meant


def w8a8(weight):
    scales = weight.abs().amax(1, keepdim=True) / 127
    values = (weight / scales).round()
    return {"weight": values.to(torch.int8), "weight_scale": scales}, values * scales


INT8 = {"num_bits": 8, "type": "int", "symmetric": True}
FORMATS = {
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True}),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}),
    "w8a8": (
        w8a8,
        {
            "quant_method": "compressed-tensors",
            "format": "int-quantized",
            "ignore": ["lm_head"],
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {**INT8, "strategy": "channel", "dynamic": False},
                    "input_activations": {**INT8, "strategy": "token", "dynamic": True},
                }
            },
        },
    ),
}


@pytest.mark.parametrize("name", FORMATS)
def test_logprobs_are_those_of_the_weights_it_stands_for(name, run, model, reference, prompts, tmp_path):
    quantize, settings = FORMATS[name]
    folder = Path(shutil.copytree(model, tmp_path / name))
    tensors, meant = {}, {}
    for key, tensor in load_file(folder / "model.safetensors").items():
        module = key.removesuffix(".weight")
        if module.rsplit(".", 1)[-1] in LINEAR:
            parts, meant[key] = quantize(tensor.float())
            tensors |= {f"{module}.{part}": value.contiguous() for part, value in parts.items()}
        else:
            tensors[key] = tensor
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))

    prompt = prompts(24, seed=40)[0]
    ids = torch.tensor([prompt["prompt_token_ids"]])
    state = {key: value.clone() for key, value in reference.state_dict().items()}
    try:
        reference.load_state_dict(meant, strict=False)
        expected = reference(ids).logits[0].log_softmax(-1).detach()
    finally:
        reference.load_state_dict(state)

    llm = run(model=str(folder), dtype="float16")
    given = llm.generate([prompt], SamplingParams(max_tokens=1, prompt_logprobs=0), use_tqdm=False)[0].prompt_logprobs
    tokens = prompt["prompt_token_ids"]
    ours = torch.tensor([given[i][tokens[i]].logprob for i in range(1, len(tokens))])
    theirs = expected[range(len(tokens) - 1), tokens[1:]]
    # Half precision, and for w8a8 activations of eight bits; other weights would be off by several units.
    assert (ours - theirs).abs().mean() < (0.25 if name == "w8a8" else 0.05)
