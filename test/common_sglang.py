# Helpers of SGLang's tests: prompts, what transformers answers to them, and counts of operators.
import json
import os
import subprocess
import sys
from pathlib import Path

PROMPTS = ("The capital of France is", "Once upon a time", "def fibonacci(n):")
NEW_TOKENS = 32
PENALTIES = ({"frequency_penalty": 1.5}, {"presence_penalty": 1.0}, {"repetition_penalty": 1.3})
LONG_PROMPTS = tuple(
    f"Here is a story about {animal}." for animal in ("a cat", "a dog", "a fox", "an owl", "a bear", "a mouse")
)
LONG_TOKENS = 48


def jobs() -> list[dict]:
    """What the tests ask the reference: each prompt greedily, one with each penalty, and long answers."""
    plain = [{"prompt": prompt, "tokens": NEW_TOKENS} for prompt in PROMPTS]
    penalised = [{"prompt": PROMPTS[1], "tokens": NEW_TOKENS, **penalty} for penalty in PENALTIES]
    return [*plain, *penalised, *({"prompt": prompt, "tokens": LONG_TOKENS} for prompt in LONG_PROMPTS)]


def ask_reference(folder: Path) -> dict[str, list[dict]]:
    """Answers of transformers on the CPU, float32: tokens and the best logarithms of probabilities at each step."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "sglang" / "reference.py"), str(folder)],
        input=json.dumps(jobs()),
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
    )
    answers = json.loads(done.stdout.splitlines()[-1])
    ends = len(PROMPTS), len(PROMPTS) + len(PENALTIES)
    return {"plain": answers[: ends[0]], "penalised": answers[ends[0] : ends[1]], "long": answers[ends[1] :]}


def tokens_of(outputs: list[dict]) -> list[list[int]]:
    return [output.get("output_ids", output.get("tokens")) for output in outputs]


def operators(engine) -> dict:
    """Counts of operators by tier in the engine's first scheduler, since its start."""
    return engine.get_server_info()["internal_states"][0]["kunlun_operators"]
