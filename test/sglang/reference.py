# What transformers computes by itself: run as a program, in a process that never loads the extension.
#
# Reads jobs from standard input, a JSON list of {"prompt", "tokens", and penalties}; writes for each one the tokens
# chosen greedily, and at each step the logarithms of the five largest probabilities before the penalties.
import json
import sys

import torch

library = torch.library.Library("torchvision", "FRAGMENT")  # see torch_xpu_kunlun/_torchvision.py
for name in ("nms", "qnms"):
    library.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache  # noqa: E402


def penalised(logits: torch.Tensor, written: list[int], job: dict) -> torch.Tensor:
    """Penalties for what has been written so far, by the definitions of OpenAI (sums) and CTRL (a factor)."""
    counts = torch.bincount(torch.tensor(written, dtype=torch.long), minlength=logits.numel())
    logits = logits - job.get("frequency_penalty", 0.0) * counts - job.get("presence_penalty", 0.0) * (counts > 0)
    factor = torch.where(counts > 0, job.get("repetition_penalty", 1.0), 1.0)
    return torch.where(logits < 0, logits * factor, logits / factor)


@torch.inference_mode()
def answer(model, tokenizer, job: dict) -> dict:
    ids = tokenizer(job["prompt"], return_tensors="pt")["input_ids"]
    cache, written, best = DynamicCache(), [], []
    for _ in range(job["tokens"]):
        logits = model(ids, past_key_values=cache).logits[0, -1].float()
        values, indices = torch.log_softmax(logits, 0).topk(5)
        best.append(list(zip(values.tolist(), indices.tolist(), strict=True)))
        written.append(int(penalised(logits, written, job).argmax()))
        if written[-1] == tokenizer.eos_token_id:
            break
        ids = torch.tensor([[written[-1]]])
    return {"tokens": written, "best": best}


if __name__ == "__main__":
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
    print(json.dumps([answer(model, tokenizer, job) for job in json.load(sys.stdin)]))
