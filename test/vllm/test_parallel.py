# Two devices write what one writes, and the processes end without a trace.
import json
import os
import subprocess
import sys

from common_leftovers import segments, unused_since

PROGRAM = """
import json, os, sys
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    model, prompts = json.loads(sys.argv[1])
    llm = LLM(model, dtype="float32", max_model_len=256, max_num_seqs=8, max_num_batched_tokens=64,
              gpu_memory_utilization=0.2, tensor_parallel_size=2, seed=0)
    greedy = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    seeded = SamplingParams(temperature=1, seed=5, max_tokens=16, ignore_eos=True)
    texts = [[list(o.outputs[0].token_ids) for o in llm.generate(prompts, s, use_tqdm=False)] for s in (greedy, seeded)]
    named = [name for name in os.listdir("/dev/shm") if name.startswith("psm_")]
    print(json.dumps([texts, named]))
"""


def test_two_devices_write_what_one_writes(llm, model, prompts, greedy, tmp_path):
    from vllm import SamplingParams

    asked = prompts(7, 80, seed=60)
    settings = SamplingParams(temperature=1, seed=5, max_tokens=16, ignore_eos=True)
    seeded = [list(output.outputs[0].token_ids) for output in llm.generate(asked, settings, use_tqdm=False)]
    program = tmp_path / "two.py"
    program.write_text(PROGRAM)
    before = segments()
    result = subprocess.run(
        [sys.executable, str(program), json.dumps([model, asked])],
        env={**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    (answer,) = [line for line in result.stdout.splitlines() if line.startswith("[[[")]
    texts, named = json.loads(answer)
    assert texts == [[greedy(prompt, 16) for prompt in asked], seeded]
    assert set(named) <= before, "queues that a killed engine would leave behind"
    assert "Traceback" not in result.stderr
    assert unused_since(before) == set()
