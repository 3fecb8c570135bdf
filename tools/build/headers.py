# The headers that a wheel carries: the public one and what it includes.
import re
from pathlib import Path

from tools.build.sources import CSRC

PUBLIC = "torch_xpu_kunlun/extension.h"
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def public_headers() -> list[str]:
    """Paths below csrc/ of the public header and of every header of the project that it needs."""
    found: set[str] = set()
    waiting = [PUBLIC]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for included in _INCLUDE.findall((CSRC / name).read_text()):
            beside = Path(name).parent / included
            waiting.append(beside.as_posix() if (CSRC / beside).exists() else included)
    return sorted(found)
