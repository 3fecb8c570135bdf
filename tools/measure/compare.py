# Takes turns between two sides and turns the samples into a row: medians, their ratio, and its spread.
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from tools.measure.session import Side

Samples = dict[str, list[float]]


def compare(kunlun: Side, cpu: Side, rounds: int, work: Callable[[Side], float]) -> Samples:
    """Seconds of `work` on each side, `rounds` times in turn; each turn begins with the other side."""
    samples: Samples = {"kunlun": [], "cpu": []}
    for turn in range(rounds):
        order = (kunlun, cpu) if turn % 2 == 0 else (cpu, kunlun)
        for side in order:
            samples[side.device].append(work(side))
    return samples


def quantity(value: float, unit: str) -> str:
    """A value in a unit a reader can take in at once."""
    if unit != "s":
        return f"{value:.1f} {unit}"
    for scale, name in ((1, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= scale:
            return f"{value / scale:.2f} {name}"
    return f"{value / 1e-9:.1f} ns"


@dataclass
class Comparison:
    """A row with both sides: kind "time" (less is better) or "rate" (`amount` a second, more is better)."""

    name: str
    threads: int
    samples: Samples
    kind: str
    unit: str
    amount: float = 1
    at_most: float | None = None
    at_least: float | None = None

    def values(self, side: str) -> list[float]:
        if self.kind == "time":
            return self.samples[side]
        return [self.amount / seconds for seconds in self.samples[side]]

    @property
    def ratios(self) -> list[float]:
        """Kunlun over CPU, turn by turn: neighbours in time saw the same machine."""
        return [k / c for k, c in zip(self.values("kunlun"), self.values("cpu"), strict=True)]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def ok(self) -> bool | None:
        if self.at_most is not None:
            return self.ratio <= self.at_most
        return self.ratio >= self.at_least if self.at_least is not None else None

    def wanted(self) -> str:
        if self.at_most is not None:
            return f"{self.at_most}x at most"
        return f"{self.at_least}x at least" if self.at_least is not None else ""

    def cells(self) -> list[str]:
        medians = [quantity(statistics.median(self.values(side)), self.unit) for side in ("kunlun", "cpu")]
        spread = f"{self.ratio:.2f}x ({min(self.ratios):.2f} - {max(self.ratios):.2f})"
        return [self.name, str(self.threads), *medians, spread, self.wanted()]

    def as_json(self) -> dict:
        return {
            "name": self.name,
            "threads": self.threads,
            "kind": self.kind,
            "unit": self.unit,
            "seconds": self.samples,
            "amount": self.amount,
            "ratio": {"median": self.ratio, "smallest": min(self.ratios), "largest": max(self.ratios)},
            "wanted": self.wanted(),
            "ok": self.ok,
        }


@dataclass
class Figure:
    """A row of one figure with a limit and nothing on the CPU to compare with."""

    name: str
    samples: list[float]
    unit: str
    at_most: float

    @property
    def value(self) -> float:
        return statistics.median(self.samples)

    @property
    def ok(self) -> bool:
        return self.value <= self.at_most

    def cells(self) -> list[str]:
        spread = ""
        if len(self.samples) > 1:
            spread = f"({quantity(min(self.samples), self.unit)} - {quantity(max(self.samples), self.unit)})"
        return [self.name, "", quantity(self.value, self.unit), "", spread, self.wanted()]

    def wanted(self) -> str:
        return f"{quantity(self.at_most, self.unit)} at most"

    def as_json(self) -> dict:
        return {
            "name": self.name,
            "unit": self.unit,
            "samples": self.samples,
            "median": self.value,
            "wanted": self.wanted(),
            "ok": self.ok,
        }
