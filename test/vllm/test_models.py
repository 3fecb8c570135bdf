# Small models of many architectures through vLLM: the text of transformers on the CPU, on one device and on two.
import pytest
from common_zoo import check_same, models

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


@models(quick=QUICK, every=tuple(FAMILIES))
def test_one_device_writes_what_transformers_writes(side, name):
    check_same("vllm", side.run(name))


@models(quick=("llama3",), every=ON_TWO)
def test_two_devices_write_what_one_writes(side, name):
    check_same("vllm", side.run(name, tp=2))
