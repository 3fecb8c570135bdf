"""Writes the C++ that follows from torch's operator declarations.

Run by the build with ``--out``; nothing it writes is committed. Three kinds of
file come out, each in shards so that the compiler can work in parallel:

* ``launchers_<n>.cpp``: an asynchronous launcher for every structured operator
  (functional, in-place and out), registered for ``PrivateUse1``;
* ``launchers_alike.cpp`` and ``launchers_in_place.cpp``: the same for those of the others that ``alike.py`` names;
* ``sim_kernels_<n>.cpp``: the simulated chip's kernels of the same operators;
* ``boxed_<key>.cpp``: registrations of the boxed tier for every other operator
  that the CPU implements.
"""

from __future__ import annotations

import argparse
import pathlib

import alike
import emit
import schemas

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_SHARDS = 12


def _write(path: pathlib.Path, text: str) -> None:
    """Leaves a file alone when nothing changed, so that nothing is compiled again."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def generate(out: pathlib.Path) -> list[pathlib.Path]:
    """Writes all generated sources into ``out`` and returns their paths."""
    out.mkdir(parents=True, exist_ok=True)
    operators = schemas.read(_ROOT / "csrc" / "aten")
    by_hand = operators.hand_written.get("PrivateUse1", set())
    files: dict[str, str] = {}
    for shard in range(_SHARDS):
        groups = operators.structured[shard::_SHARDS]
        files[f"launchers_{shard}.cpp"] = emit.launchers(groups, by_hand)
        files[f"sim_kernels_{shard}.cpp"] = emit.sim_kernels(groups, shard)
    # Two files: by the file of its registration, a tool tells whether a launcher serves all calls (tiers.py).
    in_place = [pair for pair in operators.unstructured if str(pair[0].func.name) in alike.IN_PLACE]
    files["launchers_in_place.cpp"] = emit.unstructured(in_place)
    files["launchers_alike.cpp"] = emit.unstructured([pair for pair in operators.unstructured if pair not in in_place])
    files["sim_kernels_unstructured.cpp"] = emit.sim_unstructured(operators.unstructured)
    files["sim_kernel_list.cpp"] = emit.sim_kernel_list(_SHARDS)
    for key, names in operators.boxed.items():
        files[f"boxed_{key}.cpp"] = emit.boxed(key, names)
    for name, text in files.items():
        _write(out / name, text)
    for stale in set(out.glob("*.cpp")) - {out / name for name in files}:
        stale.unlink()
    return sorted(out / name for name in files)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for the generated sources")
    for path in generate(parser.parse_args().out):
        print(path)
