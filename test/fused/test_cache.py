"""reshape_and_cache and reshape_and_cache_flash."""

import pytest
import torch
from common_fused import check, check_op

from torch_xpu_kunlun import ops

NAMES = ["reshape_and_cache", "reshape_and_cache_flash"]


def caches(name, blocks, block_size, heads, size, dtype):
    inner = (heads, block_size) if name == "reshape_and_cache" else (block_size, heads)
    return torch.randn(2, blocks, *inner, size).to(dtype)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float64], ids=str)
def test_tokens_go_to_their_slots(name, dtype):
    for tokens, heads, size in ((1, 1, 1), (9, 3, 20), (40, 2, 64)):
        key, value = torch.randn(2, tokens, heads, size).to(dtype)
        slots = torch.randperm(5 * 16)[:tokens]
        check(
            name, dtype, key, value, *caches(name, 5, 16, heads, size, dtype), slots, tolerance={"rtol": 0, "atol": 0}
        )


@pytest.mark.parametrize("name", NAMES)
def test_padding_is_not_written(name):
    key, value = torch.randn(2, 4, 2, 8)
    slots = torch.tensor([3, -1, 0, -1], dtype=torch.int32)
    check(name, torch.float32, key, value, *caches(name, 2, 4, 2, 8, torch.float32), slots)
    # Fewer slots than tokens: the tokens behind are padding.
    check(name, torch.float32, key, value, *caches(name, 2, 4, 2, 8, torch.float32), slots[:1])
    check(name, torch.float32, key, value, *caches(name, 2, 4, 2, 8, torch.float32), slots[:0])


@pytest.mark.parametrize("name", NAMES)
def test_parts_of_other_tensors(name):
    """One tensor holds keys and values of the cache, another the projections."""
    qkv = torch.randn(6, 4 * 2 * 8)
    key, value = qkv[:, 32:48].view(6, 2, 8), qkv[:, 48:].view(6, 2, 8)
    cache = torch.randn(3, *((2, 4) if name == "reshape_and_cache" else (4, 2)), 16)
    device_cache = cache.to("kunlun")
    slots = torch.randperm(12)[:6]
    ref = cache.clone()
    from torch_xpu_kunlun.ops import reference

    getattr(reference, name)(key, value, ref[..., :8], ref[..., 8:], slots)
    moved = qkv.to("kunlun")
    getattr(ops, name)(
        moved[:, 32:48].view(6, 2, 8),
        moved[:, 48:].view(6, 2, 8),
        device_cache[..., :8],
        device_cache[..., 8:],
        slots.to("kunlun"),
    )
    assert torch.equal(device_cache.cpu(), ref)


@pytest.mark.parametrize("name", NAMES)
def test_operator_check(name):
    key, value = torch.randn(2, 4, 2, 8)
    op = getattr(torch.ops.kunlun, name).default
    check_op(op, key, value, *caches(name, 2, 4, 2, 8, torch.float32), torch.tensor([3, -1, 0, 7]))


@pytest.mark.parametrize("name", NAMES)
def test_slots_outside_the_cache(name):
    key = torch.randn(2, 2, 8, device="kunlun")
    key_cache, value_cache = caches(name, 2, 4, 2, 8, torch.float32).to("kunlun")
    getattr(ops, name)(key, key, key_cache, value_cache, torch.tensor([0, 8], device="kunlun"))
    with pytest.raises(IndexError, match=f"{name}: slot 8 of token 1 is out of the range of a cache of 2 blocks of 4"):
        torch.kunlun.synchronize()


@pytest.mark.parametrize("device", ["kunlun", "meta"])
def test_wrong_arguments(device):
    key = torch.randn(4, 2, 8, device=device)
    cache = torch.randn(3, 2, 4, 8, device=device)
    slots = torch.zeros(4, dtype=torch.long, device=device)
    with pytest.raises(RuntimeError, match="slot_mapping must be int32 or int64, got Float"):
        ops.reshape_and_cache(key, key, cache, cache.clone(), slots.float())
    with pytest.raises(RuntimeError, match="slot_mapping names 4 tokens, but key has 3"):
        ops.reshape_and_cache(key[:3], key[:3], cache, cache.clone(), slots)
    with pytest.raises(RuntimeError, match="key_cache must be Float, got Half"):
        ops.reshape_and_cache(key, key, cache.half(), cache.clone(), slots)
    with pytest.raises(RuntimeError, match="key_cache must have size 2 in dimension 2"):
        ops.reshape_and_cache_flash(key, key, cache, cache.clone(), slots)
    with pytest.raises(RuntimeError, match="value_cache must have size 3 in dimension 0"):
        ops.reshape_and_cache(key, key, cache, cache[:2].clone(), slots)
    with pytest.raises(RuntimeError, match="key_cache is written to and must be contiguous in its last dimension"):
        ops.reshape_and_cache(key[..., :4], key, cache[..., ::2], cache.clone(), slots)
