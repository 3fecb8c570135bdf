"""A warning for a trap of Hugging Face's accelerate, which reads its device from ``ACCELERATE_TORCH_DEVICE``.

Under ``torchrun`` it takes the device and forgets the other processes: it knows for a fixed list of devices which
process group they use, and has no registration for another. See docs/transformers.md.
"""

from __future__ import annotations

import os
import warnings


def warn_of_lone_processes() -> None:
    """Warns where several processes would each train a model of their own without a word."""
    device = os.environ.get("ACCELERATE_TORCH_DEVICE", "")
    world_size = os.environ.get("WORLD_SIZE", "1")
    if device.partition(":")[0] == "kunlun" and "LOCAL_RANK" in os.environ and world_size != "1":
        warnings.warn(
            f"ACCELERATE_TORCH_DEVICE={device} with {world_size} processes: accelerate does not know how processes on "
            "kunlun work together, so that Accelerator and Trainer would let each one train by itself. Use one "
            "process, or torch's own DistributedDataParallel or fully_shard over the backend xccl.",
            stacklevel=2,
        )
