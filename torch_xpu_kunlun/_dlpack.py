"""DLPack for kunlun tensors: torch 2.13 compares with the device's old name and refuses every renamed one."""

import enum
import functools

import torch


def install() -> None:
    """Wraps ``torch.Tensor.__dlpack_device__``; all other devices go through to torch's own.

    Upstream: https://github.com/pytorch/pytorch/pull/195815. Can go when that has been released.
    """
    original = torch.Tensor.__dlpack_device__

    @functools.wraps(original)
    def __dlpack_device__(self: torch.Tensor) -> tuple[enum.IntEnum, int]:
        if self.device.type != "kunlun":
            return original(self)
        if torch.overrides.has_torch_function_unary(self):
            return torch.overrides.handle_torch_function(torch.Tensor.__dlpack_device__, (self,), self)
        # torch orders the consumer's stream behind the producer's only for CUDA and ROCm, so the work is awaited.
        torch.kunlun.current_stream(self.device).synchronize()
        return torch.utils.dlpack.DLDeviceType.kDLExtDev, self.device.index

    torch.Tensor.__dlpack_device__ = __dlpack_device__
