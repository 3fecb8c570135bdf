# `vllm serve` as a process of its own, for tests.
import itertools
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
from common_leftovers import group, until

START_SECONDS = 300
END_SECONDS = 90


def unexpected_tracebacks(log: str) -> list[str]:
    """Tracebacks of a server that was told to end, but for one that vLLM 0.32.0 may print: it closes its sockets before
    it cancels the task that reads them, and if that task runs in between, it reports the engine as dead.
    https://github.com/vllm-project/vllm/blob/v0.32.0/vllm/v1/engine/async_llm.py#L296
    """
    parts = log.split("Traceback (most recent call last)")
    pairs = itertools.pairwise(parts)
    race = "AsyncLLM output_handler failed"
    return [after[:2000] for before, after in pairs if race not in before[-500:] or "EngineDeadError" not in after]


class Server:
    """A server that nothing but its model and sizes was told. It leads a process group of its own."""

    def __init__(self, model: str, log: Path, *options: str):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.model, self.log = model, log
        self.address = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", model, "--port", str(port)]
        command += ["--dtype", "float32", "--max-model-len", "128", "--gpu-memory-utilization", "0.2"]
        command += ["--max-num-batched-tokens", "256", "--max-num-seqs", "32", *options]
        environment = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_LOGGING_LEVEL": "INFO"}
        with log.open("w") as stream:
            self.process = subprocess.Popen(
                command, env=environment, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
            )

    def wait(self) -> None:
        """Until it answers."""
        until(lambda: self.is_alive() or self.process.poll() is not None, START_SECONDS)
        assert self.is_alive(), self.log.read_text()[-4000:]

    def is_alive(self) -> bool:
        try:
            return httpx.get(f"{self.address}/health", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    def is_busy(self) -> bool:
        """Whether a request is being computed."""
        lines = httpx.get(f"{self.address}/metrics", timeout=30).text.splitlines()
        return any(line.startswith("vllm:num_requests_running") and not line.endswith(" 0.0") for line in lines)

    def request(self, tokens: int, **options) -> dict:
        """Asks for so many tokens."""
        return {"model": self.model, "prompt": [5, 6, 7], "max_tokens": tokens, "ignore_eos": True, **options}

    def write(self, tokens: int) -> dict:
        """The answer to a request for so many tokens."""
        return httpx.post(f"{self.address}/v1/completions", json=self.request(tokens), timeout=120).json()

    def end(self, number: int, everybody: bool = False) -> int:
        """Its exit code after this signal, which all its processes get where a terminal sends it to everybody."""
        if everybody:
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)
        return self.process.wait(timeout=END_SECONDS)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_) -> None:
        if group(self.process.pid):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
