# docs/engine_models.md, from docs/engine_models.json, into which the results in build/engine_matrix are merged first.
#
# So that a run of a few models leaves what others wrote about the rest.
import json
from pathlib import Path

from tools.matrix.known import known
from tools.matrix.session import PACKAGES, RESULTS, ROOT
from tools.zoo.families import FAMILIES

PAGE = ROOT / "docs" / "engine_models.md"
KEPT = ROOT / "docs" / "engine_models.json"
FACTS = ("engine", "status", "reason", "native", "boxed", "fallback")
HEAD = """# Models that the engines run

Each line is one architecture: a small model with random weights, made on the spot from transformers' configuration
(`tools/zoo`), float32, on the simulated chip. "same" means that the engine's answers to three prompts, 32 tokens each
and greedy, are token by token those of transformers on the CPU, in a process that never loads the extension; for a
model that embeds or ranks, that its numbers are equal to 1e-4. The second column of each engine is the same on two
devices, and equal to one. "T" marks models that the engine runs by its Transformers back end instead of a class of its
own. An empty field was not run; a field stays as it is until the model is run again. Boxed operators are counted during
generation; there was no copying fallback where none is named.

```
python tools/engine_matrix.py --engine vllm --tp 1 2 --page
python tools/engine_matrix.py --engine sglang --tp 1 2 --page
```
"""


def results() -> dict[tuple[str, str, int], dict]:
    """By engine, name and number of devices: the last run of each."""
    runs = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    for path in sorted(RESULTS.glob("*.json")):
        result = json.loads(path.read_text())
        runs[path.stem] = {name: result[name] for name in FACTS if name in result}
    found = {}
    for key, run in runs.items():
        engine, name, devices = key.split("-")
        if name in FAMILIES:
            found[engine, name, int(devices.removeprefix("tp"))] = run
    return found


def keep(found: dict[tuple[str, str, int], dict]) -> None:
    """Write the results, a line for each run."""
    lines = [f'"{engine}-{name}-tp{tp}": {json.dumps(run)}' for (engine, name, tp), run in sorted(found.items())]
    KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def cell(result: dict | None) -> str:
    if result is None:
        return ""
    text = result["status"]
    if result["status"] == "same" and not result["native"]:
        text += " (T)"
    return text


def notes(engine: str, name: str, tp: int, result: dict | None) -> list[str]:
    """What a reader must know about this line."""
    if result is None:
        return []
    where = f"{PACKAGES[engine]}, {tp} device{'s' if tp > 1 else ''}: "
    made = []
    if result["status"] != "same":
        line = known(engine, name, tp)
        reason = line.why if line else result["reason"][:200]
        made.append(where + reason.replace("|", r"\|"))
    if boxed := sum(result.get("boxed", {}).values()):
        operators = ", ".join(f"`{name}`" for name in result["boxed"])
        made.append(f"{where}{boxed} calls boxed ({operators})")
    if result.get("fallback"):
        made.append(f"{where}{result['fallback']} copying fallbacks")
    return made


def write() -> Path:
    """Merge new results and write the page; returns its path."""
    found = results()
    keep(found)
    counts = {
        (engine, tp): len(
            {FAMILIES[n].model for (e, n, t), r in found.items() if (e, t) == (engine, tp) and r["status"] == "same"}
        )
        for engine in PACKAGES
        for tp in (1, 2)
    }
    versions = {
        engine: next((r["engine"] for (e, *_), r in found.items() if e == engine and "engine" in r), None)
        for engine in PACKAGES
    }
    summary = [
        f"{versions[engine]}: {counts[engine, 1]} architectures are the same, {counts[engine, 2]} also on two devices."
        for engine in PACKAGES
        if versions[engine]
    ]
    lines = [HEAD, *summary, "", "A class of transformers counts once.", ""]
    lines += ["| model | class | vLLM | on 2 | SGLang | on 2 | notes |", "|---|---|---|---|---|---|---|"]
    for name, family in FAMILIES.items():
        runs = [(engine, name, tp, found.get((engine, name, tp))) for engine in PACKAGES for tp in (1, 2)]
        text = "; ".join(note for run in runs for note in notes(*run))
        cells = " | ".join(cell(result) for *_, result in runs)
        lines.append(f"| {family.title} | `{family.model}` | {cells} | {text} |")
    PAGE.write_text("\n".join(lines) + "\n")
    return PAGE
