"""torch's own tests of process groups, which its wheel carries, on kunlun: `common_upstream.py RANKS [NAME ...]`.

Prints a line of JSON: how many tests ran, and those that failed or were skipped with the reason.
"""

import importlib.util
import json
import os
import re
import sys
import tempfile
import types
import unittest
from pathlib import Path

MODULE = "torch.testing._internal.distributed.distributed_test"
NAME = "distributed_test_on_kunlun"

# Where torch says "CUDA" in this file it means the accelerator under test.
REWRITES = (
    (r"\btorch\.cuda\.amp\b", "torch.kunlun.amp"),
    (r"\btorch\.cuda\.", "torch.kunlun."),
    (r"\.cuda\(", ".kunlun("),
    (r'"cuda(?=[":])', '"kunlun'),
    (r"\bDeviceType\.CUDA\b", "DeviceType.PrivateUse1"),
    # What is asked of NCCL is asked of XCCL.
    (r'\bBACKEND != "nccl"', 'BACKEND not in ("nccl", "xccl")'),
    (r'\bBACKEND == "nccl"', 'BACKEND in ("nccl", "xccl")'),
    (r'\bbackend="nccl"', 'backend="xccl"'),
    (r"\bbackend=dist\.Backend\.NCCL\b", 'backend="xccl"'),
    (r"\bdist\.ProcessGroupNCCL\b", "dist.ProcessGroupXCCL"),
)


# Skipped, with the reason.
TOO_LONG = {"test_ddp_uneven_inputs": "steps of large batch norms, more than six minutes on two cores"}


def load(ranks: int) -> types.ModuleType:
    """The module, with the device replaced and the conditions that ask for CUDA told about kunlun."""
    os.environ.update(BACKEND="xccl", WORLD_SIZE=str(ranks), KUNLUN_SIM_DEVICES="4")
    os.environ.setdefault("TEMP_DIR", tempfile.mkdtemp())
    os.environ.setdefault("KUNLUN_SIM_MEMORY", "6G")
    import torch  # noqa: F401 - finds the device
    from torch.testing._internal import common_distributed as common

    features = common.DistTestCases.backend_feature
    for feature in ("gpu", "cuda", "ddp", "subgroup", "plugin"):
        features[feature].add("xccl")
    features["kunlun"] = features["cuda"]  # the rewrites reach this name too
    common.skip_if_no_gpu = lambda test: test
    common.skip_if_lt_x_gpu = lambda count, **_: (lambda test: test) if count <= 4 else unittest.skip("4 devices")
    common.init_multigpu_helper = lambda world_size, _: {rank: [rank] for rank in range(world_size)}

    spec = importlib.util.find_spec(MODULE)
    source = Path(spec.origin).read_text()
    for pattern, replacement in REWRITES:
        source = re.sub(pattern, replacement, source)
    module = types.ModuleType(NAME)
    module.__file__ = spec.origin
    sys.modules[NAME] = module
    exec(compile(source, spec.origin, "exec"), module.__dict__)
    return module


def make_class(module: types.ModuleType) -> type:
    import torch

    class TestXccl(module.TestDistBackend, module.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        @classmethod
        def _run(cls, rank, *arguments, **keywords):
            torch.kunlun.set_device(rank)
            super()._run(rank, *arguments, **keywords)

    TestXccl.__module__ = NAME
    return TestXccl


def main() -> int:
    ranks, *names = sys.argv[1:]
    module = load(int(ranks))
    loader = unittest.TestLoader()
    loader.testNamePatterns = [f"*{name}*" for name in names] or None
    test_class = make_class(module)
    for name, reason in TOO_LONG.items():
        setattr(test_class, name, unittest.skip(reason)(getattr(test_class, name)))
    suite = loader.loadTestsFromTestCase(test_class)
    result = unittest.TextTestRunner(stream=sys.stderr, verbosity=2).run(suite)

    def named(pairs):
        return {test.id().rsplit(".", 1)[-1]: text for test, text in pairs}

    print(
        json.dumps(
            {
                "run": result.testsRun,
                "failed": named(result.failures) | named(result.errors),
                "skipped": named(result.skipped),
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
