# The parent's handle of one side: starts the worker process, sends it requests, reads answers.
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class SideError(RuntimeError):
    """A side failed; the text holds its own words."""


class Side:
    """One worker process, `device` being "cpu" or "kunlun", with `threads` kernel threads; `module` is its program."""

    def __init__(self, device: str, threads: int, module: str = "tools.measure.worker") -> None:
        self.device = device
        self.threads = threads
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            # Nothing is fetched: the model comes from the installed package.
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        if device == "cpu":
            environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
        else:
            environment["KUNLUN_SIM_THREADS"] = str(threads)
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the worker, closed by close()
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, device],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        try:
            self.facts = self.ask("hello")
        except BaseException:
            self.close()
            raise

    def ask(self, what: str, on_tick: Callable[[int], None] | None = None, **arguments):
        """Send one request and wait for its answer; `on_tick` is called with each progress report."""
        try:
            print(json.dumps({"do": what, **arguments}), file=self.process.stdin, flush=True)
        except BrokenPipeError as error:
            raise self.ended(what) from error
        for line in self.process.stdout:
            answer = json.loads(line)
            if "tick" in answer:
                if on_tick is not None:
                    on_tick(answer["tick"])
                continue
            if "error" in answer:
                raise SideError(f"{what} failed on {self.device}: {answer['error']}\n{answer['traceback']}")
            return answer["done"]
        raise self.ended(what)

    def ended(self, what: str) -> SideError:
        """The error for a worker that ended without an answer, with the last of what it printed."""
        code = self.process.wait()
        self.log.seek(0)
        tail = "".join(self.log.readlines()[-20:])
        return SideError(f"the {self.device} process ended with code {code} during {what}:\n{tail}")

    def close(self) -> None:
        """End the worker: it leaves when its standard input ends."""
        self.process.stdin.close()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.log.close()

    def __enter__(self) -> "Side":
        return self

    def __exit__(self, *_) -> None:
        self.close()
