# `python -m tools.stress`: stress of the simulated chip's driver, queues and allocator core under the sanitizers.
import argparse
import sys
import tempfile
from pathlib import Path

from tools.stress import SANITIZERS, StressError, build, run, sanitizer_works


def main() -> int:
    parser = argparse.ArgumentParser(description="Stress of the simulated chip without torch, under sanitizers.")
    parser.add_argument("--seconds", type=float, default=60, help="for each sanitizer (default 60)")
    parser.add_argument("--threads", type=int, default=4, help="threads that compute (default 4)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sanitize", nargs="+", choices=(*SANITIZERS, "none"), default=list(SANITIZERS))
    options = parser.parse_args()
    for name in options.sanitize:
        sanitizer = "" if name == "none" else name
        with tempfile.TemporaryDirectory() as folder:
            if sanitizer and not sanitizer_works(sanitizer, Path(folder)):
                print(f"{name}: the compiler has no such sanitizer, or this machine cannot run it")
                return 1
            try:
                counted = run(build(Path(folder), sanitizer), options.seconds, options.threads, options.seed)
            except StressError as error:
                print(f"{name}: {error}")
                return 1
        print(f"{name}: {counted}, no report", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
