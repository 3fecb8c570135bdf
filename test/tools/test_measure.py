# The measuring tools: turns really alternate, ratios compare neighbours, a failing side is told in its own words.
import pytest

from tools.measure.compare import Comparison, Figure, compare, quantity
from tools.measure.session import Side, SideError


class FakeSide:
    def __init__(self, device):
        self.device = device


def test_sides_take_turns_and_each_turn_begins_with_the_other():
    seen = []

    def work(side):
        seen.append(side.device)
        return 1.0

    samples = compare(FakeSide("kunlun"), FakeSide("cpu"), 3, work)
    assert seen == ["kunlun", "cpu", "cpu", "kunlun", "kunlun", "cpu"]
    assert samples == {"kunlun": [1.0] * 3, "cpu": [1.0] * 3}


def test_ratio_of_a_time_and_of_a_rate():
    samples = {"kunlun": [2.0, 1.0, 4.0], "cpu": [4.0, 4.0, 4.0]}
    time = Comparison("t", 1, samples, "time", "s", at_most=0.85)
    assert (time.ratio, time.ok) == (0.5, True)
    rate = Comparison("r", 1, samples, "rate", "tokens/s", 64, at_least=2.5)
    assert (rate.ratio, rate.ok) == (2.0, False)
    assert rate.values("kunlun")[0] == 32


def test_a_figure_is_held_against_its_limit():
    assert Figure("f", [0.1, 0.2, 0.9], "s", 0.3).ok
    assert not Figure("f", [0.4], "s", 0.3).ok


@pytest.mark.parametrize(
    ("value", "text"), [(2.0, "2.00 s"), (3e-3, "3.00 ms"), (1.5e-6, "1.50 us"), (4e-8, "40.0 ns")]
)
def test_times_are_shown_in_a_readable_unit(value, text):
    assert quantity(value, "s") == text


def test_cpu_side_runs_without_the_extension_and_reports_errors():
    with Side("cpu", 1) as side:
        assert side.facts["extension"] is False
        assert side.facts["threads"] == 1
        assert side.ask("add", elements=16, calls=2, blocks=3) > 0
        with pytest.raises(SideError, match="add failed on cpu: RuntimeError"):
            side.ask("add", elements=-1, calls=1, blocks=1)
        assert side.ask("add", elements=16, calls=2, blocks=3) > 0
        side.process.kill()
        with pytest.raises(SideError, match="the cpu process ended with code -9 during add"):
            side.ask("add", elements=16, calls=2, blocks=3)


def test_chip_side_counts_the_tier_that_served():
    with Side("kunlun", 1) as side:
        assert side.facts["extension"] is True
        side.ask("reset_operators")
        side.ask("add", elements=16, calls=4, blocks=1)
        assert side.ask("operators")["launcher"] >= 4
        side.ask("route_to_boxed_tier", operator="aten::add.Tensor")
        side.ask("reset_operators")
        side.ask("add", elements=16, calls=4, blocks=1)
        # On a chip whose memory the host cannot reach, that tier is the copying fallback.
        operators = side.ask("operators")
        assert (operators["boxed_ops"] | operators["fallback_ops"])["aten::add.Tensor"] == 4
