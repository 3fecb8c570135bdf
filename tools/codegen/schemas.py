"""Reads torchgen's packaged operator declarations and sorts them by how kunlun serves them."""

from __future__ import annotations

import dataclasses
import pathlib
import re

import alike
import torchgen
from torchgen.gen import get_grouped_native_functions, parse_native_yaml
from torchgen.model import DispatchKey, NativeFunction, NativeFunctionsGroup

_PACKAGED = pathlib.Path(torchgen.__file__).parent / "packaged" / "ATen" / "native"
# An operator is hand-written when a source file under csrc/aten registers it:
# the registration itself is the declaration, there is no second list to keep.
_REGISTRATION = re.compile(r'^\s*m\.impl\(\s*"(?:aten::)?([\w.]+)"', re.MULTILINE)
_LIBRARY = re.compile(r"TORCH_LIBRARY_IMPL\(\s*aten\s*,\s*(\w+)\s*,")

# Which boxed kernel set follows from which CPU dispatch key.
BOXED_KEYS = {
    "PrivateUse1": DispatchKey.CPU,
    "SparsePrivateUse1": DispatchKey.SparseCPU,
    "SparseCsrPrivateUse1": DispatchKey.SparseCsrCPU,
    "QuantizedPrivateUse1": DispatchKey.QuantizedCPU,
    "NestedTensorPrivateUse1": DispatchKey.NestedTensorCPU,
}
# Composite kernels of torch that refuse devices which they do not name, though they would serve them.
REFUSED_COMPOSITES = {"mode.values"}


@dataclasses.dataclass(frozen=True)
class Operators:
    structured: list[NativeFunctionsGroup]
    # launched without a meta function (alike.py), each with the operator of the chip's table that computes it
    unstructured: list[tuple[NativeFunction, NativeFunction]]
    # dispatch key -> names (without namespace) of operators that have a CPU kernel only
    boxed: dict[str, list[str]]
    hand_written: dict[str, set[str]]


def hand_written(sources: pathlib.Path) -> dict[str, set[str]]:
    """Names that csrc/aten registers itself, per dispatch key."""
    found: dict[str, set[str]] = {}
    for path in sorted(sources.rglob("*.cpp")):
        text = path.read_text(encoding="utf-8")
        blocks = list(_LIBRARY.finditer(text))
        for index, block in enumerate(blocks):
            end = blocks[index + 1].start() if index + 1 < len(blocks) else len(text)
            names = _REGISTRATION.findall(text[block.end() : end])
            found.setdefault(block.group(1), set()).update(names)
    return found


def _needs_kernel(function: NativeFunction, index, key: str) -> bool:
    """True for operators whose CPU implementation is a kernel of that key's own.

    What delegates to a structured operator has one only where the declaration names it, as for sparse tensors; torch's
    own composite kernel would take its place there and make a dense result.
    """
    if key == "PrivateUse1" and str(function.func.name) in REFUSED_COMPOSITES:
        return True
    return index.has_kernel(function) and (key != "PrivateUse1" or function.structured_delegate is None)


def _unstructured(functions, groups) -> list[tuple[NativeFunction, NativeFunction]]:
    """The out variant computes for the others of its group; an operator without one computes for itself."""
    outs = {str(f.func.name): g.out for g in groups if isinstance(g, NativeFunctionsGroup) for f in g.functions()}
    found = {str(f.func.name): f for f in functions if str(f.func.name) in alike.UNSTRUCTURED}
    missing = alike.UNSTRUCTURED - set(found)
    assert not missing, f"torch has no operator {sorted(missing)}"
    # An out variant that torch generates from the functional one has no kernel; nor has one for in-place operators.
    return [
        (f, f if name in alike.IN_PLACE or "generated" in outs.get(name, f).tags else outs.get(name, f))
        for name, f in sorted(found.items())
    ]


def read(sources: pathlib.Path) -> Operators:
    parsed = parse_native_yaml(str(_PACKAGED / "native_functions.yaml"), str(_PACKAGED / "tags.yaml"))
    groups = get_grouped_native_functions(parsed.native_functions)
    # The few that only CUDA implements have no kernel here either.
    cpu = parsed.backend_indices[DispatchKey.CPU]
    structured = [g for g in groups if isinstance(g, NativeFunctionsGroup) and g.structured and cpu.has_kernel(g.out)]
    in_structured = {str(f.func.name) for g in structured for f in g.functions()}
    by_hand = hand_written(sources)
    boxed: dict[str, list[str]] = {}
    for key, cpu_key in BOXED_KEYS.items():
        index = parsed.backend_indices[cpu_key]
        names = []
        for function in parsed.native_functions:
            name = str(function.func.name)
            if name in by_hand.get(key, ()) or not _needs_kernel(function, index, key):
                continue
            if key == "PrivateUse1" and (name in in_structured or name in alike.UNSTRUCTURED):
                continue
            if name.startswith(("_test_", "_foobar")):  # torch's own test operators
                continue
            names.append(name)
        boxed[key] = names
    return Operators(structured, _unstructured(parsed.native_functions, groups), boxed, by_hand)
