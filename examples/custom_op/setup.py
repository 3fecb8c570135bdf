# The same operators as an installable package: `pip install --no-build-isolation .` or `python setup.py build_ext`.
from setuptools import setup

from torch_xpu_kunlun.utils.cpp_extension import BuildExtension, KunlunExtension

setup(
    name="my_ops",
    ext_modules=[KunlunExtension("my_ops_library", ["my_ops.cpp"])],
    cmdclass={"build_ext": BuildExtension.with_options(no_python_abi_suffix=True)},
)
