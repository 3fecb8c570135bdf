# `python -m tools.api_table`: writes docs/api.md, every public name of torch.cuda and torch.xpu against torch.kunlun.
from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import sys
import warnings
from pathlib import Path
from types import ModuleType

from tools.api_absent import ABSENT, ABSENT_MODULES, RENAMED

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "api.md"
SOURCES = ("cuda", "xpu")

HEAD = """# torch.kunlun against torch.cuda and torch.xpu

Every public name of `torch.cuda` and `torch.xpu` (torch {version}), their submodules and the members of their classes,
and what `torch.kunlun` has in its place. Written by `python -m tools.api_table`; reasons stand in
`tools/api_absent.py`, and a test fails for a name that is neither present nor has one.
"""


def submodules(source: str) -> list[str]:
    """Public modules of torch.cuda or torch.xpu, the package itself first."""
    package = importlib.import_module(f"torch.{source}")
    names = [f"torch.{source}"]
    for found in pkgutil.walk_packages(package.__path__, f"torch.{source}."):
        if not any(part.startswith("_") for part in found.name.split(".")):
            names.append(found.name)
    return sorted(names)


def public_names(module: ModuleType) -> list[str]:
    """What a module declares public, or else what it defines itself; submodules stand for themselves."""
    if hasattr(module, "__all__") and module.__all__:
        return sorted(name for name in set(module.__all__) if not inspect.ismodule(getattr(module, name, None)))
    return sorted(
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isfunction(value) or inspect.isclass(value))
        and value.__module__ == module.__name__
    )


def members(value: object, package: str) -> list[str]:
    """Public methods and properties of a class that the package defines; none for exceptions."""
    if not inspect.isclass(value) or not value.__module__.startswith(package) or issubclass(value, BaseException):
        return []
    return sorted(name for name in vars(value) if not name.startswith("_"))


def resolve(path: str) -> tuple[bool, object]:
    """Whether the dotted name below torch exists, and what it is. Asks for nothing that starts a device."""
    from torch_xpu_kunlun.kunlun.events import Event, InterprocessEvent

    parts = path.split(".")
    value: object = importlib.import_module(parts[0])
    for part in parts[1:]:
        if value is Event and not hasattr(value, part):
            value = InterprocessEvent  # what Event makes
        if not hasattr(value, part):
            return False, None
        value = getattr(value, part)
    return True, value


def counterpart(path: str) -> str:
    """The name in torch.kunlun for a name in torch.cuda or torch.xpu."""
    rest = path.split(".")[2:]
    return ".".join(["torch", "kunlun", *rest]).replace("XPU", "Kunlun").replace("CUDA", "Kunlun")


def renamed(short: str) -> str | None:
    """The counterpart that tools/api_absent.py names, if any."""
    for name, other in RENAMED.items():
        if short == name:
            return other
        if name.endswith(".") and short.startswith(name):
            return other + short[len(name) :]
    return None


def row(path: str) -> tuple[str, str]:
    """The second and third cell for a name: what torch.kunlun has, and a remark."""
    short = path.split(".", 2)[2]
    name = renamed(short) or counterpart(path)
    if resolve(name)[0]:
        return f"`{name.split('.', 2)[2]}`", ""
    reason = ABSENT.get(short)
    if reason is None:
        reason = next((text for module, text in ABSENT_MODULES.items() if short.startswith(module + ".")), None)
    return "absent", reason or ""


def rows() -> list[tuple[str, str, str]]:
    """(name below torch, counterpart or "absent", remark), one for each public name."""
    found: dict[str, tuple[str, str, str]] = {}
    for source in SOURCES:
        for module_name in submodules(source):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                module = importlib.import_module(module_name)
            for name in public_names(module):
                paths = [f"{module_name}.{name}"]
                if row(paths[0])[0] != "absent":
                    value = getattr(module, name, None)
                    paths += [f"{module_name}.{name}.{member}" for member in members(value, f"torch.{source}")]
                for path in paths:
                    found[path] = (path, *row(path))
    return [found[path] for path in sorted(found, key=lambda p: (p.split(".", 2)[2], p))]


def unexplained() -> list[str]:
    """Names that are absent without a reason."""
    return [path for path, here, remark in rows() if here == "absent" and not remark]


def unused_reasons() -> list[str]:
    """Reasons for names that are present, or that torch does not have (any more)."""
    absent = {path.split(".", 2)[2] for path, here, _ in rows() if here == "absent"}
    return sorted(name for name in ABSENT if name not in absent)


def page() -> str:
    """The whole text of docs/api.md."""
    import torch

    merged: dict[str, tuple[list[str], str, str]] = {}
    for path, here, remark in rows():
        short = path.split(".", 2)[2]
        # A name of both modules takes one line, unless its counterparts differ.
        key = f"{short}\0{here}\0{remark}"
        merged.setdefault(key, ([], here, remark))[0].append(path.split(".")[1])
    count = len(merged)
    present = sum(here != "absent" for _, here, _ in merged.values())
    lines = [HEAD.format(version=torch.__version__.split("+")[0]), f"{count} names, {present} of them present.", ""]
    lines += ["| name | in | `torch.kunlun` | remark |", "|---|---|---|---|"]
    for key, (sources, here, remark) in merged.items():
        lines.append(f"| `{key.split(chr(0))[0]}` | {', '.join(sources)} | {here} | {remark} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    missing = unexplained()
    if missing:
        sys.exit("no counterpart and no reason in tools/api_absent.py: " + ", ".join(missing))
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())
