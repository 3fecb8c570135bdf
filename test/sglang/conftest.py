# Settings and engines that SGLang's tests share.
import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("KUNLUN_SIM_MEMORY", "2G")
os.environ.setdefault("KUNLUN_SIM_DEVICES", "3")


@pytest.fixture(scope="session")
def smollm() -> Path:
    """The folder of SmolLM2-135M-Instruct, converted once."""
    from tools.measure import weights

    return weights.cached() if weights.is_converted() else weights.convert()


@pytest.fixture(scope="session")
def smollm_reference(smollm) -> list[list[int]]:
    from common_sglang import generate_on_cpu

    return generate_on_cpu(smollm)


@pytest.fixture(scope="session")
def smollm_engine(smollm):
    """An engine with SGLang's defaults, but for the size of its cache."""
    import sglang

    engine = sglang.Engine(model_path=str(smollm), dtype="float32", max_total_tokens=4096)
    yield engine
    engine.shutdown()
