# What processes leave behind: living descendants, and segments in /dev/shm that nobody uses.
import os
import time
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
GRACE_SECONDS = 10


def descendants() -> dict[int, str]:
    """Living descendants of this process: id and command name."""
    children, names = {}, {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            head, _, tail = (entry / "stat").read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended between the listing and the reading
        state, parent = tail.split()[:2]
        children.setdefault(int(parent), []).append(int(entry.name))
        if state != "Z":
            names[int(entry.name)] = head.partition("(")[2]
    found, waiting = set(), [os.getpid()]
    while waiting:
        next_ones = children.get(waiting.pop(), [])
        found.update(next_ones)
        waiting += next_ones
    return {pid: names[pid] for pid in found & names.keys()}


def group(leader: int) -> list[int]:
    """Living processes of this process group."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            state, _, number = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(number) == leader and state != "Z":
            found.append(int(entry.name))
    return found


def segments() -> set[str]:
    """Names in /dev/shm that belong to this user."""
    found = set()
    for path in SHARED_MEMORY.iterdir():
        try:
            if path.stat().st_uid == os.getuid():
                found.add(path.name)
        except FileNotFoundError:
            continue
    return found


def in_use(names: set[str], ours: set[int] | None = None) -> set[str]:
    """Those of `names` that some living process has mapped; with `ours`, a process that is not among these."""
    used = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal() or (ours is not None and int(entry.name) in ours):
            continue
        try:
            maps = (entry / "maps").read_text()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        used |= {name for name in names if f"{SHARED_MEMORY}/{name}" in maps}
    return used


def until(condition, seconds: float = GRACE_SECONDS) -> bool:
    """Whether the condition came true within this time."""
    deadline = time.monotonic() + seconds
    while not (true := condition()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return bool(true)


def unused_since(before: set[str]) -> set[str]:
    """Segments that came after `before`, once they have had time to go: those that no process uses."""

    def unused() -> set[str]:
        new = segments() - before
        return new - in_use(new)

    until(lambda: not unused())
    return unused()
