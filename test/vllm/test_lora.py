# Adapters: requests with and without one share a batch, and each gets what the merged weights would give.
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from vllm import SamplingParams
from vllm.lora.request import LoRARequest

RANK, ALPHA = 8, 16
TARGETS = ("q_proj", "v_proj", "o_proj", "down_proj", "gate_proj", "up_proj")


@pytest.fixture(scope="module")
def adapter(reference, tmp_path_factory) -> tuple[str, dict[str, torch.Tensor]]:
    """A folder in peft's format, and what it adds to each weight."""
    generator = torch.Generator().manual_seed(1)
    tensors, added = {}, {}
    for name, module in reference.named_modules():
        if name.rsplit(".", 1)[-1] in TARGETS:
            rows, columns = module.weight.shape
            a = torch.randn(RANK, columns, generator=generator) * columns**-0.5
            b = torch.randn(rows, RANK, generator=generator) * 0.2
            tensors[f"base_model.model.{name}.lora_A.weight"] = a
            tensors[f"base_model.model.{name}.lora_B.weight"] = b
            added[f"{name}.weight"] = ALPHA / RANK * b @ a
    folder = tmp_path_factory.mktemp("adapter")
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": TARGETS, "bias": "none"}
    Path(folder, "adapter_config.json").write_text(json.dumps(settings))
    return str(folder), added


def test_adapters_are_applied_to_their_own_requests(run, adapter, reference, prompts, greedy):
    folder, added = adapter
    asked = prompts(9, 30, 14, seed=20)
    plain = [greedy(prompt, 8) for prompt in asked]
    state = reference.state_dict()
    try:
        for name, change in added.items():
            state[name] += change
        merged = [greedy(prompt, 8) for prompt in asked]
    finally:
        for name, change in added.items():
            state[name] -= change
    assert plain != merged
    llm = run(enable_lora=True, max_lora_rank=RANK, max_loras=2)
    settings = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False)
    wanted = [LoRARequest("one", 1, folder), None, LoRARequest("one", 1, folder)]
    outputs = llm.generate(asked, settings, lora_request=wanted, use_tqdm=False)
    expected = [merged[0], plain[1], merged[2]]
    assert [list(output.outputs[0].token_ids) for output in outputs] == expected
