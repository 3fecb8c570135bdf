# Judges answers of an int8 model by the same plain computation in float32 and in float64: a program, without the
# extension.
#
# For each token of an answer: how far its logit lies below the highest one in float64, and by how much float32 differs
# from float64 there. A number between two of int8 falls to either side by the last digit of what was summed before it,
# and takes many others along in the layers above: that difference is the rounding of the computation.
import json
import sys

import torch
from int8_reference import AutoModelForCausalLM, AutoTokenizer, replace_linear


def judge(logits: dict[torch.dtype, torch.Tensor], tokens: list[int]) -> list[dict[str, float]]:
    exact = logits[torch.float64]
    below = exact.amax(-1) - exact.gather(-1, torch.tensor(tokens)[:, None])[:, 0]
    rounding = (logits[torch.float32].double() - exact).abs().amax(-1)
    return [{"below": a, "rounding": b} for a, b in zip(below.tolist(), rounding.tolist(), strict=True)]


@torch.inference_mode()
def main(source: str, answers: list[dict]) -> list[list[dict[str, float]]]:
    """`answers` hold prompt and tokens; the result is by answer and token."""
    tokenizer = AutoTokenizer.from_pretrained(source)
    logits = [{} for _ in answers]
    for dtype in (torch.float32, torch.float64):
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
        replace_linear(model)  # quantised before it is widened: the same int8 weights
        model.to(dtype)
        for answer, found in zip(answers, logits, strict=True):
            prompt = tokenizer(answer["prompt"])["input_ids"]
            found[dtype] = model(torch.tensor([prompt + answer["tokens"]])).logits[0, len(prompt) - 1 : -1]
    return [judge(found, answer["tokens"]) for found, answer in zip(logits, answers, strict=True)]


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], json.load(sys.stdin))))
