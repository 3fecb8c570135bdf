# SmolLM2-135M over three devices (it has three key heads): the text of one, and what the processes leave behind.
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from common_sglang import NEW_TOKENS, PROMPTS, tokens_of

pytestmark = pytest.mark.full

PROGRAM = """
import json, sys
import sglang

if __name__ == "__main__":
    engine = sglang.Engine(model_path=sys.argv[1], dtype="float32", max_total_tokens=2048, tp_size=int(sys.argv[2]))
    outputs = engine.generate(json.loads(sys.argv[3]), {"temperature": 0, "max_new_tokens": int(sys.argv[4])})
    counts = [state["kunlun_operators"]["fallback"] for state in engine.get_server_info()["internal_states"]]
    print(json.dumps({"tokens": [output["output_ids"] for output in outputs], "fallbacks": counts}))
"""


def segments() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir() if path.name.startswith(("sgl", "sem.mp-"))}


def run(program: Path, model: Path, devices: int, **environment: str) -> tuple[dict, str]:
    command = [sys.executable, str(program), str(model), str(devices), json.dumps(PROMPTS), str(NEW_TOKENS)]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.fixture
def program(tmp_path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def test_three_devices_write_the_same_and_leave_nothing(program, smollm, smollm_reference):
    before = segments()
    result, errors = run(program, smollm, 3)
    assert result == {"tokens": tokens_of(smollm_reference["plain"]), "fallbacks": [0]}
    assert "Traceback" not in errors
    assert segments() <= before


def test_plain_operators_write_the_same(program, smollm, smollm_reference):
    result, _ = run(program, smollm, 1, KUNLUN_CUSTOM_OPS="0")
    assert result == {"tokens": tokens_of(smollm_reference["plain"]), "fallbacks": [0]}
