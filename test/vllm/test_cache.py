# The cache of keys and values: shared beginnings, a cache too small for the batch, other dtypes.
import pytest
import torch
from vllm import SamplingParams


def sampling(tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)


def written(outputs) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in outputs]


def counter(llm, name: str) -> float:
    return sum(metric.value for metric in llm.get_metrics() if metric.name == name)


def test_repeated_beginnings_come_from_the_cache(llm, prompts, greedy):
    system = prompts(96, seed=11)[0]["prompt_token_ids"]
    asked = [{"prompt_token_ids": system + p["prompt_token_ids"]} for p in prompts(*[6] * 16, seed=12)]
    llm.generate(asked[:1], sampling(2), use_tqdm=False)
    before = {name: counter(llm, f"vllm:prefix_cache_{name}") for name in ("queries", "hits")}
    outputs = llm.generate(asked[1:], sampling(8), use_tqdm=False)
    queries, hits = (counter(llm, f"vllm:prefix_cache_{name}") - before[name] for name in ("queries", "hits"))
    assert hits / queries > 0.8
    assert sum(output.num_cached_tokens for output in outputs) == hits >= 15 * 96 * 0.9
    assert written(outputs) == [greedy(p, 8) for p in asked[1:]]


def test_a_full_cache_preempts_and_recomputes(run, prompts, greedy):
    asked = prompts(*[60] * 8, seed=13)
    llm = run(num_gpu_blocks_override=24, enable_prefix_caching=False)
    outputs = llm.generate(asked, sampling(48), use_tqdm=False)
    assert counter(llm, "vllm:num_preemptions") > 0
    assert written(outputs) == [greedy(p, 48) for p in asked]


def test_cache_in_half_precision(run, prompts, greedy):
    asked = prompts(20, seed=14)
    llm = run(kv_cache_dtype="bfloat16")
    caches = llm.llm_engine.model_executor.driver_worker.worker.model_runner.kv_caches
    assert {cache.dtype for cache in caches} == {torch.bfloat16}
    (tokens,) = written(llm.generate(asked, sampling(4), use_tqdm=False))
    assert tokens[0] == greedy(asked[0], 1)[0]


def test_a_cache_that_the_kernels_cannot_read_is_refused(run):
    with pytest.raises(ValueError, match="kv_cache_dtype"):
        run(kv_cache_dtype="fp8")


def test_the_cache_is_sized_by_the_device(run):
    llm = run(kv_cache_memory_bytes=None, gpu_memory_utilization=0.2)
    caches = llm.llm_engine.model_executor.driver_worker.worker.model_runner.kv_caches
    cache = sum({c.untyped_storage().data_ptr(): c.untyped_storage().nbytes() for c in caches}.values())
    total = torch.kunlun.mem_get_info()[1]
    assert 0.1 * total < cache < 0.2 * total
