"""What torch's inductor is told when it asks the device for its code generator: there is none, and what to use.

Inductor looks for these names on the module of an out-of-tree device and registers them; the first thing it asks of the
registered wrapper, before it lowers anything, is whether its results may be cached.
"""

from __future__ import annotations

from typing import Any, NoReturn

__all__ = ["CppWrapperCodegen", "PythonWrapperCodegen", "Scheduling", "WrapperFxCodegen"]


def _refuse() -> NoReturn:
    raise NotImplementedError(
        "the inductor backend of torch.compile cannot generate code for kunlun: there is no Triton or C++ code "
        'generator for this chip. Use torch.compile(backend="aot_eager") or backend="eager", which capture the graph '
        "and run it with the device's own kernels."
    )


class _Refusal:
    """An attribute that cannot be read, of the class as little as of an instance."""

    def __get__(self, instance: Any, owner: type | None = None) -> NoReturn:
        _refuse()


class PythonWrapperCodegen:
    supports_caching = _Refusal()

    def __init__(self, *args: Any, **kwargs: Any):
        _refuse()


class CppWrapperCodegen(PythonWrapperCodegen):
    pass


class WrapperFxCodegen(PythonWrapperCodegen):
    pass


class Scheduling:
    def __init__(self, *args: Any, **kwargs: Any):
        _refuse()
