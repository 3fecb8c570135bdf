"""torch's database of modules: forward, backward, state and errors, in training and in evaluation."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from common_op_checks import cases, check, map_tensors, tensors_of
from common_op_db import EXACT
from torch.testing._internal.common_modules import ModuleErrorEnum, ModuleInfo, module_db

# torch composes them in another way on the CPU than on any device, with other roundings in between: they are only
# close, and in half types not even that.
CLOSE = {"nn.RNN", "nn.LSTM", "nn.LSTMCell", "nn.GRU", "nn.GRUCell"}
HALF = {torch.float16, torch.bfloat16}


@dataclass(frozen=True)
class Module:
    """A module of the database where `common_op_checks` expects an operator."""

    info: ModuleInfo
    variant_test_name = ""

    @property
    def name(self) -> str:
        return self.info.name


MODULES = [Module(info) for info in module_db]


def samples(function, info, dtype, gradient: bool):
    """Inputs of the constructor and of the call, in training and in evaluation."""
    for training in (True, False):
        for found in function(info, device="cpu", dtype=dtype, requires_grad=gradient, training=training):
            error = found if hasattr(found, "module_error_input") else None
            given = error.module_error_input if error else found
            forward = given.forward_input
            yield SimpleNamespace(
                input=given.desc,
                args=forward.args if forward else (),
                kwargs=forward.kwargs if forward else {},
                constructor=given.constructor_input,
                training=training,
                error=error,
                dtype=dtype,
            )


def construct(op, side, device: str) -> torch.nn.Module:
    """A module with the same parameters on both sides, made on the CPU or on the device."""
    args, kwargs = side.sample.constructor.args, dict(side.sample.constructor.kwargs)
    torch.manual_seed(0)
    host = op.info.module_cls(*args, **kwargs)
    if op.info.is_lazy:
        host(*side.sample.args, **side.sample.kwargs)
    if device == "cpu":
        module = host.to(side.device)
    else:
        args, kwargs = map_tensors(lambda tensor: tensor.to(side.device), (args, kwargs))
        module = op.info.module_cls(*args, **{**kwargs, "device": side.device})
        module.load_state_dict(host.state_dict())
    return module.to(side.sample.dtype).train(side.sample.training)


def run(module, side):
    """Results, gradients of inputs and parameters, and the state afterwards."""
    _, args, kwargs = side.inputs()
    with torch.random.fork_rng(devices=[]):
        result = module(*args, **kwargs)
    outputs = [t for t in tensors_of(result) if t.requires_grad]
    inputs = [t for t in (*tensors_of((args, kwargs)), *module.parameters()) if t.requires_grad]
    gradients = ()
    if outputs and inputs:
        gradients = torch.autograd.grad(outputs, inputs, [side.draw(t) for t in outputs], allow_unused=True)
    return map_tensors(torch.Tensor.detach, result), gradients, dict(module.state_dict())


def forward_and_backward(op, side):
    found = {"moved": run(construct(op, side, "cpu"), side)}
    takes_device = "device" in inspect.signature(op.info.module_cls.__init__).parameters
    if takes_device and not op.info.is_lazy:
        found["made on the device"] = run(construct(op, side, side.device), side)
    return found


@cases("modules", lambda op: set(op.info.dtypes) | (set() if op.name in CLOSE else HALF), ops=MODULES, quick=0.1)
def test_modules(op, dtype, record_property):
    found = samples(op.info.module_inputs_func, op.info, dtype, gradient=True)
    check("modules", op, dtype, found, forward_and_backward, record_property, {} if op.name in CLOSE else EXACT)


def refused(op, side):
    error = side.sample.error
    if error.error_on is ModuleErrorEnum.CONSTRUCTION_ERROR:
        constructor = side.sample.constructor
        return side.attempt(lambda: op.info.module_cls(*constructor.args, **constructor.kwargs).to(side.device))
    module = construct(op, side, "cpu")
    _, args, kwargs = side.inputs()
    return side.attempt(module, *args, **kwargs)


WITH_ERRORS = [op for op in MODULES if op.info.module_error_inputs_func is not None]


@cases("modules: error inputs", lambda op: [torch.float32], ops=WITH_ERRORS, quick=0.5)
def test_errors_of_modules(op, dtype, record_property):
    found = samples(op.info.module_error_inputs_func, op.info, dtype, gradient=False)
    check("modules: error inputs", op, dtype, found, refused, record_property)


def test_a_module_that_computes_something_else_is_found():
    op = next(op for op in MODULES if op.name == "nn.Linear")

    def wrong_on_the_device(op, side):
        result = forward_and_backward(op, side)
        if side.device != "cpu":
            result["moved"][2]["weight"].add_(1)
        return result

    found = samples(op.info.module_inputs_func, op.info, torch.float32, gradient=True)
    with pytest.raises(AssertionError, match="samples differ"):
        check("modules", op, torch.float32, found, wrong_on_the_device, lambda *_: None)
