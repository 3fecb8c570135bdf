# What a checkpoint's model writes: greedily, one prompt at a time, in float32 on the CPU.
import torch

PROMPTS = (
    "The quick brown fox",
    "A module is a file of definitions. When it is imported for the first time, its statements",
    "def area(width, height):\n    return width * height\n\n"
    "Names of functions are looked up when a call is made, not when it is compiled, and so",
)
NEW_TOKENS = 32
# Reference and engines add in another order. A choice narrower than this is no fair question.
SMALLEST_GAP = 0.005
FEWEST_TOKENS = 8  # different ones of the NEW_TOKENS of each answer


@torch.no_grad()
def write(model, inputs: dict, tokenizer) -> dict:
    """The answer to one prompt, and by how much each token won over the next best."""
    output = model.generate(
        **inputs,
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        eos_token_id=None,
        pad_token_id=0,
        return_dict_in_generate=True,
        output_logits=True,
    )
    prompt = inputs["input_ids"][0]
    tokens = output.sequences[0, len(prompt) :].tolist()
    best = torch.stack(output.logits)[:, 0].float().topk(2).values
    return {
        "prompt_tokens": prompt.tolist(),
        "tokens": tokens,
        "text": tokenizer.decode(tokens, skip_special_tokens=True),
        "smallest_gap": (best[:, 0] - best[:, 1]).min().item(),
    }


def answers(model, tokenizer) -> list[dict]:
    """An answer to each of PROMPTS."""
    written = []
    for prompt in PROMPTS:
        inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False).to(model.device)
        written.append({"prompt": prompt, **write(model, inputs, tokenizer)})
    return written


def is_fair(answers: list[dict]) -> bool:
    """Whether every choice was clear, and no answer repeats a few tokens."""
    return all(a["smallest_gap"] >= SMALLEST_GAP and len(set(a["tokens"])) >= FEWEST_TOKENS for a in answers)
