# Drafts from what was written before change how fast text comes, never which text.
import pytest
import torch
from vllm import SamplingParams

from torch_xpu_kunlun.engines.vllm import rejection

NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}


def test_drafts_do_not_change_greedy_text(run, prompts, greedy):
    pattern = prompts(6, seed=30)[0]["prompt_token_ids"]
    asked = [{"prompt_token_ids": pattern * 5}, *prompts(10, 25, seed=31)]
    llm = run(speculative_config=NGRAM)
    settings = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, detokenize=False)
    outputs = llm.generate(asked, settings, use_tqdm=False)
    assert [list(output.outputs[0].token_ids) for output in outputs] == [greedy(prompt, 20) for prompt in asked]
    drafted = sum(metric.value for metric in llm.get_metrics() if metric.name == "vllm:spec_decode_num_draft_tokens")
    assert drafted > 0


@pytest.mark.parametrize("greedy_rows", [None, [True, False, True]], ids=["all", "some"])
def test_greedy_rejection_kernel(greedy_rows):
    out = torch.full((3, 4), -1, dtype=torch.int32, device="kunlun")
    ends = torch.tensor([3, 3, 5], device="kunlun")
    drafts = torch.tensor([5, 6, 7, 8, 9], dtype=torch.int32, device="kunlun")
    best = torch.tensor([5, 1, 7, 8, 9], device="kunlun")
    bonus = torch.tensor([[10], [11], [12]], device="kunlun")
    chosen = None if greedy_rows is None else torch.tensor(greedy_rows, device="kunlun")
    rejection.rejection_greedy_sample_kernel(out, ends, drafts, best, bonus, chosen, 3, None, None, False)
    middle = [-1] * 4 if greedy_rows else [11, -1, -1, -1]
    assert out.tolist() == [[5, 1, -1, -1], middle, [8, 9, 12, -1]]


def test_random_rejection_kernel():
    out = torch.full((2, 3), -1, dtype=torch.int32, device="kunlun")
    ends = torch.tensor([2, 4], device="kunlun")
    drafts = torch.tensor([0, 1, 2, -1], dtype=torch.int32, device="kunlun")
    probs = torch.tensor([[0.9, 0.1, 0.0], [0.5, 0.5, 0.0], [0.2, 0.2, 0.6], [1.0, 0.0, 0.0]], device="kunlun")
    uniform = torch.tensor([0.8, 0.6, 0.5, 0.1], dtype=torch.float64, device="kunlun")
    recovered = torch.tensor([7, 8, 9, 6], dtype=torch.int32, device="kunlun")
    bonus = torch.tensor([[10], [11]], device="kunlun")
    chosen = torch.zeros(2, dtype=torch.bool, device="kunlun")
    rejection.rejection_random_sample_kernel(
        out, ends, drafts, None, probs, bonus, recovered, uniform, chosen, 2, 3, None, True, False
    )
    assert out.tolist() == [[0, 8, -1], [2, 6, -1]]
