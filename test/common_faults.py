"""What the tests of faults do on a device, in this process or in one of their own."""

from __future__ import annotations

import torch

DEVICE = "kunlun:1"


def works(device=DEVICE) -> bool:
    """Whether the device computes."""
    return (torch.arange(6.0, device=device) * 2).sum().item() == 30


def calls_on(a: torch.Tensor, host: torch.Tensor) -> dict:
    """Calls that use the device of ``a``, which is ``kunlun:1``, each in its own way."""
    return {
        "launch": lambda: a + 1,
        "boxed": lambda: torch.kthvalue(a, 1),
        "synchronise": lambda: torch.kunlun.synchronize(1),
        "stream": lambda: torch.kunlun.current_stream(1).synchronize(),
        "query": lambda: torch.kunlun.current_stream(1).query(),
        "item": lambda: a.sum().item(),
        "read": a.tolist,
        "to the host": a.cpu,
        "from the host": lambda: a.copy_(host),
        "to a peer": lambda: a.to("kunlun:0"),
        "event": lambda: torch.kunlun.current_stream(1).record_event(),
        "memory": lambda: torch.empty(64 << 20, device=DEVICE),
        "accelerator": lambda: torch.accelerator.synchronize(1),
    }


# Each waits for the current stream, in its own way; `event` was recorded on it, and `a` has 2^20 elements.
WAITS = {
    "synchronize": lambda a, event: torch.kunlun.synchronize(),
    "accelerator": lambda a, event: torch.accelerator.synchronize(),
    "stream": lambda a, event: torch.kunlun.current_stream().synchronize(),
    "event": lambda a, event: event.synchronize(),
    "item": lambda a, event: a[0].item(),
    "to the host": lambda a, event: a.cpu(),
    "from the host": lambda a, event: a.copy_(torch.ones(1 << 20)),
    "boxed": lambda a, event: torch.kthvalue(a, 1),
    "full queue": lambda a, event: [a.add_(1) for _ in range(5000)],
}
