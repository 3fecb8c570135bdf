"""Makes torch know the device: name, module, methods. Starts nothing and opens no device."""

import importlib
import sys
import weakref

import torch

DEVICE = "kunlun"


def check_torch() -> None:
    """Refuses a torch of another minor release than the binary was compiled for.

    The headers that a device is built against promise no binary stability between minor releases.
    """
    try:
        from torch_xpu_kunlun import _build_info
    except ImportError as error:
        raise ImportError(
            "torch_xpu_kunlun has not been built: its native part is missing. "
            "Run `make build` in the source tree, or `pip install --no-build-isolation .`"
        ) from error
    built_for = ".".join(_build_info.TORCH_VERSION.split(".")[:2])
    running = ".".join(torch.__version__.split(".")[:2])
    if built_for != running:
        raise ImportError(
            f"torch_xpu_kunlun {_build_info.VERSION} was built for torch {built_for} "
            f"({_build_info.TORCH_VERSION}), but torch {torch.__version__} is installed. "
            f"Install torch {built_for}.*, or build torch_xpu_kunlun again with the torch that is installed."
        )


def _rename_device() -> None:
    try:
        torch.utils.rename_privateuse1_backend(DEVICE)
    except RuntimeError as error:
        raise ImportError(
            f"cannot add the device {DEVICE!r}: torch has room for one out-of-tree device per process, and "
            f"{torch._C._get_privateuse1_backend_name()!r} has taken it"
        ) from error


def _register_module() -> None:
    from torch_xpu_kunlun import kunlun

    torch._register_device_module(DEVICE, kunlun)
    # So that `import torch.kunlun.memory` is this module and not a second copy of it.
    for name in ("amp", "events", "memory", "random", "streams", "telemetry"):
        sys.modules[f"torch.{DEVICE}.{name}"] = getattr(kunlun, name)


def is_registered() -> bool:
    """Whether this package has registered the device, in whichever import of it."""
    return getattr(getattr(torch, DEVICE, None), "__name__", "") == "torch_xpu_kunlun.kunlun"


def register() -> None:
    """Registers the device with torch, by the import of the package. Another import, or a reload, finds it done."""
    if is_registered():
        return
    check_torch()
    # The static initialisers of the native part register allocator, guard, hooks and operators.
    native = importlib.import_module("torch_xpu_kunlun._C")
    _rename_device()
    _register_module()
    torch.utils.generate_methods_for_privateuse1_backend(for_tensor=True, for_module=True, for_storage=True)

    from torch_xpu_kunlun import _dlpack, _sharing

    _dlpack.install()
    _sharing.install()

    from torch_xpu_kunlun import distributed

    distributed.register()
    # The chip's threads must end before the libraries they run in are unloaded. A finalizer and no exit handler:
    # finalizers run the newest first, so that those of programs which hold device memory come before.
    weakref.finalize(native, native._shutdown)
