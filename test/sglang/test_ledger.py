# docs/ledger.md names everything that the plug-in overrides in SGLang.
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest
from sglang.srt.plugins.hook_registry import HookRegistry

from torch_xpu_kunlun.engines import sglang as plugin

ROOT = Path(__file__).resolve().parents[2]
LEDGER = (ROOT / "docs" / "ledger.md").read_text().partition("## SGLang 0")[2].partition("\n## ")[0]


def modules():
    for info in pkgutil.iter_modules(plugin.__path__):
        yield importlib.import_module(f"{plugin.__name__}.{info.name}")


def overrides() -> set[str]:
    """Class and name of each method that replaces one of SGLang, in the parts that are no plug-in interface."""
    found = set()
    for module in modules():
        for cls in vars(module).values():
            if not inspect.isclass(cls) or cls.__module__ != module.__name__:
                continue
            for name, member in vars(cls).items():
                base = next((base for base in cls.__mro__[1:] if name in vars(base)), None)
                if base is not None and base.__module__.startswith("sglang.srt.mem_cache") and callable(member):
                    found.add(f"{base.__name__}.{name}")
    return found


def test_every_hook_has_a_line():
    assert HookRegistry._hooks, "the plug-in is not loaded"
    missing = [target for target in HookRegistry._hooks if f"`{target}`" not in LEDGER]
    assert not missing


def test_no_line_is_left_of_a_hook_that_went():
    named = set(re.findall(r"`(sglang\.srt\.[\w.]+)`", LEDGER)) - {"sglang.srt.platforms", "sglang.srt.plugins"}
    source = "".join(Path(module.__file__).read_text() for module in modules())
    assert {target for target in named if f'"{target}"' not in source} == set()


@pytest.mark.parametrize("name", sorted(overrides()))
def test_every_overridden_method_has_a_line(name):
    assert f"`{name}`" in LEDGER


@pytest.fixture(scope="module", autouse=True)
def load_plugins():
    from sglang.srt.plugins import load_plugins

    load_plugins()
