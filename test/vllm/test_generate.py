# vLLM on `kunlun` writes what transformers writes on the CPU, by launchers alone.
from vllm import SamplingParams

import torch_xpu_kunlun


def sampling(tokens: int, **options) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False, **options)


def written(outputs) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in outputs]


def test_greedy_text_is_that_of_transformers(llm, prompts, greedy):
    asked = prompts(3, 17, 40)
    assert written(llm.generate(asked, sampling(32), use_tqdm=False)) == [greedy(p, 32) for p in asked]


def test_long_prompts_are_prefilled_in_chunks(llm, prompts, greedy):
    asked = prompts(150, 65, 9, seed=1)
    assert written(llm.generate(asked, sampling(8), use_tqdm=False)) == [greedy(p, 8) for p in asked]


def test_requests_that_end_at_different_times_share_batches(llm, prompts, greedy):
    asked = prompts(*range(5, 17), seed=2)
    lengths = [4 + 3 * i for i in range(len(asked))]
    outputs = llm.generate(asked, [sampling(n) for n in lengths], use_tqdm=False)
    assert written(outputs) == [greedy(p, n) for p, n in zip(asked, lengths, strict=True)]


def test_generation_needs_launchers_only(llm, prompts):
    llm.generate(prompts(5), sampling(2), use_tqdm=False)
    torch_xpu_kunlun.reset_operator_statistics()
    llm.generate(prompts(12, 80, seed=3), sampling(8), use_tqdm=False)
    counts = torch_xpu_kunlun.operator_statistics()
    assert counts["launcher"] > 0
    assert (counts["boxed_ops"], counts["fallback_ops"], counts["host_call_ops"]) == ({}, {}, {})
