# Makes checkpoints; prints the name of each one when it is there.
import argparse
import sys

from tools.measure.torchvision import let_torchvision_load


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.zoo", description="Makes small models and their references.")
    parser.add_argument("names", nargs="*", help="which (default: all)")
    parser.add_argument("--list", action="store_true", help="print the names and make nothing")
    options = parser.parse_args()

    from tools.zoo.families import FAMILIES

    if options.list:
        print("\n".join(f"{name:16} {family.title}" for name, family in FAMILIES.items()))
        return 0
    if unknown := [name for name in options.names if name not in FAMILIES]:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(FAMILIES)}")

    let_torchvision_load()
    from tools.zoo.make import make

    if "torch_xpu_kunlun" in sys.modules:
        sys.exit("error: this process has loaded torch_xpu_kunlun; run it with TORCH_DEVICE_BACKEND_AUTOLOAD=0")
    for name in options.names or FAMILIES:
        make(name)
        print(name, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
