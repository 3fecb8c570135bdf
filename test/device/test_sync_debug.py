# set_sync_debug_mode: operations that make the host wait warn or raise.
import warnings

import pytest
import torch


@pytest.fixture(autouse=True)
def default_mode():
    yield
    torch.kunlun.set_sync_debug_mode("default")


def tensors():
    device = torch.ones(100, device="kunlun")
    return device, torch.ones(100), torch.ones(100).pin_memory()


WAITING = {
    "item": lambda device, host, pinned: device[0].item(),
    "cpu": lambda device, host, pinned: device.cpu(),
    "to the device": lambda device, host, pinned: host.to("kunlun"),
    "pinned, but blocking": lambda device, host, pinned: device.copy_(pinned),
    "nonzero": lambda device, host, pinned: device.nonzero(),
    "bool": lambda device, host, pinned: bool(device[0]),
    "stream": lambda device, host, pinned: torch.kunlun.current_stream().synchronize(),
}
NOT_WAITING = {
    "add": lambda device, host, pinned: device + 1,
    "matmul": lambda device, host, pinned: device.view(10, 10) @ device.view(10, 10),
    "asynchronous copies": lambda device, host, pinned: (
        device.copy_(pinned, non_blocking=True),
        pinned.copy_(device, non_blocking=True),
    ),
    "within the device": lambda device, host, pinned: device.clone(),
    "only to wait": lambda device, host, pinned: torch.kunlun.synchronize(),
    "event": lambda device, host, pinned: torch.kunlun.current_stream().record_event().synchronize(),
}


@pytest.mark.parametrize("what", WAITING)
def test_what_waits_is_found(what):
    arguments = tensors()
    torch.kunlun.set_sync_debug_mode("warn")
    assert torch.kunlun.get_sync_debug_mode() == 1
    with pytest.warns(UserWarning, match="called a synchronizing kunlun operation"):
        WAITING[what](*arguments)
    torch.kunlun.set_sync_debug_mode("error")
    with pytest.raises(RuntimeError, match="called a synchronizing kunlun operation"):
        WAITING[what](*arguments)
    torch.kunlun.set_sync_debug_mode(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        WAITING[what](*arguments)


@pytest.mark.parametrize("what", NOT_WAITING)
def test_what_does_not_wait_is_left_alone(what):
    arguments = tensors()
    torch.kunlun.set_sync_debug_mode(2)
    NOT_WAITING[what](*arguments)


def test_modes_that_do_not_exist():
    for mode in ("loud", 3, -1):
        with pytest.raises(RuntimeError, match="invalid value of debug_mode, expected one of"):
            torch.kunlun.set_sync_debug_mode(mode)
    assert torch.kunlun.get_sync_debug_mode() == 0
