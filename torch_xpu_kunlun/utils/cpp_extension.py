"""Builds C++ extensions for the device: :mod:`torch.utils.cpp_extension` with this package's headers and library.

``KunlunExtension`` takes the place of ``CppExtension`` in a ``setup.py``; ``load`` and ``load_inline`` compile at run
time. All of them take the arguments of torch's functions of that name. The public header is
``torch_xpu_kunlun/extension.h``; ``examples/custom_op`` in the source tree shows three operators.

An extension belongs to the minor release of torch it was compiled with, as this package does. It finds the library of
this package because ``import torch`` has loaded it: load extensions after that.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from setuptools import Extension
from torch.utils import cpp_extension
from torch.utils.cpp_extension import BuildExtension

__all__ = ["BuildExtension", "KunlunExtension", "include_paths", "library_paths", "load", "load_inline"]

_PACKAGE = Path(__file__).resolve().parents[1]
_LIBRARY = "torch_kunlun"


def include_paths() -> list[str]:
    """Folders of the public headers: this package's, in an editable installation those of the source tree."""
    for folder in (_PACKAGE / "include", _PACKAGE.parent / "csrc"):
        if (folder / "torch_xpu_kunlun" / "extension.h").exists():
            return [str(folder)]
    raise FileNotFoundError(
        f"the headers of torch_xpu_kunlun are missing: neither {_PACKAGE / 'include'} nor the source tree has "
        "torch_xpu_kunlun/extension.h. Install the package again."
    )


def library_paths() -> list[str]:
    """Folder of ``libtorch_kunlun.so``."""
    return [str(_PACKAGE / "lib")]


def _link_flags() -> list[str]:
    return [*(f"-L{path}" for path in library_paths()), f"-l{_LIBRARY}"]


def KunlunExtension(name: str, sources: Sequence[str], *args: Any, **kwargs: Any) -> Extension:
    """A ``setuptools.Extension`` for C++ sources that use the device; give it to ``BuildExtension``."""
    kwargs["include_dirs"] = [*kwargs.get("include_dirs", []), *include_paths()]
    kwargs["library_dirs"] = [*kwargs.get("library_dirs", []), *library_paths()]
    kwargs["libraries"] = [*kwargs.get("libraries", []), _LIBRARY]
    return cpp_extension.CppExtension(name, [os.fspath(source) for source in sources], *args, **kwargs)


def load(
    name: str,
    sources: str | os.PathLike | Sequence[str | os.PathLike],
    extra_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: Sequence[str | os.PathLike] | None = None,
    **kwargs: Any,
) -> Any:
    """Compiles ``sources`` once and loads the result: a module, or with ``is_python_module=False`` its operators."""
    sources = [sources] if isinstance(sources, (str, os.PathLike)) else sources
    return cpp_extension.load(
        name,
        [os.fspath(source) for source in sources],
        extra_cflags=extra_cflags,
        extra_ldflags=[*(extra_ldflags or []), *_link_flags()],
        extra_include_paths=[*map(os.fspath, extra_include_paths or []), *include_paths()],
        **kwargs,
    )


def load_inline(
    name: str,
    cpp_sources: str | Sequence[str],
    extra_cflags: Sequence[str] | None = None,
    extra_ldflags: Sequence[str] | None = None,
    extra_include_paths: Sequence[str | os.PathLike] | None = None,
    **kwargs: Any,
) -> Any:
    """Like :func:`load`, with the source text itself. ``no_implicit_headers=True`` leaves out ``torch/extension.h``,
    which takes half a minute to compile."""
    return cpp_extension.load_inline(
        name,
        cpp_sources,
        extra_cflags=extra_cflags,
        extra_ldflags=[*(extra_ldflags or []), *_link_flags()],
        extra_include_paths=[*map(os.fspath, extra_include_paths or []), *include_paths()],
        **kwargs,
    )
