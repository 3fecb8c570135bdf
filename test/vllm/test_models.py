# Small models of many architectures through vLLM: the text of transformers on the CPU, on one device and on two.
import pytest
from common_zoo import models

from tools.matrix.known import KNOWN
from tools.matrix.session import Side
from tools.zoo.families import FAMILIES

QUICK = ("mistral_window", "gemma2", "olmoe")
ON_TWO = (
    "llama3",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
    "gemma2",
    "phi3",
    "exaone4",
    "granite",
    "deepseek_v2",
    "gpt2",
    "opt",
)


@pytest.fixture(scope="module")
def side():
    with Side("vllm") as side:
        yield side


def check(result: dict) -> None:
    if result["status"] == "unavailable":
        pytest.skip(result["reason"] + ": https://huggingface.co/docs/transformers")
    if reason := KNOWN.get(("vllm", result["name"])):
        assert result["status"] != "same", "tools/matrix/known.py has a line that no longer holds"
        pytest.skip(reason)
    assert (result["status"], result["reason"]) == ("same", None), result.get("traceback")
    assert result["fallback"] == 0


@models(quick=QUICK, every=tuple(FAMILIES))
def test_one_device_writes_what_transformers_writes(side, name):
    check(side.run(name))


@models(quick=("llama3",), every=ON_TWO)
def test_two_devices_write_what_one_writes(side, name):
    check(side.run(name, tp=2))
