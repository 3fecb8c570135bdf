# SmolLM2-135M through sglang.Engine: the text of transformers on the CPU, and what the engine says it did for it.
from common_sglang import NEW_TOKENS, PROMPTS, operators, tokens_of

GREEDY = {"temperature": 0, "max_new_tokens": NEW_TOKENS}


def test_text_is_that_of_transformers(smollm_engine, smollm_reference):
    assert tokens_of(smollm_engine.generate(list(PROMPTS), GREEDY)) == tokens_of(smollm_reference["plain"])


def test_no_operator_is_computed_on_copies(smollm_engine):
    smollm_engine.generate(list(PROMPTS), GREEDY)
    before = operators(smollm_engine)
    smollm_engine.generate(list(PROMPTS), GREEDY)
    after = operators(smollm_engine)
    assert after["fallback"] == 0
    assert after["boxed_ops"] == before["boxed_ops"]
    assert after["launcher"] > before["launcher"]


def test_prefix_of_a_repeated_system_prompt_comes_from_the_cache(smollm_engine):
    system = "You are a careful assistant. Answer in one short sentence, and never guess. " * 8
    questions = ("What is a tree?", "What is rain?", "Where is Rome?", "Who was Bach?")
    prompts = [system + question for question in questions]
    smollm_engine.flush_cache()
    first = [smollm_engine.generate(prompt, GREEDY) for prompt in prompts]
    again = smollm_engine.generate(prompts, GREEDY)
    assert tokens_of(again) == tokens_of(first)
    later = first[1:] + again
    cached = sum(output["meta_info"]["cached_tokens"] for output in later)
    assert cached / sum(output["meta_info"]["prompt_tokens"] for output in later) > 0.8
