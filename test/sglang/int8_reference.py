# Makes an int8 copy of a model and says what transformers writes with its weights: a program, without the extension.
#
# Every linear layer but the last is computed with the numbers that int8 has: weights by row, activations by token.
import json
import sys
from pathlib import Path

import torch

library = torch.library.Library("torchvision", "FRAGMENT")  # see torch_xpu_kunlun/_torchvision.py
for name in ("nms", "qnms"):
    library.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from safetensors.torch import save_file  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402


def quantised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    largest = x.abs().amax(-1, keepdim=True).clamp_min(1e-12)
    return (x * (torch.full_like(largest, 127) / largest)).round().clamp(-127, 127), largest * x.new_tensor(1 / 127)


class Int8Linear(torch.nn.Module):
    """The layer in its inputs' dtype; its integer sums are exact."""

    def __init__(self, linear: torch.nn.Linear):
        super().__init__()
        rows, scale = quantised(linear.weight.detach())
        self.register_buffer("rows", rows)
        self.register_buffer("scale", scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens, scale = quantised(x)
        return (tokens.double() @ self.rows.double().T).to(x.dtype) * scale * self.scale.T


def replace_linear(model: torch.nn.Module) -> dict[str, Int8Linear]:
    """Put an Int8Linear in place of every linear layer but the last; returns them by name."""
    layers = {
        name: Int8Linear(layer)
        for name, layer in model.named_modules()
        if isinstance(layer, torch.nn.Linear) and name != "lm_head"
    }
    for name, layer in layers.items():
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, layer)
    return layers


def main(source: str, target: str, prompts: list[str], new_tokens: int) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    for name, layer in replace_linear(model).items():
        tensors[f"{name}.weight"] = layer.rows.to(torch.int8)
        tensors[f"{name}.weight_scale"] = layer.scale
    if not model.config.tie_word_embeddings:
        tensors["lm_head.weight"] = model.lm_head.weight.detach().contiguous()
    model.config.save_pretrained(target)
    tokenizer.save_pretrained(target)
    save_file(tensors, Path(target) / "model.safetensors")
    answers = []
    for prompt in prompts:
        ids = tokenizer(prompt, return_tensors="pt")
        out = model.generate(**ids, do_sample=False, max_new_tokens=new_tokens, pad_token_id=tokenizer.eos_token_id)
        answers.append(out[0, ids["input_ids"].shape[1] :].tolist())
    return answers


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4]))))
