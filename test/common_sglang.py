# Helpers of SGLang's tests: prompts, what transformers answers to them, and counts of operators.
import json
import os
import subprocess
import sys
from pathlib import Path

PROMPTS = ("The capital of France is", "Once upon a time", "def fibonacci(n):")
NEW_TOKENS = 32

# Greedy, float32, on the CPU, by a process that never loads the extension.
_REFERENCE = """
import json, sys
import torch
library = torch.library.Library("torchvision", "FRAGMENT")  # see torch_xpu_kunlun/_torchvision.py
for name in ("nms", "qnms"):
    library.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, prompts, new_tokens = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
answers = []
for prompt in prompts:
    ids = tokenizer(prompt, return_tensors="pt")
    out = model.generate(**ids, do_sample=False, max_new_tokens=new_tokens, pad_token_id=tokenizer.eos_token_id)
    answers.append(out[0, ids["input_ids"].shape[1]:].tolist())
print(json.dumps(answers))
"""


def generate_on_cpu(folder: Path, prompts: tuple[str, ...] = PROMPTS, new_tokens: int = NEW_TOKENS) -> list[list[int]]:
    """Tokens that transformers writes for each prompt, by itself."""
    done = subprocess.run(
        [sys.executable, "-c", _REFERENCE, str(folder), json.dumps(prompts), str(new_tokens)],
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return json.loads(done.stdout.splitlines()[-1])


def operators(engine) -> dict:
    """Counts of operators by tier in the engine's first scheduler, since its start."""
    return engine.get_server_info()["internal_states"][0]["kunlun_operators"]
