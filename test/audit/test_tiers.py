"""What `tiers.service` says of an operator is what happens: compared over torch's operator database."""

import pytest
import torch
from common_op_db import OPS, move, name_of
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torch_xpu_kunlun import _C, tiers


class Compare(TorchDispatchMode):
    """Calls each operator under a trace, and keeps those that were served in another way than was said."""

    def __init__(self):
        super().__init__()
        self.compared = 0
        self.wrong: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        before = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        _C._start_operator_trace()
        try:
            result = func(*args, **kwargs)
        finally:
            trace = _C._stop_operator_trace()
        # Where nothing was launched there was nothing to compute, such as for empty tensors.
        if trace and func.namespace == "aten" and all(t.device.type == "kunlun" and t.numel() for t in before):
            service = tiers.service(func, [t.dtype for t in before])
            if service.tier not in ("composite", "missing"):
                self.compared += 1
                names = {name for _, name in trace}
                if service.tier != tiers.slowest([tier for tier, _ in trace]) or service.chip_operator not in names:
                    self.wrong.append(f"{func}: said {service}, was {trace}")
        return result


@pytest.mark.parametrize("part", range(8))
def test_the_operator_database_is_served_as_said(part):
    mode = Compare()
    for op in OPS[part::8]:
        sample = next(iter(op.sample_inputs("cpu", torch.float32)))
        value, args, kwargs = move(op, sample)
        try:
            op(sample.input, *sample.args, **sample.kwargs)
        except Exception:  # whatever the CPU refuses is refused on the device too
            continue
        with mode:
            op(value, *args, **kwargs)
    torch.kunlun.synchronize()
    assert mode.compared > len(OPS) // 16, name_of(OPS[part])
    assert not mode.wrong, "\n".join(sorted(set(mode.wrong)))


def test_every_fused_operator_is_known_to_be_launched():
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("kunlun::")]
    services = {name: tiers.service(tiers.overload_named(name)) for name in names}
    assert len(services) > 20
    assert {name: service for name, service in services.items() if not service.chip_kernel} == {}
