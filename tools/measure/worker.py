# One side of a comparison: a process that does one piece of work per line of JSON on its standard input.
#
# A request is {"do": name, ...arguments}; the answer is {"done": result} or {"error": text}, after any number of
# {"tick": n} lines that report progress. While the process waits for a request it sleeps in a read.
import contextlib
import json
import os
import resource
import statistics
import sys
import time
import traceback
from typing import Any


class Worker:
    """The state of one side: its device, and the language model once it is loaded."""

    def __init__(self, device: str, answers) -> None:
        self.device = device
        self.answers = answers
        self.model: Any = None
        self.tokenizer: Any = None

    def send(self, **message) -> None:
        self.answers.write(json.dumps(message) + "\n")
        self.answers.flush()

    def synchronize(self) -> None:
        import torch

        if self.device != "cpu":
            torch.accelerator.synchronize()

    # ---- requests -----------------------------------------------------------------------------------------------

    def hello(self) -> dict:
        """Who this side is. The CPU side proves that it never loaded the extension."""
        import torch

        loaded = "torch_xpu_kunlun" in sys.modules
        if self.device == "cpu" and loaded:
            raise RuntimeError("the CPU side loaded torch_xpu_kunlun; the comparison would not be with plain torch")
        facts = {"torch": torch.__version__, "threads": torch.get_num_threads(), "extension": loaded}
        if self.device != "cpu":
            facts["name"] = torch.kunlun.get_device_name()
        return facts

    def load(self, folder: str, dtype: str) -> float:
        """Load the language model; returns the seconds it took."""
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging

        logging.disable_progress_bar()
        self.model = None
        start = time.perf_counter()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        self.model = model.to(self.device).eval()
        self.synchronize()
        return time.perf_counter() - start

    def generate(self, prompts: list[str], new_tokens: int, ticks: bool = False) -> dict:
        """Greedy generation, exactly `new_tokens` for each prompt."""
        import torch

        texts = [
            self.tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True
            )
            for prompt in prompts
        ]
        self.tokenizer.padding_side = "left"
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        inputs = self.tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False).to(self.device)
        processors = [self.tick_each_token()] if ticks else []
        reset_peak_memory(self.device)
        reset_operator_statistics(self.device)
        self.synchronize()
        start = time.perf_counter()
        with torch.no_grad():
            output = self.model.generate(
                **inputs,
                do_sample=False,
                max_new_tokens=new_tokens,
                min_new_tokens=new_tokens,
                pad_token_id=self.tokenizer.pad_token_id,
                logits_processor=processors,
            )
        self.synchronize()
        seconds = time.perf_counter() - start
        tokens = output[:, inputs["input_ids"].shape[1] :].tolist()
        return {
            "seconds": seconds,
            "tokens": tokens,
            "texts": self.tokenizer.batch_decode(tokens, skip_special_tokens=True),
            "memory": peak_memory(self.device),
            "operators": operator_statistics(self.device),
        }

    def tick_each_token(self):
        """A logits processor that changes nothing and only tells the parent that another token is under way."""
        count = 0

        def process(_ids, scores):
            nonlocal count
            count += 1
            self.send(tick=count)
            return scores

        return process

    def operators(self) -> dict:
        """Calls by tier since the last reset."""
        return operator_statistics(self.device)

    def reset_operators(self) -> None:
        reset_operator_statistics(self.device)

    def route_to_boxed_tier(self, operator: str) -> None:
        """From now on this process runs `operator` through the boxed tier."""
        from torch_xpu_kunlun import _C

        _C._route_to_boxed_tier(operator)

    def add(self, elements: int, calls: int, blocks: int) -> float:
        """Seconds the caller spends in one `add`: the median over blocks, with the device idle before each."""
        import torch

        x, y = torch.ones(elements, device=self.device), torch.ones(elements, device=self.device)
        samples = []
        for _ in range(blocks):
            self.synchronize()
            start = time.perf_counter()
            for _ in range(calls):
                torch.add(x, y)
            samples.append((time.perf_counter() - start) / calls)
        return statistics.median(samples)

    def launchers(self, calls: int, blocks: int) -> list[float]:
        """Seconds the caller spends in one call, for each operator of tools.measure.launchers, as in `add`."""
        import torch

        from tools.measure.launchers import cases, not_generated

        if self.device != "cpu" and (others := not_generated([case.overload for case in cases()])):
            raise RuntimeError(f"no generated launcher: {', '.join(others)}")
        tensors = torch.linspace(0.1, 0.9, 16, device=self.device), torch.linspace(1, 2, 16, device=self.device)
        medians = []
        for case in cases():
            function, given = case.function, (*tensors[: case.tensors], *case.numbers)
            samples = []
            for _ in range(blocks):
                self.synchronize()
                start = time.perf_counter()
                for _ in range(calls):
                    function(*given)
                samples.append((time.perf_counter() - start) / calls)
            medians.append(statistics.median(samples))
        return medians

    def chain(self, megabytes: int, rounds: int) -> float:
        """Seconds for a chain of elementwise operators over a large float32 tensor, waiting for the result."""
        import torch

        x = torch.linspace(-1, 1, megabytes * (1 << 20) // 4, device=self.device)
        self.synchronize()
        start = time.perf_counter()
        for _ in range(rounds):
            y = x * 1.5
            y = y + x
            y = torch.relu(y)
            y = y.mul_(0.5)
            y = torch.sigmoid(y)
        self.synchronize()
        return (time.perf_counter() - start) / rounds

    def fused(self, case: str, phase: str, dtype: str, composed: bool, seconds: float) -> float:
        """Seconds of one call of a fused operator, or of its composition: of many calls, waited for at the end."""
        import torch

        from tools.measure.fused import CASES, arguments

        call = CASES[case].composed if composed else CASES[case].fused
        given = arguments(case, phase, dtype, self.device)
        with torch.inference_mode():
            start = time.perf_counter()
            call(*given)
            self.synchronize()
            calls = max(1, round(seconds / (time.perf_counter() - start)))
            start = time.perf_counter()
            for _ in range(calls):
                call(*given)
            self.synchronize()
            return (time.perf_counter() - start) / calls


def reset_peak_memory(device: str) -> None:
    import torch

    if device != "cpu":
        torch.accelerator.reset_peak_memory_stats()


def peak_memory(device: str) -> int:
    """Peak bytes: of tensors on the device, or of the whole process for the CPU, which counts nothing finer."""
    import torch

    if device == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return torch.accelerator.max_memory_allocated()


def reset_operator_statistics(device: str) -> None:
    if device != "cpu":
        import torch_xpu_kunlun

        torch_xpu_kunlun.reset_operator_statistics()


def operator_statistics(device: str) -> dict:
    if device == "cpu":
        return {}
    import torch_xpu_kunlun

    return torch_xpu_kunlun.operator_statistics()


def serve(kind: type[Worker], device: str) -> None:
    """Answer requests until standard input ends."""
    # Answers go to a private copy of standard output; whatever a library prints goes to standard error instead.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker = kind(device, answers)
    for line in sys.stdin:
        request = json.loads(line)
        method = getattr(worker, request.pop("do"))
        try:
            result = method(**request)
        except Exception as error:  # the parent reports it: this process has no terminal of its own
            worker.send(error=f"{type(error).__name__}: {error}", traceback=traceback.format_exc())
            continue
        worker.send(done=result)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        serve(Worker, sys.argv[1])
