# Sampling against a plain reference of the same logits.
import json

import pytest
import torch
from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams


def run(llm, prompt, **options):
    settings = SamplingParams(**{"max_tokens": 12, "ignore_eos": True, "temperature": 0, **options})
    return llm.generate([prompt], settings, use_tqdm=False)[0].outputs


def tokens(outputs) -> list[list[int]]:
    return [list(output.token_ids) for output in outputs]


def test_logprobs_are_those_of_the_logits(llm, prompts, logits):
    prompt = prompts(11)[0]
    (output,) = run(llm, prompt, logprobs=5, max_tokens=6)
    everything = prompt["prompt_token_ids"] + list(output.token_ids)
    expected = logits(everything).log_softmax(-1)[len(prompt["prompt_token_ids"]) - 1 :]
    for position, given in enumerate(output.logprobs):
        best = expected[position].topk(5)
        assert set(given) == set(best.indices.tolist())
        for token, logprob in given.items():
            assert logprob.logprob == pytest.approx(expected[position, token].item(), abs=1e-4)


def test_prompt_logprobs_are_those_of_the_logits(llm, prompts, logits):
    prompt = prompts(9, seed=4)[0]
    settings = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    given = llm.generate([prompt], settings, use_tqdm=False)[0].prompt_logprobs
    ids = prompt["prompt_token_ids"]
    expected = logits(ids).log_softmax(-1)
    assert given[0] is None
    for position in range(1, len(ids)):
        logprob = given[position][ids[position]].logprob
        assert logprob == pytest.approx(expected[position - 1, ids[position]].item(), abs=1e-4)


@pytest.mark.parametrize(
    "penalties",
    [{"repetition_penalty": 1.7}, {"presence_penalty": 1.5}, {"frequency_penalty": 0.9}],
    ids=lambda penalties: next(iter(penalties)),
)
def test_penalties(llm, prompts, logits, penalties):
    prompt = prompts(10, seed=1)[0]
    ids, written = list(prompt["prompt_token_ids"]), []
    for _ in range(12):
        scores = logits(ids + written)[-1].clone()
        counts = torch.bincount(torch.tensor(written, dtype=torch.long), minlength=scores.numel()).float()
        scores -= penalties.get("presence_penalty", 0) * (counts > 0) + penalties.get("frequency_penalty", 0) * counts
        factor = penalties.get("repetition_penalty", 1)
        seen = torch.zeros_like(scores, dtype=torch.bool)
        seen[ids + written] = True
        scores = torch.where(seen, torch.where(scores > 0, scores / factor, scores * factor), scores)
        written.append(int(scores.argmax()))
    assert tokens(run(llm, prompt, **penalties)) == [written]


def test_seeded_runs_repeat_whatever_else_is_in_the_batch(llm, prompts):
    asked = prompts(8, 13, 21, seed=2)
    seeded = SamplingParams(temperature=1, top_p=0.9, top_k=40, seed=7, max_tokens=10, ignore_eos=True)
    other = SamplingParams(temperature=1, max_tokens=14, ignore_eos=True)
    alone = llm.generate(asked[:1], seeded, use_tqdm=False)
    together = llm.generate(asked, [seeded, other, other], use_tqdm=False)
    assert tokens(alone[0].outputs) == tokens(together[0].outputs)


def test_samples_stay_within_top_k_and_top_p(llm, prompts, logits):
    prompt = prompts(7, seed=3)[0]
    probs = (logits(prompt["prompt_token_ids"])[-1] / 2).softmax(-1)
    best = probs.topk(5)
    nucleus = best.indices[: int((best.values.cumsum(0) / best.values.sum() < 0.7).sum()) + 1].tolist()
    for seed in (None, 1):  # by the fused operator, and by vLLM's own functions
        outputs = run(llm, prompt, n=32, max_tokens=1, temperature=2, top_k=5, top_p=0.7, seed=seed)
        assert {ids[0] for ids in tokens(outputs)} <= set(nucleus)
    frequent = run(llm, prompt, n=64, max_tokens=1, temperature=2, top_k=5)
    assert {ids[0] for ids in tokens(frequent)} <= set(best.indices.tolist())
    assert len({ids[0] for ids in tokens(frequent)}) > 1


def test_several_samples_of_a_prompt_differ_and_repeat(llm, prompts):
    prompt = prompts(9, seed=5)[0]
    first = tokens(run(llm, prompt, n=4, temperature=1, seed=3))
    assert tokens(run(llm, prompt, n=4, temperature=1, seed=3)) == first
    assert len({tuple(sample) for sample in first}) > 1


def test_stop_strings_and_tokens_end_the_text(llm, prompts, greedy):
    prompt = prompts(12, seed=6)[0]
    expected = greedy(prompt, 12)
    (output,) = run(llm, prompt, stop_token_ids=[expected[5]])
    assert (tokens([output])[0], output.finish_reason) == (expected[: expected.index(expected[5]) + 1], "stop")
    whole = run(llm, prompt)[0].text
    stop = whole[len(whole) // 2 : len(whole) // 2 + 3]
    (output,) = run(llm, prompt, stop=[stop])
    assert (output.text, output.stop_reason) == (whole[: whole.index(stop)], stop)


def test_guided_json_is_what_the_schema_says(llm, prompts):
    schema = {
        "type": "object",
        "properties": {"name": {"enum": ["a", "b"]}, "right": {"type": "boolean"}},
        "required": ["name", "right"],
        "additionalProperties": False,
    }
    guided = StructuredOutputsParams(json=schema)
    (output,) = run(llm, prompts(6, seed=7)[0], max_tokens=60, ignore_eos=False, structured_outputs=guided)
    answer = json.loads(output.text)
    assert answer["name"] in ("a", "b")
    assert isinstance(answer["right"], bool)
