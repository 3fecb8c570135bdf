# References of models that write nothing: a vector for a text, or a score for a question and a text.
from itertools import pairwise

import torch

TEXTS = (
    "A module is a file of definitions.",
    "The weather was cold.",
    "Names of functions are looked up when a call is made, not when it is compiled.",
)
QUESTION = "What is a module?"


@torch.no_grad()
def embed(model, tokenizer) -> list[dict]:
    """For each of TEXTS the first token's last hidden state, of length one."""
    made = []
    for text in TEXTS:
        inputs = tokenizer(text, return_tensors="pt").to(model.device)
        first = model(**inputs).last_hidden_state[0, 0].float()
        made.append({"text": text, "vector": torch.nn.functional.normalize(first, dim=0).tolist()})
    return made


@torch.no_grad()
def score(model, tokenizer) -> list[dict]:
    """For each of TEXTS how well it answers QUESTION, from 0 to 1."""
    made = []
    for text in TEXTS:
        inputs = tokenizer(QUESTION, text, return_tensors="pt").to(model.device)
        made.append({"question": QUESTION, "text": text, "score": model(**inputs).logits.float().sigmoid().item()})
    return made


def differ(made: list[dict]) -> bool:
    """Whether no two texts have nearly the same vector."""
    vectors = torch.tensor([one["vector"] for one in made])
    return (vectors @ vectors.T).triu(1).max().item() < 0.9


def are_apart(made: list[dict]) -> bool:
    """Whether the scores tell the texts apart."""
    scores = sorted(one["score"] for one in made)
    return all(0.05 < s < 0.95 for s in scores) and min(b - a for a, b in pairwise(scores)) > 0.02
