# Streams and events: current streams, the pool, order between streams, timing.
import ctypes
import os
import subprocess
import threading
import time
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


def test_the_default_stream_is_current_and_has_id_0(two_devices):
    for index in (0, 1):
        assert torch.kunlun.current_stream(index) == torch.kunlun.default_stream(index)
        assert torch.kunlun.default_stream(index).stream_id == 0
        assert torch.kunlun.default_stream(index).device == torch.device("kunlun", index)


def test_new_streams_are_never_the_default_stream_and_have_a_device(two_devices):
    torch.kunlun.set_device(1)
    for stream in (torch.Stream(device="kunlun"), torch.Stream(), torch.kunlun.Stream()):
        assert stream.stream_id != 0
        assert stream.device_index == 1
    assert torch.kunlun.Stream(0).device_index == 0
    assert torch.kunlun.Stream("kunlun:0", priority=-1).priority == -1


def test_the_pool_is_used_in_turn():
    ids = [torch.kunlun.Stream().stream_id for _ in range(64)]
    assert len(set(ids)) == 32
    assert ids[:32] == ids[32:]
    high = {torch.kunlun.Stream(priority=-1).stream_id for _ in range(64)}
    assert len(high) == 32
    assert not high & set(ids)


def test_priorities():
    assert torch.kunlun.Stream.priority_range() == (0, -1)
    assert torch.kunlun.Stream().priority == 0
    assert torch.kunlun.Stream(priority=-5).priority == -1
    assert torch.kunlun.Stream(priority=1).priority == 0
    assert torch.Stream("kunlun", priority=-1).stream_id & 3 == torch.kunlun.Stream(priority=-1).stream_id & 3


def test_stream_context_restores_stream_and_device(two_devices):
    stream = torch.kunlun.Stream(1)
    outer = torch.kunlun.Stream(0)
    with torch.kunlun.stream(outer):
        with torch.kunlun.stream(stream):
            assert torch.kunlun.current_device() == 1
            assert torch.kunlun.current_stream() == stream
            assert torch.kunlun.current_stream(0) == outer
        assert torch.kunlun.current_device() == 0
        assert torch.kunlun.current_stream() == outer
        with torch.kunlun.stream(None):
            assert torch.kunlun.current_stream() == outer
    assert torch.kunlun.current_stream() == torch.kunlun.default_stream()
    assert torch.kunlun.current_stream(1) == torch.kunlun.default_stream(1)
    with stream:
        assert torch.accelerator.current_stream() == stream
    assert torch.kunlun.current_device() == 0


def test_set_stream_and_the_accelerator_interface():
    stream = torch.kunlun.Stream()
    torch.kunlun.set_stream(stream)
    assert torch.accelerator.current_stream() == torch.kunlun.current_stream() == stream
    torch.accelerator.set_stream(torch.kunlun.default_stream())
    assert torch.kunlun.current_stream() == torch.kunlun.default_stream()
    torch.kunlun.set_stream(None)
    assert torch.kunlun.current_stream() == torch.kunlun.default_stream()


def test_the_current_stream_belongs_to_the_thread():
    torch.kunlun.set_stream(torch.kunlun.Stream())
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.kunlun.current_stream()))
    thread.start()
    thread.join()
    assert seen == [torch.kunlun.default_stream()]


def test_unknown_streams_are_refused():
    with pytest.raises(ValueError, match="no kunlun stream with id 3"):
        torch.kunlun.set_stream(torch.kunlun.Stream(stream_id=3, device_index=0, device_type=20))
    with pytest.raises(ValueError, match="expected a kunlun stream, got one on cpu"):
        torch.kunlun.streams._set_stream_by_id(0, 0, 0)
    assert torch.kunlun.current_stream() == torch.kunlun.default_stream()


def test_query_and_synchronize():
    stream = torch.kunlun.Stream()
    assert stream.query()
    with torch.kunlun.stream(stream):
        value = torch.ones(1000, device="kunlun") * 3
    stream.synchronize()
    assert stream.query()
    assert value.sum().item() == 3000
    torch.kunlun.synchronize()
    torch.accelerator.synchronize()


def test_an_event_orders_two_streams():
    first, second = torch.kunlun.Stream(), torch.kunlun.Stream()
    data = torch.zeros(1 << 20, device="kunlun")
    torch.kunlun.synchronize()
    for round_ in range(20):
        with torch.kunlun.stream(first):
            data.fill_(round_)
            event = first.record_event()
        with torch.kunlun.stream(second):
            second.wait_event(event)
            result = data * 2
            first.wait_stream(second)
        result.record_stream(second)
        with torch.kunlun.stream(second):
            assert result[-1].item() == 2 * round_


def test_streams_wait_across_devices(two_devices):
    first, second = torch.kunlun.Stream(0), torch.kunlun.Stream(1)
    source = torch.zeros(1 << 18, device="kunlun:0")
    torch.kunlun.synchronize(0)
    for round_ in range(10):
        with torch.kunlun.stream(first):
            source.fill_(round_)
        second.wait_stream(first)
        with torch.kunlun.stream(second):
            copy = source.to("kunlun:1")
            first.wait_stream(second)
            assert copy[7].item() == round_


def test_an_event_that_was_never_recorded_is_passed():
    event = torch.kunlun.Event()
    assert event.query()
    event.synchronize()
    torch.kunlun.current_stream().wait_event(event)


def test_an_event_can_be_recorded_again():
    event = torch.kunlun.Event()
    for _ in range(3):
        torch.ones(10, device="kunlun").add_(1)
        event.record()
        event.synchronize()
        assert event.query()


def test_elapsed_time_is_in_milliseconds():
    start, end = torch.kunlun.Event(enable_timing=True), torch.kunlun.Event(True)
    start.record()
    start.synchronize()
    time.sleep(0.05)
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) >= 50
    assert end.elapsed_time(start) <= -50


def test_elapsed_time_needs_timing():
    start, end = torch.kunlun.Event(), torch.kunlun.Event(enable_timing=True)
    start.record()
    end.record()
    torch.kunlun.synchronize()
    with pytest.raises(ValueError, match="enable_timing"):
        start.elapsed_time(end)


def test_an_event_stays_with_its_device(two_devices):
    event = torch.kunlun.Event()
    event.record(torch.kunlun.default_stream(0))
    with pytest.raises(ValueError, match="belongs to kunlun:0 and cannot be recorded on a stream of kunlun:1"):
        event.record(torch.kunlun.default_stream(1))
    event.record(torch.kunlun.default_stream(0))
    event.synchronize()


def test_events_are_known_by_their_class():
    event = torch.kunlun.Event()
    assert isinstance(event, torch.Event)
    assert isinstance(event, torch.kunlun.Event)
    assert not isinstance(torch.kunlun.Stream(), torch.kunlun.Event)
    assert torch.kunlun.current_stream().record_event(event) is not None
    with pytest.raises(NotImplementedError, match="graph capture"):
        torch.kunlun.Event(external=True)


def test_a_stream_has_a_native_handle():
    stream = torch.kunlun.Stream()
    assert stream.kunlun_stream != 0
    assert stream.kunlun_stream != torch.kunlun.default_stream().kunlun_stream


def test_a_stream_from_elsewhere():
    # Handles of our own streams stand in for those of another library: they are of the same driver.
    own = torch.kunlun.Stream()
    handle = own.kunlun_stream
    assert torch.kunlun.ExternalStream(handle) == own
    assert torch.kunlun.get_stream_from_external(handle, "kunlun:0") == own
    assert torch.kunlun.Stream(stream_ptr=handle).kunlun_stream == handle
    assert own._as_parameter_.value == handle
    with pytest.raises(ValueError, match="handle of a stream that exists"):
        torch.kunlun.ExternalStream(0)


LIBRARY_WITH_STREAMS = """
#include "runtime/chip/Loader.h"

extern "C" void* make_stream(int device) {
  kl_stream stream = nullptr;
  kunlun::chip::runtime().stream_create(device, 0, &stream);
  return stream;
}

extern "C" int destroy_stream(void* stream) {
  return kunlun::chip::runtime().stream_destroy(static_cast<kl_stream>(stream));
}
"""


@pytest.fixture(scope="module")
def library_with_streams(tmp_path_factory):
    """Another library, which makes streams of the same driver."""
    folder = tmp_path_factory.mktemp("streams")
    source, library = folder / "streams.cpp", folder / "streams.so"
    source.write_text(LIBRARY_WITH_STREAMS)
    native = ROOT / "torch_xpu_kunlun" / "lib" / "libtorch_kunlun.so"
    command = [os.environ.get("CXX", "g++"), "-std=c++20", "-shared", "-fPIC", f"-I{ROOT / 'csrc'}", str(source)]
    subprocess.run([*command, "-o", str(library), str(native)], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.make_stream.restype = ctypes.c_void_p
    loaded.destroy_stream.argtypes = [ctypes.c_void_p]
    return loaded


def test_a_stream_that_another_library_has_made(two_devices, library_with_streams):
    torch.kunlun.init()
    handle = library_with_streams.make_stream(1)
    foreign = torch.kunlun.ExternalStream(handle, 1)
    assert foreign == torch.kunlun.ExternalStream(handle, 1)
    assert foreign.device_index == 1
    assert foreign.kunlun_stream == handle
    assert foreign not in [torch.kunlun.Stream(1) for _ in range(32)]
    with torch.kunlun.stream(foreign):
        x = torch.ones(1000, device="kunlun:1") * 2
    foreign.synchronize()
    assert foreign.query()
    assert x.sum().item() == 2000
    del x
    torch.kunlun.empty_cache()
    for stream in (handle, torch.kunlun.default_stream(1).kunlun_stream):
        with pytest.raises(ValueError, match="belongs to kunlun:1 and not to kunlun:0"):
            torch.kunlun.ExternalStream(stream, 0)
    assert library_with_streams.destroy_stream(handle) == 0
    with pytest.raises(ValueError, match="is not a stream of the simulated chip"):
        torch.kunlun.ExternalStream(handle, 1)


@pytest.mark.parametrize(
    ("number", "error", "text"),
    [
        (12345, ValueError, "0x3039 is not a stream of the simulated chip"),
        (-1, ValueError, "expected stream_ptr to be an address, but got -1"),
        (1 << 64, ValueError, "expected stream_ptr to be an address"),
        ("12345", TypeError, "expected stream_ptr to be an int, but got str"),
    ],
)
def test_a_number_that_is_no_stream_is_refused(number, error, text):
    with pytest.raises(error, match=text):
        torch.kunlun.ExternalStream(number)
    with pytest.raises(error, match=text):
        torch.kunlun.get_stream_from_external(number)


def test_an_id_that_no_stream_has_is_refused():
    with pytest.raises(ValueError, match="there is no kunlun stream with id"):
        torch.kunlun.set_stream(torch.kunlun.Stream(stream_id=4 * 1000 + 3, device_index=0, device_type=20))


def test_generic_streams_and_events_work_together():
    stream, event = torch.Stream("kunlun"), torch.Event("kunlun", enable_timing=True)
    with stream:
        assert torch.kunlun.current_stream() == stream
        data = torch.ones(1000, device="kunlun") * 2
    stream.record_event(event)
    torch.kunlun.current_stream().wait_event(event)
    assert data.sum().item() == 2000
    assert event.device == torch.device("kunlun:0")
    other = torch.kunlun.Stream()
    other.wait_stream(stream)
    stream.wait_stream(other)
    assert not torch.kunlun.is_current_stream_capturing()


def test_what_is_neither_stream_nor_event_is_refused():
    stream = torch.kunlun.Stream()
    for value in (3, "event", torch.kunlun.Stream()):
        with pytest.raises(TypeError, match=f"expected event to be a torch.Event, but got {type(value).__name__}"):
            stream.record_event(value)
        with pytest.raises(TypeError, match=f"expected event to be a torch.Event, but got {type(value).__name__}"):
            stream.wait_event(value)
    with pytest.raises(TypeError, match=r"expected event to be a torch.Event, but got NoneType"):
        stream.wait_event(None)
    for value in (None, 3, torch.kunlun.Event()):
        with pytest.raises(TypeError, match=f"expected stream to be a torch.Stream, but got {type(value).__name__}"):
            stream.wait_stream(value)
    for use in (torch.kunlun.stream, torch.kunlun.set_stream):
        with pytest.raises(TypeError, match=r"expected stream to be a torch.Stream, but got int"):
            use(3)
    assert torch.kunlun.current_stream() == torch.kunlun.default_stream()


def test_recording_again_does_not_move_a_wait():
    first, second = torch.kunlun.Stream(), torch.kunlun.Stream()
    event = torch.kunlun.Event()
    weight = torch.ones(400, 400, device="kunlun")
    data = torch.zeros(1000, device="kunlun")
    torch.kunlun.synchronize()
    for round_ in range(1, 10):
        with torch.kunlun.stream(first):
            weight = weight @ weight / 400
            data.fill_(round_)
            event.record()
        second.wait_event(event)
        with torch.kunlun.stream(second):
            seen = data + 0
        first.wait_stream(second)
        # The same event, recorded elsewhere meanwhile; the wait above is for the earlier record.
        event.record(torch.kunlun.default_stream())
        with torch.kunlun.stream(second):
            assert seen.sum().item() == 1000 * round_


def test_errors_of_elapsed_time_are_those_of_cuda():
    start, end = torch.kunlun.Event(enable_timing=True), torch.kunlun.Event(enable_timing=True)
    with pytest.raises(ValueError, match="Both events must be recorded before calculating elapsed time"):
        start.elapsed_time(end)
    start.record()
    weight = torch.ones(2000, 2000, device="kunlun")
    for _ in range(4):
        weight = weight @ weight
    end.record()
    if not end.query():
        with pytest.raises(RuntimeError, match="Both events must be completed before calculating elapsed time"):
            start.elapsed_time(end)
    end.synchronize()
    assert start.elapsed_time(end) > 0
    plain = torch.kunlun.Event()
    plain.record()
    plain.synchronize()
    with pytest.raises(ValueError, match="Both events must be created with argument 'enable_timing=True'"):
        start.elapsed_time(plain)


def test_copies_between_devices_keep_the_order_of_both(two_devices):
    first, second = torch.kunlun.Stream(0), torch.kunlun.Stream(1)
    weight = torch.ones(400, 400, device="kunlun:0")
    source = torch.zeros(1 << 16, device="kunlun:0")
    target = torch.zeros(1 << 16, device="kunlun:1")
    torch.kunlun.synchronize(0)
    torch.kunlun.synchronize(1)
    for round_ in range(1, 8):
        with torch.kunlun.stream(first), torch.kunlun.stream(second):
            weight = weight @ weight / 400
            source.fill_(round_)
            before = target + 0  # on device 1, before the copy overwrites it
            target.copy_(source, non_blocking=True)
            source.fill_(-1)  # after the copy has read it
            after = target + 0
            assert before[-1].item() == (round_ - 1 if round_ > 1 else 0)
            assert after[0].item() == round_
        assert torch.kunlun.current_device() == 0


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("size", [100, 1 << 16, 1 << 20])
def test_copies_that_do_not_block_read_and_write_fresh_data(pinned, size):
    host = torch.zeros(size, pin_memory=pinned)
    weight = torch.ones(300, 300, device="kunlun")
    for round_ in range(6):
        weight = weight @ weight / 300
        torch.kunlun.synchronize()
        host.fill_(round_)
        device = host.to("kunlun", non_blocking=True)
        if pinned:
            torch.kunlun.current_stream().synchronize()
        host.fill_(-1)  # pageable memory may be changed at once
        assert device.eq(round_).all().item()
        device = device * 2
        result = device.to("cpu", non_blocking=True)
        torch.kunlun.current_stream().synchronize()
        assert result.eq(2 * round_).all().item()
        back = torch.empty(size, pin_memory=pinned)
        back.copy_(device + 1, non_blocking=True)
        torch.kunlun.current_stream().synchronize()
        assert back.eq(2 * round_ + 1).all().item()
