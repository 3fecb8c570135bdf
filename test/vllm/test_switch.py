# KUNLUN_CUSTOM_OPS=0: plain torch operators in place of every fused one, and the same text.
import json
import os
import subprocess
import sys

PROGRAM = """
import json, sys, torch
from torch.profiler import ProfilerActivity, profile
from vllm import LLM, SamplingParams

model, prompts = json.loads(sys.argv[1])
llm = LLM(model, dtype="float32", max_model_len=256, max_num_seqs=8, max_num_batched_tokens=64,
          kv_cache_memory_bytes=4 << 20, gpu_memory_utilization=0.1, seed=0)
with profile(activities=[ProfilerActivity.CPU]) as profiler:
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=16, ignore_eos=True), use_tqdm=False)
fused = sorted({event.key for event in profiler.key_averages() if event.key.startswith("kunlun::")})
print(json.dumps([[list(output.outputs[0].token_ids) for output in outputs], fused]))
"""


def test_without_fused_operators_the_text_is_the_same(model, prompts, greedy):
    asked = prompts(9, 70, seed=61)
    expected = [greedy(prompt, 16) for prompt in asked]
    for switch in ("0", "1"):
        environment = {**os.environ, "KUNLUN_CUSTOM_OPS": switch, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        command = [sys.executable, "-c", PROGRAM, json.dumps([model, asked])]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280, check=False)
        assert result.returncode == 0, result.stderr[-4000:]
        text, fused = json.loads(result.stdout.splitlines()[-1])
        assert text == expected
        assert bool(fused) == (switch == "1"), fused
