# Several devices write what one writes, and the processes end without a trace.
import json
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from common_leftovers import segments, unused_since
from common_vllm import Server
from common_zoo import checkpoint_or_skip
from vllm import SamplingParams

from tools import zoo

PROGRAM = """
import json, os, sys
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    model, prompts, options = json.loads(sys.argv[1])
    llm = LLM(model, dtype="float32", max_model_len=256, max_num_seqs=8, max_num_batched_tokens=64,
              gpu_memory_utilization=0.2, seed=0, **options)
    greedy = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    seeded = SamplingParams(temperature=1, seed=5, max_tokens=16, ignore_eos=True)
    texts = [[list(o.outputs[0].token_ids) for o in llm.generate(prompts, s, use_tqdm=False)] for s in (greedy, seeded)]
    named = [name for name in os.listdir("/dev/shm") if name.startswith("psm_")]
    print(json.dumps([texts, named]))
"""


@pytest.fixture
def apart(tmp_path):
    """``apart(model, prompts, options)``: greedy and seeded tokens by an engine in processes of its own; by several
    engines, if there is a list of prompts for each of them.
    """
    program = tmp_path / "several.py"
    program.write_text(PROGRAM)
    started = []

    def start(model: str, prompts: list[dict], options: dict, **environment: str) -> subprocess.Popen:
        devices = options.get("tensor_parallel_size", 1) * options.get("pipeline_parallel_size", 1)
        own = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "KUNLUN_SIM_DEVICES": str(max(devices, 2))}
        process = subprocess.Popen(
            [sys.executable, str(program), json.dumps([model, prompts, options])],
            env={**os.environ, **own, **environment},
            stdout=subprocess.PIPE,
            stderr=(tmp_path / f"errors{len(started)}.txt").open("w"),
            text=True,
        )
        started.append(process)
        return process

    def answer(process: subprocess.Popen) -> tuple[list[list[list[int]]], list[str]]:
        text, _ = process.communicate(timeout=280)
        errors = (tmp_path / f"errors{started.index(process)}.txt").read_text()
        assert process.returncode == 0, errors[-4000:]
        assert "Traceback" not in errors
        (found,) = [line for line in text.splitlines() if line.startswith("[[[")]
        return json.loads(found)

    def write(model: str, prompts: list, options: dict) -> list:
        before = segments()
        if isinstance(prompts[0], dict):
            answers, named = answer(start(model, prompts, options))
            assert set(named) <= before, "queues that a killed engine would leave behind"
        else:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            # As in vLLM's example data_parallel_offline.py.
            common = {"VLLM_DP_SIZE": str(len(prompts)), "VLLM_DP_MASTER_IP": "127.0.0.1"}
            common["VLLM_DP_MASTER_PORT"] = str(port)
            replicas = [
                start(model, own, options, VLLM_DP_RANK=str(rank), VLLM_DP_RANK_LOCAL=str(rank), **common)
                for rank, own in enumerate(prompts)
            ]
            answers = [answer(replica)[0] for replica in replicas]
        assert unused_since(before) == set()
        return answers

    yield write
    for process in started:
        if process.poll() is None:
            process.terminate()
            process.wait(timeout=60)


FOUR = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}


@pytest.mark.parametrize(
    "options",
    [
        {"tensor_parallel_size": 2},
        {"pipeline_parallel_size": 2},
        pytest.param(FOUR, marks=pytest.mark.full),
    ],
    ids=["tensors", "pipeline", "both"],
)
def test_several_devices_write_what_one_writes(llm, model, prompts, greedy, apart, options):
    # The first stage of a pipeline prepares batches while the device is busy: enough of them that they overlap.
    asked = prompts(7, 80, 40, 12, 70, 5, seed=60)
    settings = SamplingParams(temperature=1, seed=5, max_tokens=16, ignore_eos=True)
    seeded = [list(output.outputs[0].token_ids) for output in llm.generate(asked, settings, use_tqdm=False)]
    assert apart(model, asked, options) == [[greedy(prompt, 16) for prompt in asked], seeded]


@pytest.mark.full
@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3"])
def test_experts_spread_over_devices(name, apart):
    model = str(checkpoint_or_skip(name))
    answers = zoo.reference(name)["answers"]
    asked = [{"prompt_token_ids": answer["prompt_tokens"]} for answer in answers]
    options = {"tensor_parallel_size": 2, "enable_expert_parallel": True}
    texts, _ = apart(model, asked, options)
    assert texts == [answer["tokens"][:16] for answer in answers]


@pytest.mark.full
@pytest.mark.parametrize("name", ["mixtral", "deepseek_v3"])
def test_experts_spread_over_replicas(name, apart):
    """Each replica computes attention for its own requests, of which they have different numbers, and all of them share
    the experts.
    """
    model = str(checkpoint_or_skip(name))
    answers = zoo.reference(name)["answers"]
    asked = [{"prompt_token_ids": answer["prompt_tokens"]} for answer in answers]
    (first, _), (second, _) = apart(model, [asked[:1], asked[1:]], {"enable_expert_parallel": True})
    assert first + second == [answer["tokens"][:16] for answer in answers]


@pytest.mark.full
def test_a_server_with_two_replicas(model, prompts, greedy, tmp_path):
    asked = prompts(7, 40, 12, 30, seed=61) * 3
    expected = [greedy(prompt, 8) for prompt in asked]
    with Server(model, tmp_path / "log.txt", "--data-parallel-size", "2") as server:
        server.wait()

        def ask(prompt: dict) -> list[int]:
            body = {"model": model, "prompt": prompt["prompt_token_ids"], "max_tokens": 8, "temperature": 0}
            body |= {"ignore_eos": True, "return_token_ids": True}
            answer = httpx.post(f"{server.address}/v1/completions", json=body, timeout=120).json()
            return answer["choices"][0]["token_ids"]

        with ThreadPoolExecutor(len(asked)) as clients:
            assert list(clients.map(ask, asked)) == expected
        lines = httpx.get(f"{server.address}/metrics", timeout=30).text.splitlines()
        written = [float(line.split()[-1]) for line in lines if line.startswith("vllm:generation_tokens_total")]
        assert len(written) == 2
        assert min(written) > 0
        assert sum(written) == 8 * len(asked)
        assert server.end(signal.SIGTERM) == 0, server.log.read_text()[-4000:]
