"""What is to be audited: a transformers model by its folder, or anything that a Python callable runs."""

from __future__ import annotations

import contextlib
import importlib
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv
from torch.utils._pytree import tree_leaves, tree_map

from torch_xpu_kunlun.audit._record import DEVICE, Recorder

# What a model does that cannot be followed without its numbers.
_NEEDS_VALUES = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
    UnsupportedFakeTensorException,
)


class AuditError(RuntimeError):
    """The model cannot be audited in this way. The text says why, and what to do."""


class Target:
    """A run of a model: `prepare` makes it, on whatever device is the default then, and returns what runs it once."""

    def __init__(self, prepare: Callable[[Recorder], Callable[[], Any] | None], train: bool):
        self._prepare, self._train = prepare, train

    def run(self, recorder: Recorder) -> None:
        """Runs once; the recorder notes the operators. AuditError where a fake run would need real numbers."""
        try:
            self._run(recorder)
        except _NEEDS_VALUES as error:
            reason = str(error).splitlines()[0]
            raise AuditError(
                "the model decides by the values of tensors what to do next, and fake tensors have none: audit it with "
                f"--on simulator. It stopped at: {type(error).__name__}: {reason}"
            ) from error

    def _run(self, recorder: Recorder) -> None:
        with contextlib.ExitStack() as modes:
            if recorder.fake:
                modes.enter_context(FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True))
            modes.enter_context(torch.device(DEVICE))
            modes.enter_context(torch.set_grad_enabled(self._train))
            step = self._prepare(recorder)
            if step is None:  # the callable has run by itself
                return
            with recorder:
                result = step()
                if self._train:
                    _loss(result).backward()
        if not recorder.fake:
            torch.kunlun.synchronize()


def load_target(text: str, batch: int = 1, tokens: int = 32, train: bool = False) -> Target:
    """The target that `text` names. AuditError where it names none."""
    folder = pathlib.Path(text)
    if folder.is_dir():
        return Target(lambda _: _transformers_step(folder, batch, tokens, train), train)
    module, colon, name = text.partition(":")
    if not colon or not name:
        raise AuditError(
            f"{text!r} is neither a folder with a transformers model nor of the form package.module:callable"
        )
    return Target(lambda recorder: _callable_step(module, name, recorder), train)


def _callable_step(module: str, name: str, recorder: Recorder) -> Callable[[], Any] | None:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does for its own module
    make = importlib.import_module(module)
    for part in name.split("."):
        make = getattr(make, part)
    own = Recorder(recorder.fake)
    with own:
        made = make()
    if not (isinstance(made, tuple) and len(made) == 2 and callable(made[0])):
        recorder.take(own)  # it was itself what is to be audited
        return None
    model, inputs = made
    if isinstance(model, torch.nn.Module):
        _move(model)
    inputs = tree_map(lambda value: value.to(DEVICE) if isinstance(value, torch.Tensor) else value, inputs)
    if isinstance(inputs, dict):
        return lambda: model(**inputs)
    return lambda: model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)


def _move(model: torch.nn.Module) -> None:
    """What is not on the device yet. `Module.to` cannot do it for fake tensors, whose identity others hold on to."""
    moved: dict[int, torch.Tensor] = {}  # tied parameters stay tied
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is None or tensor.device.type == DEVICE:
                    continue
                if id(tensor) not in moved:
                    copy = tensor.detach().to(DEVICE)
                    is_parameter = tensors is module._parameters
                    moved[id(tensor)] = torch.nn.Parameter(copy, tensor.requires_grad) if is_parameter else copy
                tensors[name] = moved[id(tensor)]


def _transformers_step(folder: pathlib.Path, batch: int, tokens: int, train: bool) -> Callable[[], Any]:
    try:
        import transformers
    except ImportError as error:
        raise ImportError(
            "auditing a transformers folder needs the package transformers: pip install transformers"
        ) from error
    config = transformers.AutoConfig.from_pretrained(folder)
    dtype = getattr(config, "dtype", None) or torch.float32
    causal = any("CausalLM" in name or "LMHead" in name for name in config.architectures or ())
    kind = transformers.AutoModelForCausalLM if causal else transformers.AutoModel
    model = kind.from_config(config, dtype=dtype).train(train)
    ids = torch.zeros(batch, tokens, dtype=torch.long)

    def step() -> Any:
        if train or not causal:
            return model(input_ids=ids)
        # The prompt, then one more token with its cache.
        cache = transformers.DynamicCache(config=config)
        model(input_ids=ids, use_cache=True, past_key_values=cache)
        return model(input_ids=ids[:, :1], use_cache=True, past_key_values=cache)

    return step


def _loss(result: Any) -> torch.Tensor:
    """Something to go backward from: the sum of all results that need gradients."""
    if hasattr(result, "to_tuple"):  # what transformers returns
        result = result.to_tuple()
    parts = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
    if not parts:
        raise ValueError("--train needs a result that depends on a parameter")
    return sum(part.float().sum() for part in parts)
