# What vLLM learns of the device, and what the plug-in refuses with a reason.
import gzip
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from vllm import SamplingParams
from vllm.platforms import current_platform

from torch_xpu_kunlun import engines


def test_platform_is_chosen_by_its_entry_point():
    assert type(current_platform).__name__ == "KunlunPlatform"
    assert current_platform.is_out_of_tree()
    assert not current_platform.is_cuda_alike()
    assert current_platform.get_device_total_memory() == torch.kunlun.mem_get_info()[1]
    assert current_platform.get_device_name() == torch.kunlun.get_device_name()


def test_a_process_that_only_asks_for_the_platform_starts_no_device():
    program = """
import threading
from vllm.platforms import current_platform
current_platform.get_device_total_memory(), current_platform.get_device_name()
import torch
print(torch.kunlun.is_initialized())
"""
    assert subprocess.check_output([sys.executable, "-c", program], text=True).split()[-1] == "False"


def test_start_up_line_names_everything():
    line = engines.start_up_line("vLLM", "0.32.0")
    for word in ("torch_xpu_kunlun", "vLLM 0.32.0", "Kunlun XPU", "runtime 1.0", "operators 1.0", "driver sim", "XCCL"):
        assert word in line
    assert "\n" not in line


def test_an_untried_version_is_warned_of():
    assert engines.untried_warning("vllm", "0.32.0") is None
    assert "0.32.0" in engines.untried_warning("vllm", "9.9")


@pytest.mark.parametrize("dtype", [torch.float64, torch.int8])
def test_other_dtypes_are_refused(dtype):
    with pytest.raises(ValueError, match="--dtype"):
        current_platform.check_if_supports_dtype(dtype)


def test_other_attention_backends_are_refused(run):
    with pytest.raises(ValueError, match="does not run on kunlun"):
        run(attention_config={"backend": "TRITON_ATTN"})


def test_the_ledger_names_every_override():
    ledger = (Path(__file__).parents[2] / "docs" / "ledger.md").read_text()
    package = Path(engines.__file__).parent / "vllm"
    modules = [
        importlib.import_module(f"torch_xpu_kunlun.engines.vllm.{path.stem}") for path in package.glob("[a-z]*.py")
    ]
    missing = []
    for module in modules:
        for name, cls in vars(module).items():
            if inspect.isclass(cls) and cls.__module__ == module.__name__:
                upstream = [base.__name__ for base in cls.__mro__ if base.__module__.startswith("vllm.")]
                if upstream and not any(base in ledger for base in upstream):
                    missing.append(f"{module.__name__}.{name}")
    from torch_xpu_kunlun.engines.vllm import rejection

    missing += [name for name in rejection.KERNELS if name.rsplit(".", 1)[1] not in ledger]
    assert not missing


def test_torch_profiler_of_the_engine(run, prompts, tmp_path):
    llm = run(profiler_config={"profiler": "torch", "torch_profiler_dir": str(tmp_path)})
    llm.start_profile()
    llm.generate(prompts(6), SamplingParams(max_tokens=2, detokenize=False), use_tqdm=False)
    llm.stop_profile()
    (trace,) = tmp_path.glob("*.json*")
    content = trace.read_bytes()
    assert b"kunlun::paged_attention" in (gzip.decompress(content) if trace.suffix == ".gz" else content)
