# Devices: count, current device and its contexts, properties, torch.accelerator.
import threading

import pytest
import torch


def test_count_and_availability():
    assert torch.kunlun.is_available()
    assert torch.kunlun.device_count() == torch.accelerator.device_count() >= 1
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("kunlun")


def test_set_device_changes_the_current_device(two_devices):
    assert torch.kunlun.current_device() == 0
    torch.kunlun.set_device(1)
    assert torch.kunlun.current_device() == torch.accelerator.current_device_index() == 1
    assert torch.empty(2, device="kunlun").device == torch.device("kunlun:1")
    torch.kunlun.set_device("kunlun:0")
    assert torch.kunlun.current_device() == 0
    torch.kunlun.set_device(torch.device("kunlun", 1))
    assert torch.kunlun.current_device() == 1
    torch.kunlun.set_device(-1)
    assert torch.kunlun.current_device() == 1


def test_device_context_restores_the_device_also_after_an_error(two_devices):
    with torch.kunlun.device(1):
        assert torch.kunlun.current_device() == 1
        with torch.kunlun.device("kunlun:0"):
            assert torch.kunlun.current_device() == 0
        with torch.kunlun.device(None), torch.kunlun.device(-1):
            assert torch.kunlun.current_device() == 1
    assert torch.kunlun.current_device() == 0
    with pytest.raises(KeyError), torch.kunlun.device(1):
        raise KeyError
    assert torch.kunlun.current_device() == 0


def test_device_of_follows_a_tensor(two_devices):
    tensor = torch.empty(1, device="kunlun:1")
    with torch.kunlun.device_of(tensor):
        assert torch.kunlun.current_device() == 1
    with torch.kunlun.device_of(torch.empty(1)):
        assert torch.kunlun.current_device() == 0


def test_torch_contexts_choose_the_device(two_devices):
    with torch.device("kunlun:1"):
        assert torch.empty(1).device == torch.device("kunlun:1")
    with torch.accelerator.device_index(1):
        assert torch.kunlun.current_device() == 1
    assert torch.kunlun.current_device() == 0
    assert torch.device(1) == torch.device("kunlun:1")


def test_the_current_device_belongs_to_the_thread(two_devices):
    seen = []

    def work():
        seen.append(torch.kunlun.current_device())
        torch.kunlun.set_device(1)
        seen.append(torch.kunlun.current_device())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [0, 1]
    assert torch.kunlun.current_device() == 0


@pytest.mark.parametrize("index", [63, 64, 100, 127, 1000])
def test_a_device_that_does_not_exist_is_refused(index):
    with pytest.raises(RuntimeError, match="invalid kunlun device ordinal"):
        torch.kunlun.set_device(index)
    with pytest.raises(RuntimeError, match="invalid kunlun device ordinal"), torch.kunlun.device(index):
        pass
    with pytest.raises(RuntimeError, match="invalid kunlun device ordinal"):
        torch.kunlun.get_device_properties(index)
    assert torch.kunlun.current_device() == 0
    assert torch.ones(2, device="kunlun").sum().item() == 2


def test_a_tensor_on_a_device_that_does_not_exist_is_refused():
    with pytest.raises(RuntimeError, match="invalid kunlun device ordinal 63: this process sees"):
        torch.empty(1, device="kunlun:63")
    assert torch.ones(2, device="kunlun").sum().item() == 2


@pytest.mark.parametrize(
    ("device", "error", "text"),
    [
        ("cpu", ValueError, "Expected a kunlun device, but got: cpu"),
        (torch.device("meta"), ValueError, "Expected a kunlun device"),
        (None, ValueError, "got None"),
        (1.5, TypeError, "but got float"),
        ([0], TypeError, "but got list"),
    ],
)
def test_what_is_no_device_is_refused(device, error, text):
    with pytest.raises(error, match=text):
        torch.kunlun.set_device(device)


def test_properties():
    properties = torch.kunlun.get_device_properties()
    assert properties.name == torch.kunlun.get_device_name()
    assert (properties.major, properties.minor) == torch.kunlun.get_device_capability("kunlun:0")
    free, total = torch.kunlun.mem_get_info()
    assert 0 < free <= total == properties.total_memory
    assert properties.multi_processor_count >= 1
    assert "total_memory=" in repr(properties)


def test_capability_lists_the_dtypes_that_tensors_may_have():
    supported = torch.accelerator.get_device_capability("kunlun:0")["supported_dtypes"]
    assert {torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64} <= set(supported)
    assert torch.qint8 not in supported


def test_a_device_is_no_peer_of_itself(two_devices):
    assert not torch.kunlun.can_device_access_peer(0, 0)
    expected = torch.kunlun.get_device_properties(0).has_peer_access
    assert torch.kunlun.can_device_access_peer(0, 1) == expected


def test_names_of_torch_cuda_are_there():
    names = [
        "is_available",
        "device_count",
        "current_device",
        "set_device",
        "device",
        "device_of",
        "synchronize",
        "current_stream",
        "default_stream",
        "stream",
        "set_stream",
        "Stream",
        "Event",
        "StreamContext",
        "get_device_name",
        "get_device_properties",
        "get_device_capability",
        "is_initialized",
        "init",
        "manual_seed",
        "manual_seed_all",
        "seed",
        "seed_all",
        "initial_seed",
        "get_rng_state",
        "get_rng_state_all",
        "set_rng_state",
        "set_rng_state_all",
        "default_generators",
        "is_bf16_supported",
        "memory_allocated",
        "max_memory_allocated",
        "memory_reserved",
        "max_memory_reserved",
        "memory_stats",
        "memory_stats_as_nested_dict",
        "memory_summary",
        "reset_peak_memory_stats",
        "reset_accumulated_memory_stats",
        "mem_get_info",
        "empty_cache",
        "can_device_access_peer",
        "set_per_process_memory_fraction",
        "get_per_process_memory_fraction",
    ]
    missing = [name for name in names if not hasattr(torch.kunlun, name)]
    assert missing == []
    assert [name for name in names if not hasattr(torch.cuda, name)] == []
    with pytest.raises(AttributeError, match=r"module 'torch.kunlun' has no attribute 'nothing'"):
        torch.kunlun.nothing  # noqa: B018


def test_submodules_are_imported_once():
    import torch.kunlun.memory as memory

    assert memory is torch.kunlun.memory


def test_methods_of_tensors_modules_and_storages():
    tensor = torch.arange(4.0)
    assert tensor.kunlun().is_kunlun
    assert torch.equal(tensor.kunlun().cpu(), tensor)
    assert next(torch.nn.Linear(2, 2).kunlun().parameters()).is_kunlun
    assert tensor.untyped_storage().kunlun().device.type == "kunlun"


def test_dlpack_goes_round():
    tensor = torch.arange(6.0, device="kunlun").reshape(2, 3)
    kind, index = tensor.__dlpack_device__()
    assert (kind.name, index) == ("kDLExtDev", 0)
    other = torch.from_dlpack(tensor)
    assert other.device == tensor.device
    assert other.data_ptr() == tensor.data_ptr()
    assert torch.ones(1).__dlpack_device__()[0].name == "kDLCPU"


def test_storage_resize_keeps_the_contents():
    tensor = torch.arange(8.0, device="kunlun")
    storage = tensor.untyped_storage()
    storage.resize_(64)
    assert tensor.tolist() == list(range(8))
    storage.resize_(16)
    assert tensor[:4].tolist() == [0, 1, 2, 3]
    storage.resize_(0)
    assert storage.nbytes() == 0
    storage.resize_(32)
    assert storage.nbytes() == 32


def test_autocast_dtypes():
    assert torch.kunlun.get_amp_supported_dtype() == [torch.float16, torch.bfloat16]
    assert torch.kunlun.is_bf16_supported()
    with torch.kunlun.amp.autocast(dtype=torch.bfloat16):
        assert torch.is_autocast_enabled("kunlun")
        assert torch.get_autocast_dtype("kunlun") == torch.bfloat16
    assert torch.kunlun.amp.GradScaler(enabled=False).is_enabled() is False


def test_sensors():
    # The simulated chip measures its own load; it has no thermometer, and says so.
    torch.kunlun.synchronize()
    assert torch.kunlun.utilization() == 0
    weight = torch.ones(2048, 2048, device="kunlun")
    for _ in range(4):
        weight = weight @ weight
    assert 0 <= torch.kunlun.utilization("kunlun:0") <= 100
    for sensor in ("temperature", "power_draw", "clock_rate", "memory_usage"):
        with pytest.raises(NotImplementedError, match="the simulated chip has no sensor for"):
            getattr(torch.kunlun, sensor)()


def test_what_the_library_is_compiled_for():
    assert torch.kunlun.get_arch_list() == []
    assert torch.kunlun.get_gencode_flags() == ""
    assert torch.kunlun.is_tf32_supported() is False


def test_peers_that_do_not_exist(two_devices):
    with pytest.raises(AssertionError, match="Invalid peer device id: 60"):
        torch.kunlun.can_device_access_peer(0, 60)
    with pytest.raises(AssertionError, match="Invalid device id: 60"):
        torch.kunlun.can_device_access_peer(60, 0)


def test_the_accelerator_interface(two_devices):
    assert torch.accelerator.current_accelerator() == torch.device("kunlun")
    assert torch.accelerator.current_accelerator(check_available=True) == torch.device("kunlun")
    assert torch.accelerator.is_available()
    assert torch.accelerator.device_count() == torch.kunlun.device_count()
    torch.accelerator.set_device_index("kunlun:1")
    assert torch.accelerator.current_device_index() == torch.accelerator.current_device_idx() == 1
    torch.accelerator.set_device_idx(0)
    assert torch.kunlun.current_device() == 0
    with torch.accelerator.device_index(1):
        tensor = torch.ones(1000, device="kunlun")
        assert tensor.device.index == 1
        assert torch.accelerator.current_stream() == torch.kunlun.current_stream(1)
    assert torch.accelerator.memory_allocated(1) == torch.kunlun.memory_allocated(1) > 0
    assert torch.accelerator.memory_reserved("kunlun:1") == torch.kunlun.memory_reserved(1)
    assert torch.accelerator.max_memory_allocated(1) >= torch.accelerator.memory_allocated(1)
    assert torch.accelerator.max_memory_reserved(1) >= torch.accelerator.memory_reserved(1)
    stats = torch.accelerator.memory_stats(1)
    assert stats["allocated_bytes.all.current"] == torch.kunlun.memory_allocated(1)
    torch.accelerator.reset_peak_memory_stats(1)
    torch.accelerator.reset_accumulated_memory_stats(1)
    assert torch.accelerator.memory_stats(1)["allocation.all.allocated"] == 0
    assert torch.accelerator.get_memory_info(1) == torch.kunlun.mem_get_info(1)
    torch.accelerator.synchronize("kunlun:1")
    torch.accelerator.empty_cache()
    torch.accelerator.empty_host_cache()
    assert tensor.sum().item() == 1000
    with pytest.raises(RuntimeError, match="invalid kunlun device ordinal 60"):
        torch.accelerator.set_device_index(60)
