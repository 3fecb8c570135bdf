# Small models of many architectures through SGLang: the text of transformers on the CPU, on one device and on two.
import pytest
from common_zoo import models

from tools.matrix.known import KNOWN
from tools.matrix.session import Side
from tools.zoo.families import FAMILIES

QUICK = ("llama3",)
ON_TWO = ("llama3", "mixtral", "qwen2", "qwen2_moe", "qwen3", "gemma3", "phi3", "granite", "glm4", "deepseek_v3", "opt")

_SOURCE = "https://github.com/sgl-project/sglang/blob/v0.5.21/python/sglang/srt"
#: What SGLang does not do, on any device.
OF_SGLANG = {
    "bloom": f"it has no implementation: {_SOURCE}/models",
    "cohere2": f"it takes another window: {_SOURCE}/models/commandr.py",
    "exaone4": f"it accepts three attention backends of CUDA only: {_SOURCE}/arg_groups/model_hook.py",
    "falcon": f"it has no implementation: {_SOURCE}/models",
    "glm": f"its Transformers back end has no layer of this kind: {_SOURCE}/models/transformers.py",
    "gptj": f"one answer differs, with torch's own operators too: {_SOURCE}/models/gpt_j.py",
    "nemotron": f"it has no implementation: {_SOURCE}/models",
    "phi": f"it expects as many key heads as heads: {_SOURCE}/models/phi.py",
    "starcoder2": f"it ignores the sliding window: {_SOURCE}/models/starcoder2.py",
}


@pytest.fixture(scope="module")
def side():
    with Side("sglang") as side:
        yield side


def check(result: dict) -> None:
    if result["status"] == "unavailable":
        pytest.skip(result["reason"] + ": https://huggingface.co/docs/transformers")
    if reason := KNOWN.get(("sglang", result["name"])):
        assert result["status"] != "same", "tools/matrix/known.py has a line that no longer holds"
        pytest.skip(reason)
    assert (result["status"], result["reason"]) == ("same", None), result.get("traceback")
    assert result["fallback"] == 0


@models(quick=QUICK, every=tuple(FAMILIES))
def test_one_device_writes_what_transformers_writes(side, name):
    if name in OF_SGLANG:
        pytest.skip(OF_SGLANG[name])
    check(side.run(name))


@models(quick=("llama3",), every=ON_TWO)
def test_two_devices_write_what_one_writes(side, name):
    check(side.run(name, tp=2))
