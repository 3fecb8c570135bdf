"""torch's operator test-bed, float32: every sample that runs on the CPU gives the same on kunlun."""

from __future__ import annotations

import pytest
import torch
from common_op_db import OPS, compare_with_cpu, name_of, record


@pytest.mark.parametrize("op", OPS, ids=name_of)
def test_equals_cpu(op, record_property):
    record(record_property, op, torch.float32)
    compare_with_cpu(op, op.sample_inputs("cpu", torch.float32))
