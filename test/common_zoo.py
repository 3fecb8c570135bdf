# Checkpoints of tools.zoo in tests: parameters that name them, and the comparison with their references.
import pytest

from tools import zoo
from tools.matrix.known import known


def models(quick: tuple[str, ...], every: tuple[str, ...]):
    """Parametrises by name: those of `quick` run always, the rest of `every` in the whole sweep only."""
    return pytest.mark.parametrize(
        "name", [name if name in quick else pytest.param(name, marks=pytest.mark.full) for name in every]
    )


def checkpoint_or_skip(name: str):
    """The folder of a checkpoint; skips where the installed transformers has no such model."""
    zoo.ensure([name])
    if reason := zoo.unavailable(name):
        pytest.skip(f"{reason}: https://huggingface.co/docs/transformers/model_doc/{name}")
    return zoo.checkpoint(name)


def check_same(engine: str, result: dict) -> None:
    """What the matrix says of one model: the same as transformers, or what tools/matrix/known.py has a line for."""
    if result["status"] == "unavailable":
        pytest.skip(result["reason"] + ": https://huggingface.co/docs/transformers")
    if line := known(engine, result["name"], result["tp"]):
        assert result["status"] != "same", "tools/matrix/known.py has a line that no longer holds"
        assert line.shows in result["reason"], result.get("traceback")
        pytest.skip(line.why)
    assert (result["status"], result["reason"]) == ("same", None), result.get("traceback")
    assert result["fallback"] == 0
