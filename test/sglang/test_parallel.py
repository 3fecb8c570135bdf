# Several devices write what one writes, and their processes leave nothing behind.
#
# SmolLM2-135M has three key heads, so it takes three devices; the small Llama takes two.
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from common_leftovers import segments, unused_since
from common_sglang import NEW_TOKENS, PROMPTS, tokens_of
from common_zoo import checkpoint_or_skip

pytestmark = pytest.mark.full

SEEDS = (1, 2, 1)
PROGRAM = """
import json, sys
import sglang

if __name__ == "__main__":
    model, devices, prompts, tokens, seeds = json.loads(sys.argv[1])
    engine = sglang.Engine(
        model_path=model, dtype="float32", max_total_tokens=2048, tp_size=devices, enable_deterministic_inference=True
    )
    greedy = {"temperature": 0, "max_new_tokens": tokens}
    seeded = [
        {"temperature": 1, "top_k": 40, "top_p": 0.95, "max_new_tokens": tokens, "ignore_eos": True, "sampling_seed": n}
        for n in seeds
    ]
    outputs = engine.generate(prompts, greedy), engine.generate([prompts[0]] * len(seeds), seeded)
    counts = [state["kunlun_operators"]["fallback"] for state in engine.get_server_info()["internal_states"]]
    written = [[output["output_ids"] for output in part] for part in outputs]
    print(json.dumps({"greedy": written[0], "seeded": written[1], "fallbacks": counts}))
"""


@pytest.fixture
def run(tmp_path):
    """``run(model, devices, **environment)``: what the program above tells, after checks of how it ended."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    def run(model: Path, devices: int, **environment: str) -> dict:
        before = segments()
        job = [str(model), devices, PROMPTS, NEW_TOKENS, SEEDS]
        done = subprocess.run(
            [sys.executable, str(program), json.dumps(job)],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        assert "Traceback" not in done.stderr
        assert unused_since(before) == set()
        result = json.loads(done.stdout.splitlines()[-1])
        assert result["fallbacks"] == [0]
        return result

    return run


def test_three_devices_write_the_same(run, smollm, smollm_reference):
    assert run(smollm, 3)["greedy"] == tokens_of(smollm_reference["plain"])


def test_plain_operators_write_the_same(run, smollm, smollm_reference):
    assert run(smollm, 1, KUNLUN_CUSTOM_OPS="0")["greedy"] == tokens_of(smollm_reference["plain"])


def test_seeded_text_of_two_devices_is_that_of_one(run):
    model = checkpoint_or_skip("llama3")
    one, two = run(model, 1), run(model, 2)
    assert two == one
    assert one["seeded"][0] == one["seeded"][2] != one["seeded"][1]
