# docs/processes.md: its program prints what the page shows.
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "processes.md"


def test_the_program_prints_what_the_page_shows(tmp_path):
    (code, output), *rest = re.findall(r"```python\n(.*?)```.*?```\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert not rest
    program = tmp_path / "program.py"
    program.write_text(code)
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.stderr, done.returncode) == (output, "", 0)
