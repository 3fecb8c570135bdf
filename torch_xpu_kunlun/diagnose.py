"""``python -m torch_xpu_kunlun diagnose``: everything a bug report needs, and whether the device works at all."""

from __future__ import annotations

import os
import platform
import traceback
from collections.abc import Callable

import torch

import torch_xpu_kunlun
from torch_xpu_kunlun import _C

_CAPABILITIES = (
    "is_host_addressable", "has_event_timing", "has_peer_access", "has_ipc", "has_stream_priorities", "has_fp64",
)  # fmt: skip


def _versions() -> list[str]:
    return [
        f"torch_xpu_kunlun {torch_xpu_kunlun.__version__}, {torch_xpu_kunlun.__file__}",
        f"torch {torch.__version__}, {torch.get_num_threads()} threads",
        f"Python {platform.python_version()}, {platform.platform()}",
    ]


def _environment() -> list[str]:
    names = [variable["name"] for variable in _C._get_environment()] + ["PYTORCH_ALLOC_CONF", "OMP_NUM_THREADS"]
    return [f"{name}={os.environ[name]}" for name in names if name in os.environ] or ["nothing is set"]


def _driver() -> list[str]:
    info = _C._get_chip_info()
    tables = [name for name in ("operators", "collectives") if info[name]]
    lines = [
        f"{info['driver']} {info['driver_version']}, runtime {info['runtime_version']}, chosen by {info['source']}",
        f"tables besides the runtime's: {', '.join(tables) or 'none'}",
    ]
    return lines + ([info["note"]] if info["note"] else [])


def _devices() -> list[str]:
    lines = []
    for index in range(torch.kunlun.device_count()):
        properties = torch.kunlun.get_device_properties(index)
        free, total = torch.kunlun.mem_get_info(index)
        able = [name for name in _CAPABILITIES if getattr(properties, name)]
        lines.append(f"kunlun:{index} {properties.name}, {free >> 20} of {total >> 20} MiB free, {', '.join(able)}")
    if not lines:
        raise RuntimeError("the driver shows no device; KUNLUN_VISIBLE_DEVICES or KUNLUN_SIM_DEVICES may hide them")
    return lines


def _memory() -> list[str]:
    for index in range(torch.kunlun.device_count()):
        host = torch.arange(1 << 16)
        if not torch.equal(host.to(f"kunlun:{index}").cpu(), host):
            raise RuntimeError(f"what came back from kunlun:{index} is not what was copied there")
    return ["what is copied to each device comes back"]


def _streams() -> list[str]:
    stream, event = torch.kunlun.Stream(), torch.kunlun.Event()
    with torch.kunlun.stream(stream):
        x = torch.ones(1000, device="kunlun") * 2
        event.record(stream)
    torch.kunlun.current_stream().wait_event(event)
    if (x + 1).sum().item() != 3000:
        raise RuntimeError("work on one stream that waited for another gave a wrong result")
    return ["a stream waits for another's event"]


def _operators() -> list[str]:
    torch_xpu_kunlun.reset_operator_statistics()
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    y = x.to("kunlun")
    for name, call in (("matmul", lambda t: t @ t.T), ("softmax", lambda t: t.softmax(1)), ("sort", torch.msort)):
        torch.testing.assert_close(call(y).cpu(), call(x), msg=lambda text, name=name: f"{name}: {text}")
    counts = torch_xpu_kunlun.operator_statistics()
    tiers = ", ".join(f"{tier} {counts[tier]}" for tier in ("launcher", "host_call", "boxed", "fallback"))
    return [f"matmul, softmax and sort give what the CPU gives; calls by tier: {tiers}"]


SECTIONS: dict[str, Callable[[], list[str]]] = {
    "versions": _versions,
    "environment": _environment,
    "driver": _driver,
    "devices": _devices,
    "memory": _memory,
    "streams": _streams,
    "operators": _operators,
}


def main() -> int:
    """Prints every section; returns 1 if one of them failed. A failure shows its whole traceback and ends nothing."""
    failed = []
    for name, section in SECTIONS.items():
        try:
            lines = section()
        except Exception:  # each failure is part of the report
            failed.append(name)
            lines = ["FAILED", *traceback.format_exc().splitlines()]
        print(f"{name}:")
        print("\n".join(f"  {line}" for line in lines), flush=True)
    print("result: " + (f"FAILED ({', '.join(failed)})" if failed else "the device works"))
    return 1 if failed else 0
