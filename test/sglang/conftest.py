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
def smollm_reference(smollm) -> dict[str, list[dict]]:
    from common_sglang import ask_reference

    return ask_reference(smollm)


@pytest.fixture(scope="session")
def smollm_engine(smollm):
    """An engine with SGLang's defaults, but for the size of its cache and obeyed seeds."""
    import sglang

    engine = sglang.Engine(
        model_path=str(smollm), dtype="float32", max_total_tokens=4096, enable_deterministic_inference=True
    )
    yield engine
    engine.shutdown()
