# For processes that must not load the extension, where an engine's dependencies are installed.
import importlib.util
import sys

from tools.measure.session import ROOT


def let_torchvision_load() -> None:
    """What the extension does as torch starts, here without the extension: see torch_xpu_kunlun/_torchvision.py."""
    spec = importlib.util.spec_from_file_location("_torchvision", ROOT / "torch_xpu_kunlun" / "_torchvision.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.declare_schemas()
    sys.modules[spec.name] = module  # a declaration lives as long as its library
