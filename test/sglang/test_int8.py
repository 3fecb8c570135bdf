# --quantization w8a8_int8: the text of a plain computation with the same int8 weights.
#
# A number that lies between two of int8 may fall to either side, by the last digit of what was summed before it. Sooner
# or later that changes a token, so beginnings are compared, of a small model.
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from common_sglang import operators, tokens_of

from tools import zoo

pytestmark = pytest.mark.full

NEW_TOKENS = 16


def test_int8_writes_what_its_weights_say(tmp_path):
    import sglang

    prompts = [answer["prompt"] for answer in zoo.reference("llama3")["answers"]]

    done = subprocess.run(
        [
            sys.executable,
            str(Path(__file__).parent / "int8_reference.py"),
            str(zoo.checkpoint("llama3")),
            str(tmp_path),
            json.dumps(prompts),
            str(NEW_TOKENS),
        ],
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
    )
    expected = json.loads(done.stdout.splitlines()[-1])
    engine = sglang.Engine(model_path=str(tmp_path), dtype="float32", quantization="w8a8_int8", max_total_tokens=2048)
    try:
        outputs = engine.generate(prompts, {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True})
        assert operators(engine)["fallback"] == 0
    finally:
        engine.shutdown()
    assert tokens_of(outputs) == expected
