# Memory pools, allocators of a user's own, memory without caching.
import os
import subprocess
import threading
from pathlib import Path

import pytest
import torch

MIB = 1 << 20
ROOT = Path(__file__).resolve().parents[2]


def test_a_pool_keeps_its_memory_apart(fresh_memory):
    pool = torch.kunlun.MemPool()
    assert pool.use_count() == 1
    with torch.kunlun.use_mem_pool(pool):
        assert pool.use_count() == 2
        inside = torch.empty(3 * MIB, dtype=torch.uint8, device="kunlun")
    assert pool.use_count() == 1
    outside = torch.empty(3 * MIB, dtype=torch.uint8, device="kunlun")
    (segment,) = pool.snapshot()
    assert segment["segment_pool_id"] == pool.id
    assert segment["address"] <= inside.data_ptr() < segment["address"] + segment["total_size"]
    assert not segment["address"] <= outside.data_ptr() < segment["address"] + segment["total_size"]
    key = "reserved_bytes_by_private_pools." + "_".join(map(str, pool.id)) + ".all.current"
    assert torch.kunlun.memory_stats()[key] == 20 * MIB
    assert torch.kunlun.memory_stats_as_nested_dict()["reserved_bytes_by_private_pools"][pool.id]
    address = inside.data_ptr()
    del inside
    # Free again, it serves the pool only.
    assert torch.empty(3 * MIB, dtype=torch.uint8, device="kunlun").data_ptr() != address
    with torch.kunlun.use_mem_pool(pool):
        assert torch.empty(3 * MIB, dtype=torch.uint8, device="kunlun").data_ptr() == address


def test_a_tensor_outlives_its_pool(fresh_memory):
    reserved = torch.kunlun.memory_reserved()
    pool = torch.kunlun.MemPool()
    pool_id = pool.id
    with torch.kunlun.use_mem_pool(pool):
        tensor = torch.arange(1000, device="kunlun")
    del pool
    assert tensor.sum().item() == 499500
    del tensor
    torch.kunlun.empty_cache()
    assert torch.kunlun.memory_snapshot(pool_id) == []
    assert torch.kunlun.memory_reserved() <= reserved


def test_results_of_every_operator_come_from_the_pool(fresh_memory):
    source = torch.tensor([0.0, 1.0, 2.0, 0.0], device="kunlun")
    pool = torch.kunlun.MemPool()
    with torch.kunlun.use_mem_pool(pool):
        # Launched, computed on the chip's thread for a waiting caller, and of unknown shape.
        results = [source + 1, torch.linalg.inv(torch.eye(3, device="kunlun")), source.nonzero()]
    blocks = {block["address"] for segment in pool.snapshot() for block in segment["blocks"]}
    for result in results:
        assert result.untyped_storage().data_ptr() in blocks
    assert results[2].tolist() == [[1], [2]]


def test_pools_nest_and_belong_to_the_thread(two_devices, fresh_memory):
    outer, inner = torch.kunlun.MemPool(), torch.kunlun.MemPool()
    assert outer.id != inner.id
    found = {}

    def allocate(name):
        tensor = torch.empty(1, device="kunlun")
        found[name] = [pool for pool in (outer, inner) if pool.snapshot() != []]
        del tensor

    with torch.kunlun.use_mem_pool(outer):
        other_thread = threading.Thread(target=allocate, args=("thread",))
        other_thread.start()
        other_thread.join()
        with torch.kunlun.use_mem_pool(inner):
            with torch.kunlun.use_mem_pool(outer, device=1):
                pass
            allocate("inner")
        allocate("outer")
    assert found == {"thread": [], "inner": [inner], "outer": [outer, inner]}


def test_a_pool_without_splitting(fresh_memory):
    pool = torch.kunlun.MemPool(no_split=True)
    with torch.kunlun.use_mem_pool(pool):
        tensors = [torch.empty(1, device="kunlun") for _ in range(3)]
    assert len(pool.snapshot()) == len(tensors)


def test_a_pool_that_helps_out_when_memory_is_short(fresh_memory):
    size = torch.kunlun.mem_get_info()[0] * 3 // 4 // (2 * MIB) * 2 * MIB
    pool = torch.kunlun.MemPool(use_on_oom=True)
    with torch.kunlun.use_mem_pool(pool):
        address = torch.empty(size, dtype=torch.uint8, device="kunlun").data_ptr()
    assert torch.empty(size, dtype=torch.uint8, device="kunlun").data_ptr() == address
    strict = torch.kunlun.MemPool()
    del pool
    torch.kunlun.empty_cache()
    with torch.kunlun.use_mem_pool(strict):
        torch.empty(size, dtype=torch.uint8, device="kunlun")
    with pytest.raises(torch.OutOfMemoryError, match="reserved in memory pools"):
        torch.empty(size, dtype=torch.uint8, device="kunlun")


def test_without_caching_memory_goes_back_at_once(fresh_memory):
    free, _ = torch.kunlun.mem_get_info()
    with torch.kunlun.memory.caching_allocator_disabled():
        tensor = torch.zeros(8 * MIB, dtype=torch.uint8, device="kunlun")
        assert torch.kunlun.mem_get_info()[0] == free - 8 * MIB
        assert tensor.sum().item() == 0
        torch.kunlun.synchronize()
        del tensor
    torch.kunlun.empty_cache()
    assert torch.kunlun.mem_get_info()[0] == free
    tensor = torch.zeros(8 * MIB, dtype=torch.uint8, device="kunlun")
    reserved = torch.kunlun.memory_reserved()
    del tensor
    assert torch.kunlun.memory_reserved() == reserved


def test_memory_for_other_frameworks(fresh_memory):
    before = torch.kunlun.memory_allocated()
    stream = torch.kunlun.Stream()
    addresses = [
        torch.kunlun.caching_allocator_alloc(1000),
        torch.kunlun.caching_allocator_alloc(1000, "kunlun:0", stream),
        torch.kunlun.caching_allocator_alloc(1000, 0, stream.kunlun_stream),
    ]
    assert torch.kunlun.memory_allocated() == before + 3 * 1024
    for address in addresses:
        torch.kunlun.caching_allocator_delete(address)
    assert torch.kunlun.memory_allocated() == before
    with pytest.raises(TypeError, match="Invalid type for stream argument"):
        torch.kunlun.caching_allocator_alloc(1000, 0, "stream")
    with pytest.raises(RuntimeError, match="invalid device pointer: 0x1234"):
        torch.kunlun.caching_allocator_delete(0x1234)
    with pytest.raises(ValueError, match="expected size to be a number of bytes, but got -100"):
        torch.kunlun.caching_allocator_alloc(-100)
    with pytest.raises(TypeError, match="expected size to be an int, but got str"):
        torch.kunlun.caching_allocator_alloc("1000")


def test_what_is_no_pool_and_no_allocator_is_refused():
    with pytest.raises(TypeError, match=r"KunlunPluggableAllocator.allocator\(\) gives, but got str"):
        torch.kunlun.MemPool("x")
    with pytest.raises(TypeError, match=r"expected pool to be a torch.kunlun.MemPool, but got str"):
        with torch.kunlun.use_mem_pool("x"):
            raise AssertionError("entered")


OWN_ALLOCATOR = """
#include "runtime/chip/Loader.h"
#include <sys/types.h>

static long allocated = 0;
static long freed = 0;

extern "C" void* own_alloc(ssize_t size, int device, void*) {
  void* ptr = nullptr;
  const auto& runtime = kunlun::chip::runtime();
  if (size > (100 << 20) || runtime.memory_alloc(device, size, KL_MEMORY_MAIN, &ptr) != KL_SUCCESS) return nullptr;
  ++allocated;
  return ptr;
}

extern "C" void own_free(void* ptr, ssize_t, int device, void* stream) {
  kunlun::chip::runtime().stream_synchronize(static_cast<kl_stream>(stream));
  kunlun::chip::runtime().memory_free(device, ptr);
  ++freed;
}

extern "C" long own_allocated() { return allocated; }
extern "C" long own_freed() { return freed; }
"""

OWN_PROGRAM = """
import ctypes, os, torch
from torch_xpu_kunlun.kunlun.memory import KunlunPluggableAllocator

counts = ctypes.CDLL(os.environ["OWN"])
own = KunlunPluggableAllocator(os.environ["OWN"], "own_alloc", "own_free")
assert torch.kunlun.get_allocator_backend() == "native"
"""


@pytest.fixture(scope="module")
def own_allocator(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    source, library = folder / "own.cpp", folder / "own.so"
    source.write_text(OWN_ALLOCATOR)
    native = ROOT / "torch_xpu_kunlun" / "lib" / "libtorch_kunlun.so"
    compiler = os.environ.get("CXX", "g++")
    command = [compiler, "-std=c++20", "-shared", "-fPIC", f"-I{ROOT / 'csrc'}", str(source), "-o", str(library)]
    built = subprocess.run([*command, str(native)], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return library


def test_an_allocator_of_ones_own(own_allocator, check_python):
    check_python(
        OWN_PROGRAM
        + """
torch.kunlun.memory.change_current_allocator(own)
assert torch.kunlun.get_allocator_backend() == "pluggable"
x = torch.ones(1000, device="kunlun")
y = (x + 1).sum()
assert y.item() == 2000 and x.nonzero().shape == (1000, 1)
assert counts.own_allocated() >= 3
with torch.no_grad():
    x.resize_(5000)
assert x[:1000].sum().item() == 1000
try:
    torch.empty(200 << 20, dtype=torch.uint8, device="kunlun")
    raise SystemExit("not refused")
except torch.OutOfMemoryError as error:
    assert "pluggable allocator" in str(error)
try:
    torch.kunlun.memory_allocated()
    raise SystemExit("not refused")
except NotImplementedError as error:
    assert "change_current_allocator" in str(error)
torch.kunlun.empty_cache()
del x, y
assert counts.own_freed() == counts.own_allocated()
""",
        OWN=str(own_allocator),
    )


def test_an_allocator_of_ones_own_behind_a_pool(own_allocator, check_python):
    check_python(
        OWN_PROGRAM
        + """
pool = torch.kunlun.MemPool(own.allocator())
assert pool.allocator is own.allocator()
with torch.kunlun.use_mem_pool(pool):
    tensors = [torch.ones(1000, device="kunlun") for _ in range(10)]
assert counts.own_allocated() == 1
assert sum(tensors).sum().item() == 10000
del tensors, pool
torch.kunlun.empty_cache()
assert counts.own_freed() == 1
try:
    torch.kunlun.memory.change_current_allocator(own)
    raise SystemExit("not refused")
except RuntimeError as error:
    assert "already initialized" in str(error)
""",
        OWN=str(own_allocator),
    )


def test_a_missing_function_is_an_error(own_allocator):
    with pytest.raises(AttributeError, match="no_such_function"):
        torch.kunlun.memory.KunlunPluggableAllocator(str(own_allocator), "own_alloc", "no_such_function")
    with pytest.raises(OSError, match="no_such_file"):
        torch.kunlun.memory.KunlunPluggableAllocator("/no_such_file.so", "own_alloc", "own_free")
