# A small random model, and one engine in this process that most tests share.
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("KUNLUN_SIM_MEMORY", "256M")
os.environ.setdefault("KUNLUN_SIM_DEVICES", "2")

import pytest
import torch

VOCABULARY = 320


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory) -> str:
    """A folder with a Llama of two layers, random weights wide enough apart that greedy text has no near ties."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
    )
    folder = tmp_path_factory.mktemp("tiny_llama")
    LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def reference(tiny_llama):
    """The same model in transformers on the CPU."""
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def make_llm(tiny_llama):
    from vllm import LLM

    def make(model: str = tiny_llama, **options):
        defaults = {
            "dtype": "float32",
            "skip_tokenizer_init": True,
            "max_model_len": 256,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 64,
            "gpu_memory_utilization": 0.3,
            "disable_log_stats": False,
            "seed": 0,
        }
        return LLM(model, **{**defaults, **options})

    return make


@pytest.fixture(scope="session")
def llm(make_llm):
    """The engine that most tests share. Prompts longer than 64 tokens are prefilled in chunks."""
    return make_llm()


def prompts(*lengths: int, seed: int = 0) -> list[dict]:
    """Random prompts of these lengths, as token ids."""
    generator = torch.Generator().manual_seed(seed)
    return [
        {"prompt_token_ids": torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()}
        for length in lengths
    ]


@pytest.fixture(scope="session", name="prompts")
def _prompts():
    return prompts


@pytest.fixture(scope="session")
def greedy(reference):
    """Greedy tokens by transformers on the CPU, one prompt after the other."""

    def write(prompt: dict, tokens: int) -> list[int]:
        ids = torch.tensor([prompt["prompt_token_ids"]])
        with torch.inference_mode():
            out = reference.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False)
        return out[0, ids.shape[1] :].tolist()

    return write
