# The parent's handle of an engine's side, and the judgement of what it answers.
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tools import zoo
from tools.zoo.families import FAMILIES

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "build" / "engine_matrix"
TOLERANCE = 1e-4  # between numbers of vectors, and between scores
PACKAGES = {"vllm": "vLLM", "sglang": "SGLang"}


class SideError(RuntimeError):
    """The engine's process ended; the text holds its last words."""


class Side:
    """One process that has imported the engine."""

    def __init__(self, engine: str, timeout: float = 300) -> None:
        self.engine, self.timeout = engine, timeout
        environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "OMP_NUM_THREADS": "1",
            "KUNLUN_SIM_MEMORY": os.environ.get("KUNLUN_SIM_MEMORY", "1G"),
        }
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the process, closed by close()
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"tools.matrix.{engine}_side"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        self.read()

    def read(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            self.log.seek(0)
            raise SideError(f"the process of {self.engine} ended with {code}:\n{''.join(self.log.readlines()[-20:])}")
        return json.loads(line)

    def judge(self, name: str, tp: int, options: dict) -> dict:
        family = FAMILIES[name]
        record = {"name": name, "title": family.title, "architecture": family.model, "tp": tp}
        zoo.ensure([name])
        if reason := zoo.unavailable(name):
            return {**record, "status": "unavailable", "reason": reason}
        reference = zoo.reference(name)[family.key]
        RESULTS.mkdir(parents=True, exist_ok=True)
        job = {
            "kind": family.kind,
            "folder": str(zoo.checkpoint(name)),
            "tp": tp,
            "inputs": [one.get("prompt") or one["text"] for one in reference],
            "pictures": [one["picture"] for one in reference if "picture" in one],
            "question": reference[0].get("question"),
            "new_tokens": len(reference[0].get("tokens", ())),
            "options": options,
            "log": str(RESULTS / f"{self.engine}-{name}-tp{tp}.log"),
            "timeout": self.timeout,
        }
        print(json.dumps(job), file=self.process.stdin, flush=True)
        answer = self.read()
        if "error" in answer:
            return {**record, "status": "failed", "reason": answer.pop("error"), **answer}
        difference = compare(family.kind, reference, answer["made"])
        return {**record, "status": "different" if difference else "same", "reason": difference, **answer}

    def run(self, name: str, tp: int = 1, **options) -> dict:
        """Run one model of the zoo, judge it, and keep the result for the page unless it ran with options.

        Returns {"status": same, different, failed or unavailable, "reason": what differs or failed, ...}.
        """
        result = self.judge(name, tp, options)
        if not options:
            RESULTS.mkdir(parents=True, exist_ok=True)
            (RESULTS / f"{self.engine}-{name}-tp{tp}.json").write_text(json.dumps(result, indent=1))
        return result

    def close(self) -> None:
        """End the process, and with it what it is about."""
        self.process.terminate()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        self.log.close()

    def __enter__(self) -> "Side":
        return self

    def __exit__(self, *_) -> None:
        self.close()


def compare(kind: str, reference: list[dict], made: list) -> str | None:
    """What differs from the reference, or None."""
    if kind in ("text", "vision"):
        for number, (expected, got) in enumerate(zip(reference, made, strict=True)):
            if got["prompt_tokens"] not in (None, expected["prompt_tokens"]):
                return f"prompt {number} has other tokens"
            if len(got["tokens"]) != len(expected["tokens"]):
                return f"answer {number} has {len(got['tokens'])} tokens, not {len(expected['tokens'])}"
            pairs = enumerate(zip(expected["tokens"], got["tokens"], strict=True))
            if wrong := [place for place, (a, b) in pairs if a != b]:
                return f"answer {number} differs from token {wrong[0]} of {len(expected['tokens'])} on"
            if got["text"] != expected["text"]:
                return f"answer {number} has the same tokens but another text"
        return None
    part = {"embedding": "vector", "score": "score"}[kind]
    far = 0.0
    for expected, got in zip(reference, made, strict=True):
        a, b = (value if isinstance(value, list) else [value] for value in (expected[part], got))
        if len(a) != len(b):
            return f"{len(b)} numbers, not {len(a)}"
        far = max([far, *(abs(x - y) for x, y in zip(a, b, strict=True))])
    return None if far <= TOLERANCE else f"numbers differ by up to {far:.2g}"
