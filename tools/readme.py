# `python -m tools.readme`: writes the table of environment variables, as the library knows them, into README.md.
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BEGIN = "<!-- environment: written by `python -m tools.readme` -->"
END = "<!-- environment: end -->"


def environment_table() -> str:
    """One row for each variable the library reads."""
    from torch_xpu_kunlun import _C

    rows = ["| variable | accepted | when unset | meaning |", "|---|---|---|---|"]
    for variable in _C._get_environment():
        cells = [f"`{variable['name']}`", variable["values"], variable["default"], variable["meaning"]]
        rows.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(rows)


def with_table(text: str, table: str) -> str:
    """`text` with what lies between the two marks replaced."""
    pattern = re.escape(BEGIN) + ".*?" + re.escape(END)
    result, count = re.subn(pattern, lambda _: f"{BEGIN}\n{table}\n{END}", text, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"expected the marks {BEGIN} and {END} once, found them {count} times")
    return result


if __name__ == "__main__":
    path = ROOT / "README.md"
    path.write_text(with_table(path.read_text(), environment_table()))
