# --quantization w8a8_int8: the text of a plain computation with the same int8 weights.
#
# A number that lies between two of int8 may fall to either side, by the last digit of what was summed before it. Sooner
# or later that changes a token: so beginnings are compared, of a small model; and of a trained one, whether each token
# is the best up to the rounding of the plain computation, which float32 and float64 tell.
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from common_sglang import PROMPTS, operators, tokens_of

from tools import zoo

pytestmark = pytest.mark.full

NEW_TOKENS = 16


def without_extension(program: str, *words: str, text: str = "") -> list:
    """What a program of this folder prints as JSON, run where the extension is not loaded."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / program), *words],
        input=text,
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
    )
    return json.loads(done.stdout.splitlines()[-1])


def quantise(source: Path, target: Path, prompts: list[str], new_tokens: int) -> list[list[int]]:
    """Write the int8 copy; returns what transformers answers with its weights."""
    return without_extension("int8_reference.py", str(source), str(target), json.dumps(prompts), str(new_tokens))


def answers(folder: Path, prompts: list[str], new_tokens: int) -> list[list[int]]:
    """What SGLang answers."""
    import sglang

    engine = sglang.Engine(model_path=str(folder), dtype="float32", quantization="w8a8_int8", max_total_tokens=2048)
    try:
        outputs = engine.generate(prompts, {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True})
        assert operators(engine)["fallback"] == 0
    finally:
        engine.shutdown()
    return tokens_of(outputs)


def test_int8_writes_what_its_weights_say(tmp_path):
    prompts = [answer["prompt"] for answer in zoo.reference("llama3")["answers"]]
    expected = quantise(zoo.checkpoint("llama3"), tmp_path, prompts, NEW_TOKENS)
    assert answers(tmp_path, prompts, NEW_TOKENS) == expected


def test_int8_of_a_trained_model_is_right_up_to_rounding(smollm, tmp_path):
    quantise(smollm, tmp_path, list(PROMPTS), new_tokens=1)
    written = answers(tmp_path, list(PROMPTS), 2 * NEW_TOKENS)
    others = [*written[1:], written[0]]  # the same answers, each to another prompt
    asked = [
        {"prompt": prompt, "tokens": tokens}
        for tokens_of_each in (written, others)
        for prompt, tokens in zip(PROMPTS, tokens_of_each, strict=True)
    ]
    judged = without_extension("int8_precisions.py", str(smollm), text=json.dumps(asked))
    excess = [max(token["below"] for token in answer) - max(token["rounding"] for token in answer) for answer in judged]
    assert max(excess[: len(PROMPTS)]) <= 0
    assert min(excess[len(PROMPTS) :]) > 0, "the rounding is so large that any answer would pass"
