# Tensors that meet other libraries: DLPack, numpy, asarray, data loaders.
import numpy
import pytest
import torch


class FromElsewhere:
    """A producer of DLPack that is not a torch.Tensor."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack__(self, **options):
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


@pytest.mark.parametrize("index", [0, 1])
def test_dlpack_both_ways(two_devices, index):
    tensor = torch.arange(12.0, device=f"kunlun:{index}").reshape(3, 4)[:, 1:3]
    kind, number = tensor.__dlpack_device__()
    assert (kind.name, number) == ("kDLExtDev", index)
    for other in (
        torch.from_dlpack(tensor),
        torch.from_dlpack(FromElsewhere(tensor)),
        torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(tensor)),
        torch.from_dlpack(tensor, copy=False),
        torch.from_dlpack(tensor, device=tensor.device),
    ):
        assert other.device == tensor.device
        assert other.data_ptr() == tensor.data_ptr()
        assert other.stride() == tensor.stride()
        assert torch.equal(other, tensor)
    fresh = torch.from_dlpack(tensor, copy=True)
    assert fresh.device == tensor.device
    assert fresh.data_ptr() != tensor.data_ptr()
    assert torch.equal(fresh, tensor)
    host = torch.from_dlpack(tensor, device="cpu")
    assert torch.equal(host, tensor.cpu())


def test_the_consumer_of_dlpack_sees_finished_work():
    # Protocols without streams for this device: what was enqueued is awaited when the device is asked for.
    stream = torch.kunlun.Stream()
    with torch.kunlun.stream(stream):
        weight = torch.ones(500, 500, device="kunlun")
        for _ in range(10):
            weight = weight @ weight / 500
        result = weight + 1
        other = torch.from_dlpack(result)
    assert other.sum().item() == 2 * 500 * 500


def test_dlpack_refuses_what_it_cannot_carry():
    leaf = torch.ones(2, device="kunlun", requires_grad=True)
    with pytest.raises(BufferError, match="require grad"):
        torch.from_dlpack(leaf)
    conjugate = torch.ones(2, dtype=torch.complex64, device="kunlun").conj()
    with pytest.raises(BufferError, match="conjugate bit"):
        torch.from_dlpack(conjugate)
    with pytest.raises((BufferError, RuntimeError)):
        numpy.from_dlpack(torch.ones(2, device="kunlun"))


def test_numpy_is_refused_in_the_words_of_cuda():
    tensor = torch.ones(2, device="kunlun")
    text = (
        "can't convert kunlun:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
    )
    for function in (tensor.numpy, lambda: numpy.asarray(tensor), tensor.__array__):
        with pytest.raises(TypeError) as caught:
            function()
        assert str(caught.value) == text
    assert tensor.numpy(force=True).tolist() == [1, 1]
    assert tensor.cpu().numpy().tolist() == [1, 1]


def test_asarray_and_as_tensor(two_devices):
    tensor = torch.arange(3.0, device="kunlun:1")
    assert torch.asarray(tensor).data_ptr() == tensor.data_ptr()
    assert torch.as_tensor(tensor).data_ptr() == tensor.data_ptr()
    assert torch.asarray(tensor, copy=True).data_ptr() != tensor.data_ptr()
    assert torch.asarray(tensor, device="kunlun:0").device == torch.device("kunlun:0")
    assert torch.asarray(tensor, device="cpu").tolist() == [0, 1, 2]
    array = numpy.arange(3.0)
    for made in (
        torch.asarray(array, device="kunlun:1"),
        torch.as_tensor(array, device="kunlun:1"),
        torch.tensor(array, device="kunlun:1"),
        torch.from_numpy(array).kunlun(1),
    ):
        assert made.device == torch.device("kunlun:1")
        assert made.tolist() == [0, 1, 2]
    assert torch.frombuffer(bytearray(b"\x01\x02"), dtype=torch.uint8).kunlun().tolist() == [1, 2]


def test_the_methods_of_the_device(two_devices):
    tensor = torch.arange(4.0)
    for moved in (tensor.kunlun(1), tensor.kunlun("kunlun:1"), tensor.kunlun(torch.device("kunlun:1"))):
        assert moved.is_kunlun
        assert moved.device == torch.device("kunlun:1")
    assert not tensor.is_kunlun
    assert tensor.pin_memory().kunlun(1, non_blocking=True).tolist() == [0, 1, 2, 3]
    moved = tensor.kunlun()
    assert moved.kunlun() is moved
    assert torch.nn.Parameter(tensor).kunlun().requires_grad
    model = torch.nn.Linear(2, 2)
    weight = model.weight
    assert model.kunlun(1) is model
    assert model.weight is weight
    assert weight.is_kunlun
    assert weight.device.index == 1
    packed = torch.nn.utils.rnn.pack_sequence([tensor, tensor[:2]]).kunlun()
    assert packed.is_kunlun
    assert packed.data.is_kunlun


def test_types_by_name():
    tensor = torch.ones(2, device="kunlun")
    assert tensor.type() == "torch.kunlun.FloatTensor"
    assert torch.ones(2).type("torch.kunlun.IntTensor").dtype == torch.int32
    assert torch.ones(2).type("torch.kunlun.HalfTensor").is_kunlun
    assert torch.ones(2, dtype=torch.int64).type_as(tensor).is_kunlun


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_dataloader_pins_what_its_workers_make(start):
    data = torch.utils.data.TensorDataset(torch.arange(16.0))
    loader = torch.utils.data.DataLoader(
        data, batch_size=4, num_workers=1, pin_memory=True, multiprocessing_context=start, timeout=100
    )
    total = 0
    for (batch,) in loader:
        assert batch.is_pinned()
        total += batch.to("kunlun", non_blocking=True).sum().item()
    assert total == sum(range(16))


def test_a_dataloader_without_workers_may_return_tensors_of_the_device():
    data = [torch.full((2,), float(i), device="kunlun") for i in range(4)]
    loader = torch.utils.data.DataLoader(data, batch_size=2)
    assert [batch[:, 0].tolist() for batch in loader] == [[0, 1], [2, 3]]


@pytest.mark.parametrize("batch_size", [None, 2])
def test_forked_workers_that_touch_the_device_say_what_to_do(batch_size):
    data = [torch.ones(2, device="kunlun")] * 4
    loader = torch.utils.data.DataLoader(
        data, batch_size=batch_size, num_workers=1, multiprocessing_context="fork", timeout=100
    )
    with pytest.raises(RuntimeError, match="Cannot re-initialize kunlun in forked subprocess"):
        list(loader)
