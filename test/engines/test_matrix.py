# The model matrix judges fairly: differences are found, failures are told in the engine's words, nothing hangs.
import json
import subprocess
import sys
import time

import pytest

from tools.matrix import page
from tools.matrix.session import compare

REFERENCE = [
    {"prompt": "a", "prompt_tokens": [1, 5], "tokens": [7, 8, 9], "text": "x y z"},
    {"prompt": "b", "prompt_tokens": [1, 6], "tokens": [7, 7, 9], "text": "x x z"},
]


def made(**changes) -> list[dict]:
    """What an engine made of REFERENCE, with changes in its second answer."""
    return [dict(REFERENCE[0]), {**REFERENCE[1], **changes}]


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({}, None),
        ({"tokens": [7, 7, 8]}, "answer 1 differs from token 2 of 3 on"),
        ({"prompt_tokens": [6]}, "prompt 1 has other tokens"),
        ({"tokens": [7, 7]}, "answer 1 has 2 tokens, not 3"),
        ({"text": "x x"}, "answer 1 has the same tokens but another text"),
    ],
)
def test_differences_of_text(changes, difference):
    assert compare("text", REFERENCE, made(**changes)) == difference


def test_differences_of_numbers():
    vectors = [{"vector": [0.6, 0.8]}, {"vector": [1.0, 0.0]}]
    assert compare("embedding", vectors, [[0.6, 0.8], [1.0, 0.00005]]) is None
    assert compare("embedding", vectors, [[0.6, 0.8], [1.0, 0.01]]) == "numbers differ by up to 0.01"
    assert compare("embedding", vectors, [[0.6, 0.8], [1.0]]) == "1 numbers, not 2"
    assert compare("score", [{"score": 0.25}], [0.5]) == "numbers differ by up to 0.25"


# ---- the process that forks for each model ------------------------------------------------------------------------

SIDE = """
import os, signal, subprocess, sys, time
from tools.matrix import side
from tools.matrix.side import serve

side.GRACE_SECONDS = 5

def run(job):
    print("words of", job["do"])
    if job["do"] == "raise":
        raise RuntimeError("no such layer") from KeyError("attn")
    if job["do"] == "die":
        os._exit(7)
    if job["do"] == "kill":
        subprocess.run([sys.executable, "-c", "raise ValueError('of a scheduler')"])
        print("that is the end")
        sys.stdout.flush()
        os.kill(0, signal.SIGKILL)
    if job["do"] == "hang":
        time.sleep(600)
    if job["do"] == "leave":
        subprocess.Popen(["sleep", "600"])
    if job["do"] == "linger":
        subprocess.Popen(["sleep", "0.5"])
    return {"pid": os.getpid()}

serve(run, "json")
"""


@pytest.fixture
def ask(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", SIDE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "{}\n"

    def ask(do: str, timeout: float = 60) -> dict:
        job = {"do": do, "log": str(tmp_path / f"{do}.log"), "timeout": timeout}
        print(json.dumps(job), file=process.stdin, flush=True)
        return json.loads(process.stdout.readline())

    yield ask
    process.stdin.close()
    assert process.wait(timeout=30) == 0
    process.stdout.close()
    process.stderr.close()


def test_each_job_has_a_process_of_its_own(ask, tmp_path):
    first, second = ask("work"), ask("work")
    assert first["pid"] != second["pid"]
    assert (tmp_path / "work.log").read_text() == "words of work\n"


def test_failures_are_told(ask, tmp_path):
    answer = ask("raise")
    assert answer["error"] == "KeyError: 'attn'"
    assert "no such layer" in answer["traceback"]
    assert ask("die")["error"] == f"the process ended with 7, see {tmp_path / 'die.log'}"
    assert ask("kill")["error"] == "ValueError: of a scheduler"
    assert "error" not in ask("linger")
    assert ask("leave")["error"] == "a process of the engine was left over"
    assert "error" not in ask("work")


def test_what_hangs_is_ended(ask):
    start = time.monotonic()
    assert ask("hang", timeout=0.5)["error"] == "not finished within 0.5 s"
    assert time.monotonic() - start < 60
    assert "error" not in ask("work")


def test_the_job_ends_with_the_process(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", SIDE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        process.stdout.readline()
        log = tmp_path / "hang.log"
        print(json.dumps({"do": "hang", "log": str(log), "timeout": 600}), file=process.stdin, flush=True)
        while not log.exists():
            time.sleep(0.01)
        process.terminate()
        assert process.wait(timeout=30) == 1
    # That nothing is left behind is what the suite itself checks at its end.


# ---- the page -----------------------------------------------------------------------------------------------------


def test_page_tells_what_ran_and_what_did_not(tmp_path, monkeypatch):
    results, target = tmp_path / "results", tmp_path / "models.md"
    results.mkdir()
    monkeypatch.setattr(page, "RESULTS", results)
    monkeypatch.setattr(page, "PAGE", target)
    monkeypatch.setattr(page, "KEPT", tmp_path / "models.json")
    common = {"engine": "vLLM 1.2", "native": True, "boxed": {}, "fallback": 0, "reason": None}
    runs = [
        {**common, "name": "llama2", "architecture": "LlamaForCausalLM", "tp": 1, "status": "same"},
        {**common, "name": "llama3", "architecture": "LlamaForCausalLM", "tp": 1, "status": "same"},
        {**common, "name": "llama2", "architecture": "LlamaForCausalLM", "tp": 2, "status": "different", "reason": "W"},
        {**common, "name": "gpt_neox", "architecture": "GPTNeoXForCausalLM", "tp": 1, "status": "same"}
        | {"native": False, "boxed": {"aten::nonzero": 4}},
        {"name": "opt", "architecture": "OPTForCausalLM", "tp": 1, "status": "failed", "reason": "E: a | b"},
    ]
    for run in runs:
        (results / f"vllm-{run['name']}-tp{run['tp']}.json").write_text(json.dumps(run))
    page.write()
    lines = target.read_text().splitlines()
    assert "vLLM 1.2: 2 architectures are the same, 0 also on two devices." in lines
    assert "| Llama 2 | `LlamaForCausalLM` | same | different |  |  | vLLM, 2 devices: W |" in lines
    neox = "| GPT-NeoX | `GPTNeoXForCausalLM` | same (T) |  |  |  | vLLM, 1 device: 4 calls boxed (`aten::nonzero`) |"
    assert neox in lines
    assert r"| OPT | `OPTForCausalLM` | failed |  |  |  | vLLM, 1 device: E: a \| b |" in lines
    # What is run again is replaced, what is not run again stays.
    for path in results.iterdir():
        path.unlink()
    (results / "vllm-opt-tp1.json").write_text(json.dumps({**runs[0], "name": "opt"}))
    page.write()
    lines = target.read_text().splitlines()
    assert "vLLM 1.2: 3 architectures are the same, 0 also on two devices." in lines
    assert "| OPT | `OPTForCausalLM` | same |  |  |  |  |" in lines
    assert neox in lines
