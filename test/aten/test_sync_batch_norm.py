"""The operators that torch.nn.SyncBatchNorm is made of, against their definitions in float64."""

import pytest
import torch

EPS = 1e-3
SHAPES = [(6, 5), (4, 3, 7), (2, 3, 4, 5), (2, 3, 2, 3, 4)]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def tolerances(dtype):
    return {torch.float64: (1e-10, 1e-10), torch.float32: (2e-5, 2e-5)}.get(dtype, (2e-2, 2e-2))


def same(actual, expected, dtype, like):
    rtol, atol = tolerances(dtype)
    assert actual.dtype == like
    torch.testing.assert_close(actual.cpu().double(), expected, rtol=rtol, atol=atol)


def statistics_dtype(dtype):
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def over_channels(values, x):
    return values.view(1, -1, *[1] * (x.dim() - 2))


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request):
    return request.param


@pytest.fixture(params=SHAPES, ids=str)
def x(request, dtype):
    torch.manual_seed(0)
    return (torch.randn(request.param) * 2 + 1).to(dtype).to("kunlun")


def dims(x):
    return [0, *range(2, x.dim())]


def reference_statistics(x):
    x = x.cpu().double()
    return x.mean(dims(x)), (x.var(dims(x), correction=0) + EPS).rsqrt()


def test_statistics_and_normalisation(x, dtype):
    mean, invstd = torch.batch_norm_stats(x, EPS)
    expected_mean, expected_invstd = reference_statistics(x)
    same(mean, expected_mean, dtype, statistics_dtype(dtype))
    same(invstd, expected_invstd, dtype, statistics_dtype(dtype))
    weight, bias = (torch.randn(x.shape[1], dtype=torch.float64) for _ in range(2))
    plain = (x.cpu().double() - over_channels(expected_mean, x)) * over_channels(expected_invstd, x)
    same(torch.batch_norm_elemt(x, None, None, mean, invstd, EPS), plain, dtype, dtype)
    moved = weight.to("kunlun", statistics_dtype(dtype)), bias.to("kunlun", statistics_dtype(dtype))
    expected = plain * over_channels(weight, x) + over_channels(bias, x)
    same(torch.batch_norm_elemt(x, *moved, mean, invstd, EPS), expected, dtype, dtype)


def test_statistics_of_several_ranks(x, dtype):
    """What ranks have found for their rows gives the statistics of all rows."""
    kind = statistics_dtype(dtype)
    parts = [x[:1], x[1:]]
    means, invstds = (
        torch.stack(found) for found in zip(*(torch.batch_norm_stats(part, EPS) for part in parts), strict=True)
    )
    counts = torch.tensor([part.numel() // x.shape[1] for part in parts], dtype=kind, device="kunlun")
    running = [torch.full((x.shape[1],), 0.5, dtype=kind, device="kunlun") for _ in range(2)]
    mean, invstd = torch.batch_norm_gather_stats_with_counts(x, means, invstds, *running, 0.1, EPS, counts)
    expected_mean, expected_invstd = reference_statistics(x)
    same(mean, expected_mean, dtype, kind)
    same(invstd, expected_invstd, dtype, kind)
    same(running[0], 0.9 * 0.5 + 0.1 * expected_mean, dtype, kind)
    same(running[1], 0.9 * 0.5 + 0.1 * x.cpu().double().var(dims(x), correction=1), dtype, kind)


def test_statistics_of_ranks_with_one_count():
    x = torch.randn(6, 4, device="kunlun")
    means, invstds = (
        torch.stack(found) for found in zip(*(torch.batch_norm_stats(part, EPS) for part in x.split(3)), strict=True)
    )
    mean, invstd = torch.batch_norm_gather_stats(x, means, invstds, None, None, 0.1, EPS, 3)
    expected_mean, expected_invstd = reference_statistics(x)
    same(mean, expected_mean, torch.float32, torch.float32)
    same(invstd, expected_invstd, torch.float32, torch.float32)


def test_gradients(x, dtype):
    """Of one rank: those of batch_norm."""
    kind = statistics_dtype(dtype)
    grad = torch.randn(x.shape).to(dtype).to("kunlun")
    weight = torch.randn(x.shape[1], dtype=torch.float64)
    leaf = [
        x.cpu().double().requires_grad_(),
        weight.clone().requires_grad_(),
        torch.zeros_like(weight).requires_grad_(),
    ]
    out = torch.nn.functional.batch_norm(leaf[0], None, None, leaf[1], leaf[2], training=True, eps=EPS)
    out.backward(grad.cpu().double())

    moved = weight.to("kunlun", kind)
    mean, invstd = torch.batch_norm_stats(x, EPS)
    sums = torch.batch_norm_backward_reduce(grad, x, mean, invstd, moved, True, True, True)
    same(sums[2], leaf[1].grad, dtype, kind)
    same(sums[3], leaf[2].grad, dtype, kind)
    count = torch.tensor([x.numel() // x.shape[1]], dtype=torch.int32, device="kunlun")
    actual = torch.batch_norm_backward_elemt(grad, x, mean, invstd, moved, sums[0], sums[1], count)
    same(actual, leaf[0].grad, dtype, dtype)
    only = torch.batch_norm_backward_reduce(grad, x, mean, invstd, None, False, True, False)
    assert [only[0], only[1], only[3]] == [None] * 3
    assert torch.equal(only[2], sums[2])


def test_memory_format_is_kept():
    x = torch.randn(2, 3, 4, 5, device="kunlun").to(memory_format=torch.channels_last)
    mean, invstd = torch.batch_norm_stats(x, EPS)
    assert torch.batch_norm_elemt(x, None, None, mean, invstd, EPS).is_contiguous(memory_format=torch.channels_last)


def test_inputs_without_channels_are_refused():
    with pytest.raises(RuntimeError, match="two dimensions at least"):
        torch.batch_norm_stats(torch.ones(3, device="kunlun"), EPS)
