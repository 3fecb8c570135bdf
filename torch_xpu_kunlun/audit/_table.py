"""The audit as text: a table with a line for each operator and dtypes, and the counts below it."""

from __future__ import annotations

import collections

from torch_xpu_kunlun import _C, tiers
from torch_xpu_kunlun.audit._record import Usage


def page(model: str, usages: list[Usage], fake: bool) -> str:
    info = _C._get_chip_info()
    where = "on fake tensors, nothing was computed" if fake else "run on the device"
    total = sum(usage.seconds or 0 for usage in usages)
    header = ["operator", "dtypes", "shapes", "tier", "chip kernel", "calls"] + ([] if fake else ["time"])
    rows = [header]
    for usage in usages:
        row = [
            usage.operator,
            _short(usage.dtypes),
            _shapes(usage),
            usage.tier,
            _kernel(usage),
            str(usage.calls),
        ]
        rows.append(row if fake else [*row, f"{100 * (usage.seconds or 0) / total:.1f}%"])
    counts = collections.Counter()
    for usage in usages:
        counts[usage.tier] += usage.calls
    summary = ", ".join(f"{tier} {counts[tier]}" for tier in (*tiers.SLOWER, "none") if counts[tier])
    return (
        f"{model}: {where}; driver {info['driver']} {info['driver_version']}\n\n"
        f"{_aligned(rows)}\n\n"
        f"{len({usage.operator for usage in usages})} operators; calls by tier: {summary or 'none at all'}"
    )


def _kernel(usage: Usage) -> str:
    if usage.tier == "none":
        return "not needed"
    name = usage.chip_operator or "several"
    return name if usage.chip_kernel else f"no ({name})"


def _short(dtypes: tuple[str, ...]) -> str:
    """Repetitions are counted: 3x float32."""
    counts = collections.Counter(dtypes)
    return ", ".join(name if number == 1 else f"{number}x {name}" for name, number in counts.items()) or "-"


def _shapes(usage: Usage) -> str:
    shapes = next(iter(usage.shapes.most_common(1)))[0]
    text = " ".join("x".join(map(str, shape)) or "scalar" for shape in shapes[:3])
    text += " ..." if len(shapes) > 3 else ""
    return (text or "-") + (f" (+{len(usage.shapes) - 1})" if len(usage.shapes) > 1 else "")


def _aligned(rows: list[list[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])
