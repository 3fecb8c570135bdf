# Small models of many architectures through SGLang: the text of transformers on the CPU, on one device and on two.
import pytest
from common_zoo import check_same, models

from tools.matrix.session import Side
from tools.zoo.families import FAMILIES

QUICK = ("llama3",)
ON_TWO = (
    "llama3",
    "mixtral",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "gemma3",
    "phi3",
    "granite",
    "glm4",
    "deepseek_v3",
    "opt",
    "gpt2",
)


@pytest.fixture(scope="module")
def side():
    with Side("sglang") as side:
        yield side


@models(quick=QUICK, every=tuple(FAMILIES))
def test_one_device_writes_what_transformers_writes(side, name):
    check_same("sglang", side.run(name))


@models(quick=("llama3",), every=ON_TWO)
def test_two_devices_write_what_one_writes(side, name):
    check_same("sglang", side.run(name, tp=2))
