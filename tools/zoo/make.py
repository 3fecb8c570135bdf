# Makes one checkpoint: configuration, tokenizer, weights, reference.
import importlib.util
import json
import os
import shutil
import tempfile
from pathlib import Path

import torch

from tools.zoo import cache
from tools.zoo.families import FAMILIES, Family
from tools.zoo.weights import randomise

MOST_SEEDS = 64


def make(name: str) -> None:
    """Make the checkpoint in the cache, whole or not at all."""
    target = cache.folder() / name
    if cache.is_made(name):
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=target.parent, prefix="making-"))
    import transformers

    try:
        family = FAMILIES[name]
        if absent := [part for part in family.classes if not hasattr(transformers, part)]:
            (folder / "unavailable.txt").write_text(f"transformers {transformers.__version__} has no {absent[0]}")
        elif absent := [part for part in family.packages if importlib.util.find_spec(part) is None]:
            (folder / "unavailable.txt").write_text(f"{absent[0]} is not installed")
        else:
            fill(family, folder)
        try:
            os.rename(folder, target)
        except OSError:  # another process was quicker
            if not cache.is_made(name):
                raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def fill(family: Family, folder: Path) -> None:
    """Write everything into the folder."""
    import transformers

    family.tokenizer().save_pretrained(folder)
    family.config(transformers).save_pretrained(folder)
    # As everybody loads it: for some models transformers takes a class of its own, whatever the folder says. Saved
    # again, it says what that class does, for those who take another.
    tokenizer = getattr(transformers, family.loader).from_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for seed in range(MOST_SEEDS):
        # A new one for each seed: the weights of norms are drawn around what they begin with.
        model = getattr(transformers, family.model)._from_config(
            family.config(transformers), dtype=torch.float32, attn_implementation="eager"
        )
        model.eval()
        randomise(model, seed, family.embedding, family.head, family.outputs, family.attention)
        result = family.reference(model, tokenizer)
        if family.is_fair(result):
            break
    else:
        raise RuntimeError(f"{family.title}: no fair reference in {MOST_SEEDS} seeds; the last one: {result}")
    model.save_pretrained(folder)
    rename(folder / "model.safetensors", family.published_names)
    facts = {"title": family.title, "architecture": family.model, "kind": family.kind, "seed": seed}
    (folder / "reference.json").write_text(json.dumps({**facts, family.key: result}, indent=1))


def rename(path: Path, beginnings: dict[str, str]) -> None:
    """Give weights other names: `beginnings` maps old beginnings to new ones."""
    from safetensors.torch import load_file, save_file

    if not beginnings:
        return
    renamed = {}
    for name, weight in load_file(path).items():
        old = next((old for old in beginnings if name.startswith(old)), "")
        renamed[beginnings.get(old, "") + name.removeprefix(old)] = weight
    save_file(renamed, path, metadata={"format": "pt"})
