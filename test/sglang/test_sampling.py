# What a request can ask of the choice of tokens, against a plain reference of the same logits.
import json
import re

import pytest
import torch
from common_sglang import NEW_TOKENS, PROMPTS, tokens_of

from torch_xpu_kunlun.engines.sglang.seeds import murmur_hash

GREEDY = {"temperature": 0, "max_new_tokens": NEW_TOKENS}


def test_log_probabilities(smollm_engine, smollm_reference):
    outputs = smollm_engine.generate(list(PROMPTS), GREEDY, return_logprob=True, top_logprobs_num=5)
    for output, reference in zip(outputs, smollm_reference["plain"], strict=True):
        meta = output["meta_info"]
        for chosen, best, expected in zip(
            meta["output_token_logprobs"], meta["output_top_logprobs"], reference["best"], strict=True
        ):
            assert chosen[1] == expected[0][1]
            assert chosen[0] == pytest.approx(expected[0][0], abs=1e-3)
            assert [value for value, *_ in best] == pytest.approx([value for value, _ in expected], abs=1e-3)


def test_seeds_repeat_and_differ(smollm_engine):
    parameters = [
        {"temperature": 1.0, "top_k": 40, "top_p": 0.95, "max_new_tokens": NEW_TOKENS, "sampling_seed": seed}
        for seed in (1, 2, 1)
    ]
    runs = [tokens_of(smollm_engine.generate([PROMPTS[1]] * 3, parameters)) for _ in range(2)]
    assert runs[0] == runs[1]
    assert runs[0][0] == runs[0][2] != runs[0][1]


def test_one_candidate_is_the_greedy_choice(smollm_engine, smollm_reference):
    outputs = smollm_engine.generate(list(PROMPTS), {**GREEDY, "temperature": 1.5, "top_k": 1})
    assert tokens_of(outputs) == tokens_of(smollm_reference["plain"])


def test_sampled_tokens_are_among_the_likely_ones(smollm_engine, smollm_reference):
    best = {token for _, token in smollm_reference["plain"][1]["best"][0][:3]}
    parameters = {"temperature": 1.0, "top_k": 3, "max_new_tokens": 1, "n": 16}
    outputs = smollm_engine.generate(PROMPTS[1], parameters)
    assert len(outputs) == 16
    assert {token for tokens in tokens_of(outputs) for token in tokens} <= best


def test_stop_string(smollm_engine, smollm_reference):
    tokenizer = smollm_engine.tokenizer_manager.tokenizer
    text = tokenizer.decode(smollm_reference["plain"][0]["tokens"])
    word = text.split()[2]
    output = smollm_engine.generate(PROMPTS[0], {**GREEDY, "stop": [word]})
    assert output["text"] == text[: text.index(word)]
    assert output["meta_info"]["finish_reason"] == {"type": "stop", "matched": word}


def test_regular_expression(smollm_engine):
    pattern = r"(Paris|London) has [1-9][0-9]? million people\."
    outputs = smollm_engine.generate(list(PROMPTS), {"temperature": 0, "max_new_tokens": 32, "regex": pattern})
    assert [bool(re.fullmatch(pattern, output["text"])) for output in outputs] == [True] * len(PROMPTS)


def test_json_schema(smollm_engine):
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}, "people": {"type": "integer", "maximum": 99}},
        "required": ["city", "people"],
        "additionalProperties": False,
    }
    parameters = {"temperature": 0, "max_new_tokens": 96, "json_schema": json.dumps(schema)}
    answer = json.loads(smollm_engine.generate("The city as JSON: ", parameters)["text"])
    assert set(answer) == {"city", "people"}
    assert isinstance(answer["city"], str)
    assert isinstance(answer["people"], int)


def test_hash_of_a_seed_is_murmur3():
    mmh3 = [(0, 0, 0), (1, 2, 3), (2**40 + 7, 4095, 151935), (-1, 31, 5)]

    def plain(seed: int, position: int, column: int) -> int:
        state, word = 0, 0xFFFFFFFF
        for block in (seed & word, (seed >> 32) & word, position, column):
            scrambled = block * 0xCC9E2D51 & word
            scrambled = (scrambled << 15 | scrambled >> 17) & word
            state ^= scrambled * 0x1B873593 & word
            state = (state << 13 | state >> 19) & word
            state = state * 5 + 0xE6546B64 & word
        state ^= 16
        for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
            state = (state ^ state >> shift) * factor & word
        return state ^ state >> 16

    seeds, positions, columns = (torch.tensor(numbers, device="kunlun") for numbers in zip(*mmh3, strict=True))
    table = murmur_hash(seeds, positions, columns).cpu()
    assert table.diagonal().tolist() == [plain(*numbers) for numbers in mmh3]
