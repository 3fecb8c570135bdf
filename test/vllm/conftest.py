# A small model with random weights, and one engine in this process that most tests share.
import gc
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("KUNLUN_SIM_MEMORY", "1G")
os.environ.setdefault("KUNLUN_SIM_DEVICES", "2")

import pytest
import torch
from common_zoo import checkpoint_or_skip

#: Settings that start quickly. A cache of 4 MiB holds some 4000 tokens of the model below.
SMALL = {
    "dtype": "float32",
    "max_model_len": 256,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "gpu_memory_utilization": 0.1,
    "kv_cache_memory_bytes": 4 << 20,
    "disable_log_stats": False,
    "seed": 0,
    "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
}


@pytest.fixture(scope="session")
def model() -> str:
    """The folder of a Llama with random weights, wide enough apart that greedy text has no near ties."""
    return str(checkpoint_or_skip("llama3"))


class OneEngine:
    """The engine that lives in this process: vLLM's process groups do not outlive the end of one among several."""

    def __init__(self):
        self.key = self.engine = None

    def get(self, model: str, **options):
        """The engine with these settings: the one that is there, or a new one in its place."""
        from vllm import LLM

        key = (model, repr(sorted(options.items())))
        if key != self.key:
            self.end()
            self.engine = LLM(model, **{**SMALL, **options})
            self.key = key
        return self.engine

    def end(self) -> None:
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

        if self.engine is not None:
            self.engine.llm_engine.engine_core.shutdown()
            self.key = self.engine = None
            gc.collect()
            cleanup_dist_env_and_memory()


@pytest.fixture(scope="session")
def one_engine():
    one = OneEngine()
    yield one
    one.end()


@pytest.fixture
def run(one_engine, model):
    """``run(model=..., **options)``: an engine with settings of its own. It ends what other engine there is."""
    return lambda model=model, **options: one_engine.get(model, **options)


@pytest.fixture
def llm(run):
    """The engine that most tests share. Prompts longer than 64 tokens are prefilled in chunks."""
    return run()


@pytest.fixture(scope="session")
def reference(model):
    """The same model in transformers on the CPU."""
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    reference.generation_config.eos_token_id = None  # as vLLM's ignore_eos
    return reference


@pytest.fixture(scope="session")
def prompts(reference):
    """Random prompts of these lengths, as token ids."""

    def make(*lengths: int, seed: int = 0) -> list[dict]:
        generator = torch.Generator().manual_seed(seed)
        size = (3, reference.config.vocab_size)
        return [
            {"prompt_token_ids": torch.randint(*size, (length,), generator=generator).tolist()} for length in lengths
        ]

    return make


@pytest.fixture(scope="session")
def greedy(reference):
    """Greedy tokens by transformers on the CPU, one prompt after the other."""

    def write(prompt: dict, tokens: int) -> list[int]:
        ids = torch.tensor([prompt["prompt_token_ids"]])
        with torch.inference_mode():
            out = reference.generate(ids, max_new_tokens=tokens, do_sample=False)
        return out[0, ids.shape[1] :].tolist()

    return write


@pytest.fixture(scope="session")
def logits(reference):
    """The model's logits on the CPU for each position of these tokens."""

    def compute(tokens: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            return reference(torch.tensor([tokens])).logits[0]

    return compute
