"""``python -m torch_xpu_kunlun``: looks at the device (``diagnose``) and at what a model needs of it (``audit``)."""

from __future__ import annotations

import argparse
import sys

from torch_xpu_kunlun import audit, diagnose


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m torch_xpu_kunlun", description=_about(__doc__))
    commands = parser.add_subparsers(dest="command", required=True)
    auditing = commands.add_parser("audit", help=_about(audit.__doc__), description=_about(audit.__doc__))
    audit.add_arguments(auditing)
    commands.add_parser("diagnose", help=_about(diagnose.__doc__), description=_about(diagnose.__doc__))
    chosen = parser.parse_args(arguments)
    return audit.main(chosen) if chosen.command == "audit" else diagnose.main()


def _about(text: str) -> str:
    """The first line, behind the command."""
    return text.splitlines()[0].partition(": ")[2].rstrip(".")


if __name__ == "__main__":
    sys.exit(main())
