"""A call of an operator as two files: its tensors, and a short program that repeats it on both devices."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_flatten

from torch_xpu_kunlun.autocompare._copies import is_number_for_tensor, map_arguments
from torch_xpu_kunlun.autocompare._exceptions import COUNTERPARTS, written_arguments

_PROGRAM = '''"""{operator} gave another result on kunlun than on the CPU.

This repeats the call on both and compares.
"""

import pathlib

import torch

import torch_xpu_kunlun  # registers the device
{imports}
FILE = pathlib.Path(__file__).with_suffix(".pt")
ON_HOST = {on_host}  # tensors that the call takes from the host, whatever the device


def call(device):
    t = torch.load(FILE, map_location=device, weights_only=True)
    host = torch.load(FILE, map_location="cpu", weights_only=True)
    for index in ON_HOST:
        t[index] = host[index]
    t = [torch.empty_like(one) if one.numel() == 0 else one for one in t]  # what torch.load makes cannot grow
    operator = {callee}
    with torch.no_grad():
        result = operator({arguments})
    # What the operator returns, and what it changes.
    return [result, [{written}]]


(expected, changed_on_cpu), (actual, changed) = call("cpu"), call("kunlun")
if isinstance(expected, (list, tuple)):
    actual = actual[: len(expected)]
for pair in ((actual, expected), (changed, changed_on_cpu)):
    torch.testing.assert_close(*pair, equal_nan=True, check_device=False{tolerance})
print("equal")
'''


class _Writer:
    """Writes values as Python, and collects the tensors among them."""

    def __init__(self):
        self.tensors: list[torch.Tensor] = []
        self.numbers: dict[int, int] = {}

    def tensor(self, value: torch.Tensor) -> str:
        if id(value) not in self.numbers:
            self.numbers[id(value)] = len(self.tensors)
            self.tensors.append(value)
        return f"t[{self.numbers[id(value)]}]"

    def __call__(self, value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, list | tuple):
            return "[" + ", ".join(self(element) for element in value) + "]"
        if isinstance(value, torch.device):
            return "torch.device(device)"
        if isinstance(value, float) and value - value != 0:  # infinite or not a number
            return f'float("{value}")'
        return repr(value)


def save_case(folder: str, op: OpOverload, originals: Any, copies: Any, exact: bool) -> pathlib.Path:
    """Writes the call and returns the program's path. `copies` are the arguments before the call, on the host."""
    args, kwargs = copies
    write = _Writer()
    texts = map_arguments(
        op, args, kwargs, lambda a, value: f"number({value!r})" if is_number_for_tensor(a, value) else write(value)
    )
    parts = [*texts[0], *(f"{name}={text}" for name, text in texts[1].items())]
    was_on_host = {
        id(copy)
        for original, copy in zip(tree_flatten(originals)[0], tree_flatten(copies)[0], strict=True)
        if isinstance(original, torch.Tensor) and original.device.type == "cpu"
    }
    callee = f"torch.ops.{op._schema.name.replace('::', '.')}.{op._overloadname}"
    imports = "from torch_xpu_kunlun.autocompare import number\n" if any("number(" in part for part in parts) else ""
    if op._schema.name in COUNTERPARTS:
        imports += "from torch_xpu_kunlun.autocompare import COUNTERPARTS\n"
        callee = f'COUNTERPARTS["{op._schema.name}"] if device == "cpu" else {callee}'
    text = _PROGRAM.format(
        operator=op.name(),
        imports=imports,
        on_host=[number for number, tensor in enumerate(write.tensors) if id(tensor) in was_on_host],
        callee=callee,
        arguments=", ".join(parts),
        written=", ".join(write(value) for value in written_arguments(op, args, kwargs)),
        tolerance=", rtol=0, atol=0" if exact else "",
    )
    path = _new_path(pathlib.Path(folder), op.name().replace("::", "_"))
    torch.save(write.tensors, path.with_suffix(path.suffix + ".pt"))
    path = path.with_suffix(path.suffix + ".py")
    path.write_text(text, encoding="utf-8")
    return path


def _new_path(folder: pathlib.Path, name: str) -> pathlib.Path:
    """A path without an ending that no case has yet, of any process."""
    folder.mkdir(parents=True, exist_ok=True)
    number = 0
    while True:
        path = folder / f"{name}_{number}"
        try:
            os.close(os.open(folder / (path.name + ".pt"), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            number += 1
        else:
            return path
