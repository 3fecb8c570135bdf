# Streams and events: current streams, the pool, order between streams, timing.
import threading
import time

import pytest
import torch


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
    with pytest.raises(ValueError, match=r"priority of 0 \(normal\) or less \(high\), got 1"):
        torch.kunlun.Stream(priority=1)


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
    with pytest.raises(NotImplementedError, match="between processes"):
        torch.kunlun.Event(interprocess=True)


def test_a_stream_has_a_native_handle():
    stream = torch.kunlun.Stream()
    assert stream.kunlun_stream != 0
    assert stream.kunlun_stream != torch.kunlun.default_stream().kunlun_stream
