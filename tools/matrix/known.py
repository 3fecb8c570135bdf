# What an engine does not do, whatever the device, with where it says so. A line that no longer holds fails a test.
from typing import NamedTuple

SGLANG = "https://github.com/sgl-project/sglang/blob/v0.5.21/python/sglang/srt"
VLLM = "https://github.com/vllm-project/vllm/blob/v0.32.0/vllm/model_executor/models"


class Known(NamedTuple):
    """`shows` is part of what the matrix says of the model, so that a failure of another kind is not taken for it."""

    shows: str
    why: str
    devices: tuple[int, ...] = (1, 2)  # on how many devices it shows


def no_class(model: str) -> Known:
    return Known(
        f"{model} has no SGlang implementation",
        "SGLang has no class for it, and its Transformers back end takes only classes whose attention can be replaced "
        f"({SGLANG}/model_loader/utils.py#L182)",
    )


KNOWN = {
    ("vllm", "cohere2"): Known(
        "differs from token",
        f"vLLM's window of Cohere 2 is one token longer than transformers' ({VLLM}/commandr.py#L237)",
    ),
    ("sglang", "bloom"): no_class("BloomForCausalLM"),
    ("sglang", "cohere2"): Known(
        "differs from token",
        f"SGLang's window of Cohere 2 is one token longer than transformers' ({SGLANG}/models/commandr.py#L208)",
    ),
    ("sglang", "exaone4"): Known(
        "One of the attention backends",
        "SGLang takes EXAONE-4 with windows only with one of three attention backends, which are CUDA's "
        f"({SGLANG}/arg_groups/model_hook.py#L632)",
    ),
    ("sglang", "falcon"): no_class("FalconForCausalLM"),
    ("sglang", "glm"): Known(
        "colwise_gather_output",
        "SGLang's Transformers back end does not know one of the ways in which transformers splits layers of GLM "
        f"({SGLANG}/models/transformers.py#L247)",
    ),
    ("sglang", "gpt2"): Known(
        "is invalid for input of size",
        "SGLang gives each of several devices the keys of all of GPT-2's heads, but the weights of its own only "
        f"({SGLANG}/models/gpt2.py#L79)",
        devices=(2,),
    ),
    ("sglang", "gptj"): Known(
        "differs from token", f"SGLang leaves out the bias of GPT-J's last layer ({SGLANG}/models/gpt_j.py#L273)"
    ),
    ("sglang", "llava"): Known(
        "num_embeddings",
        "SGLang has no class for the seeing half of CLIP alone, and its Transformers back end takes it for a model of "
        f"text ({SGLANG}/models/clip.py#L670)",
    ),
    ("sglang", "mistral_window"): Known(
        "differs from token", f"SGLang runs Mistral as Llama, without a window ({SGLANG}/models/mistral.py#L30)"
    ),
    ("sglang", "nemotron"): no_class("NemotronForCausalLM"),
    ("sglang", "starcoder2"): Known(
        "differs from token", f"SGLang's class for StarCoder2 has no window ({SGLANG}/models/starcoder2.py#L110)"
    ),
}


def known(engine: str, name: str, devices: int) -> Known | None:
    """The line for this model on so many devices."""
    line = KNOWN.get((engine, name))
    return line if line and devices in line.devices else None
