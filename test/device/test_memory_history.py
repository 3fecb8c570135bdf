# Recording who allocates what, snapshots, and torch's own tools that read them.
import pickle

import pytest
import torch

MIB = 1 << 20
memory = torch.kunlun.memory


@pytest.fixture(autouse=True)
def stop_recording():
    yield
    memory._record_memory_history(None, clear_history=True)


def actions(snapshot):
    return [entry["action"] for entry in snapshot["device_traces"][0]]


@pytest.mark.alone
def test_events_and_owners_are_recorded(fresh_memory):
    memory._record_memory_history(stacks="python", clear_history=True)
    kept = torch.empty(3 * MIB, dtype=torch.uint8, device="kunlun")
    dropped = torch.empty(1000, dtype=torch.uint8, device="kunlun")
    del dropped
    snapshot = memory._snapshot()
    assert actions(snapshot) == [
        *("segment_alloc", "alloc", "segment_alloc", "alloc", "free_requested", "free_completed", "snapshot")
    ]
    alloc = snapshot["device_traces"][0][1]
    assert alloc["addr"] == kept.data_ptr()
    assert alloc["size"] == 3 * MIB
    assert alloc["stream"] == torch.kunlun.current_stream().kunlun_stream
    assert alloc["time_us"] > 0
    assert any(frame["name"] == "test_events_and_owners_are_recorded" for frame in alloc["frames"])
    blocks = {block["address"]: block for segment in snapshot["segments"] for block in segment["blocks"]}
    assert blocks[kept.data_ptr()]["state"] == "active_allocated"
    assert blocks[kept.data_ptr()]["requested_size"] == 3 * MIB
    (frame,) = (f for f in blocks[kept.data_ptr()]["frames"] if f["name"] == "test_events_and_owners_are_recorded")
    assert frame["filename"] == __file__
    assert frame["line"] > 0
    assert memory._allocation_traceback(kept.data_ptr()) == blocks[kept.data_ptr()]["frames"]
    assert memory._allocation_traceback(0) is None


def test_a_result_from_the_chips_thread_has_its_callers_stack(fresh_memory):
    source = torch.tensor([0.0, 3.0], device="kunlun")
    memory._record_memory_history(stacks="python")
    result = source.nonzero()
    frames = memory._allocation_traceback(result.untyped_storage().data_ptr())
    assert "test_a_result_from_the_chips_thread_has_its_callers_stack" in [frame["name"] for frame in frames]


@pytest.mark.parametrize(
    ("context", "owner", "alloc", "free"),
    [(None, False, False, False), ("state", True, False, False), ("alloc", True, True, False), ("all", *[True] * 3)],
)
def test_what_is_kept_with_a_stack(context, owner, alloc, free, fresh_memory):
    memory._record_memory_history(context=context, stacks="python", clear_history=True)
    kept = torch.empty(1, device="kunlun")
    torch.empty(1, device="kunlun")
    snapshot = memory._snapshot()
    events = {entry["action"]: entry for entry in snapshot["device_traces"][0]}
    assert bool(memory._allocation_traceback(kept.data_ptr())) == owner
    assert bool(events["alloc"]["frames"]) == alloc
    assert bool(events["free_requested"]["frames"]) == free


def test_the_history_is_bounded_and_can_be_thinned(fresh_memory):
    memory._record_memory_history(max_entries=5, context=None, clear_history=True, skip_actions=["free_requested"])
    for _ in range(10):
        torch.empty(1, device="kunlun")
    assert actions(memory._snapshot()) == ["alloc", "free_completed", "alloc", "free_completed", "snapshot"]
    memory._record_memory_history(None)
    torch.empty(1, device="kunlun")
    assert actions(memory._snapshot()).count("alloc") == 2


def test_state_keeps_owners_but_no_events(fresh_memory):
    memory._record_memory_history("state", stacks="python", clear_history=True)
    kept = torch.empty(1, device="kunlun")
    assert actions(memory._snapshot()) == []
    assert memory._allocation_traceback(kept.data_ptr())


def test_the_old_way_of_asking(fresh_memory):
    memory._record_memory_history(True, trace_alloc_max_entries=100, trace_alloc_record_context=True)
    torch.empty(1, device="kunlun")
    entries = [entry for entry in memory._snapshot()["device_traces"][0] if entry["action"] == "alloc"]
    assert entries
    assert entries[-1]["frames"]
    memory._record_memory_history(False)


@pytest.mark.parametrize(
    "wrong",
    [
        {"enabled": "some"},
        {"context": "some"},
        {"stacks": "some"},
        {"max_entries": -1},
        {"skip_actions": ["some"]},
    ],
)
def test_wrong_words_are_refused(wrong):
    with pytest.raises(ValueError, match=r"some|negative"):
        memory._record_memory_history(**wrong)


def test_what_is_not_kept_is_refused():
    with pytest.raises(NotImplementedError, match="compile_context"):
        memory._record_memory_history(compile_context=True)


def test_a_text_of_the_users(fresh_memory):
    memory._record_memory_history(context=None, clear_history=True)
    memory._set_memory_metadata("step 7")
    assert memory._get_memory_metadata() == "step 7"
    torch.empty(1, device="kunlun")
    memory._set_memory_metadata("")
    torch.empty(1, device="kunlun")
    texts = [e["user_metadata"] for e in memory._snapshot()["device_traces"][0] if e["action"] == "alloc"]
    assert texts == ["step 7", ""]


def test_running_out_of_memory_is_an_event_and_observed(fresh_memory):
    seen = []
    memory._attach_out_of_memory_observer(lambda *numbers: seen.append(numbers))
    memory._record_memory_history(context="alloc", stacks="python", clear_history=True)
    free, total = torch.kunlun.mem_get_info()
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(2 * total, dtype=torch.uint8, device="kunlun")
    assert len(seen) == 1
    device, requested, available, left = seen[0]
    assert (device, available, left) == (0, total, free)
    assert requested >= 2 * total
    (oom,) = (entry for entry in memory._snapshot()["device_traces"][0] if entry["action"] == "oom")
    assert oom["size"] == 2 * total
    assert oom["device_free"] == free
    assert oom["frames"]


def test_memory_that_waits_for_another_stream_says_so(fresh_memory):
    side = torch.kunlun.Stream()
    tensor = torch.ones(MIB, device="kunlun")
    torch.kunlun.synchronize()
    with torch.kunlun.stream(side):
        for _ in range(20):
            tensor.sin()
    tensor.record_stream(side)
    address = tensor.data_ptr()
    del tensor
    states = {b["address"]: b["state"] for s in torch.kunlun.memory_snapshot() for b in s["blocks"]}
    # Merged with a neighbour, if the side stream was that quick.
    assert states.get(address, "inactive") in ("active_awaiting_free", "inactive")
    side.synchronize()


def test_torchs_tools_read_the_snapshot(fresh_memory, tmp_path):
    from torch.cuda import _memory_viz

    memory._record_memory_history(stacks="python", clear_history=True)
    kept = [torch.empty(size, device="kunlun") for size in (10, MIB, 10 * MIB)]
    del kept[1]
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 45, device="kunlun")
    memory._dump_snapshot(str(tmp_path / "snapshot.pickle"))
    snapshot = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())
    assert "allocated" in _memory_viz.segsum(snapshot)
    assert "raise OutOfMemoryError" in _memory_viz.trace(snapshot)
    assert "snapshot.pickle" in _memory_viz.trace_plot(snapshot)
    assert "snapshot.pickle" in _memory_viz.segment_plot(snapshot)
    assert snapshot["allocator_settings"]["expandable_segments"] in (True, False)
    total = sum(segment["total_size"] for segment in snapshot["segments"] if segment["device"] == 0)
    assert total == torch.kunlun.memory_reserved()
    for segment in snapshot["segments"]:
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
    assert torch.kunlun.memory_snapshot() == memory._snapshot()["segments"]
