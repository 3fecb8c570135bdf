# One side of tools/bench_vllm.py: vLLM on `kunlun`, or transformers on the CPU. The protocol is tools.measure.worker's.
import contextlib
import os
import sys
import time

from tools.measure.torchvision import let_torchvision_load
from tools.measure.worker import Worker, operator_statistics, reset_operator_statistics, serve


class Serving(Worker):
    """The kunlun side holds an engine of vLLM in this process, the CPU side a model of transformers."""

    def start(self, folder: str, dtype: str, largest: int, longest: int) -> None:
        """Loads the model, for batches of up to `largest` prompts of up to `longest` tokens, answers included."""
        if self.device == "cpu":
            let_torchvision_load()
            self.load(folder, dtype)
            return
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
        from vllm import LLM

        self.model = LLM(
            folder,
            dtype=dtype,
            max_model_len=longest,
            max_num_seqs=largest,
            max_num_batched_tokens=1024,
            enable_prefix_caching=False,
            disable_log_stats=True,
        )

    def write(self, prompts: list[list[int]], lengths: list[int]) -> dict:
        """Greedy answers of just these lengths: seconds, tokens, and operators by tier.

        transformers works on a static batch, which is done when its longest answer is.
        """
        reset_operator_statistics(self.device)
        tokens, seconds = (self.write_static if self.device == "cpu" else self.write_served)(prompts, lengths)
        return {
            "seconds": seconds,
            "tokens": [answer[:length] for answer, length in zip(tokens, lengths, strict=True)],
            "operators": operator_statistics(self.device),
        }

    def write_served(self, prompts, lengths):
        from vllm import SamplingParams

        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        settings = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True, detokenize=False) for n in lengths]
        start = time.perf_counter()
        outputs = self.model.generate(asked, settings, use_tqdm=False)
        seconds = time.perf_counter() - start
        return [list(output.outputs[0].token_ids) for output in outputs], seconds

    def write_static(self, prompts, lengths):
        import torch

        self.model.generation_config.eos_token_id = None
        ids = torch.tensor(prompts)
        start = time.perf_counter()
        with torch.inference_mode():
            out = self.model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max(lengths), pad_token_id=0
            )
        seconds = time.perf_counter() - start
        return out[:, ids.shape[1] :].tolist(), seconds

    def products(self, rows: int, repeats: int) -> float:
        """Seconds of all matrix products of one decoding step with `rows` sequences, and of nothing else."""
        import torch

        model = self.model
        if self.device != "cpu":
            model = self.model.llm_engine.model_executor.driver_worker.worker.get_model()
        weights = [m.weight for name, m in model.named_modules() if name.endswith("proj")]
        weights.append(model.lm_head.weight)
        inputs = [torch.ones(rows, weight.shape[1], dtype=weight.dtype, device=weight.device) for weight in weights]
        with torch.inference_mode():
            for turn in range(repeats + 1):
                if turn == 1:
                    self.synchronize()
                    start = time.perf_counter()
                for x, weight in zip(inputs, weights, strict=True):
                    torch.nn.functional.linear(x, weight)
            self.synchronize()
        return (time.perf_counter() - start) / repeats


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        serve(Serving, sys.argv[1])
