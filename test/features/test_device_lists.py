"""Functions whose implementation in torch knows a list of devices: distances, deviations, windows and their like."""

import pytest
import torch

X = torch.linspace(-3, 3, 24).reshape(6, 4).sin()


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 3.0, float("inf")])
@pytest.mark.parametrize("rows", [6, 30], ids=["few rows", "enough rows for the product"])
def test_distances(p, rows):
    results = []
    for device in ("cpu", "kunlun"):
        x = torch.linspace(-3, 3, rows * 4).reshape(rows, 4).sin().to(device).requires_grad_()
        across, within = torch.cdist(x, x * 2, p=p), torch.pdist(x, p)
        (across.sum() + within.sum()).backward()
        results.append([across.detach().cpu(), within.detach().cpu(), x.grad.cpu()])
    torch.testing.assert_close(*results, rtol=0, atol=0)


@pytest.mark.parametrize(
    "function",
    [
        torch.std,
        lambda x: torch.std(x, 0, correction=0),
        lambda x: torch.var(x, (0, 1), keepdim=True),
        lambda x: torch.std_mean(x, 1),
        torch.var_mean,
        lambda x: torch.nanmean(x, 0),
        torch.nanmedian,
        lambda x: torch.quantile(x, 0.3, dim=1),
        lambda x: torch.nan_to_num(x / 0),
        lambda x: torch.histogram(x.flatten(), 4)[0],
        lambda x: torch.logcumsumexp(x, 0),
        lambda x: torch.renorm(x, 2, 0, 1.0),
        lambda x: torch.nn.functional.cosine_similarity(x, x.flip(0)),
        lambda x: torch.nn.functional.pairwise_distance(x, x.flip(0)),
        lambda x: torch.nn.functional.ctc_loss(
            x.log_softmax(1).unsqueeze(1),
            torch.tensor([[1, 2]], device=x.device),
            torch.tensor([6], device=x.device),
            torch.tensor([2], device=x.device),
        ),
        lambda x: torch.stft(x.flatten(), 8, window=torch.hann_window(8, device=x.device), return_complex=True),
        lambda x: torch.linalg.matrix_norm(x, "nuc"),
        lambda x: torch.tril_indices(3, 3, device=x.device),
        lambda x: torch.nn.functional.batch_norm(x, None, None, training=True),
        lambda x: torch.nn.utils.rnn.pack_padded_sequence(x.unsqueeze(0), [6], batch_first=True).data,
        lambda x: torch.segment_reduce(x, "sum", lengths=torch.tensor([2, 4], device=x.device), axis=0),
        lambda x: torch.nn.functional.embedding_bag(
            torch.tensor([1, 2, 4], device=x.device), x, torch.tensor([0, 2], device=x.device), mode="mean"
        ),
    ],
)
def test_equals_the_cpu(function):
    want, got = function(X), function(X.to("kunlun"))
    for a, b in zip(torch.utils._pytree.tree_leaves(want), torch.utils._pytree.tree_leaves(got), strict=True):
        assert b.device.type == "kunlun"
        torch.testing.assert_close(b.cpu(), a, rtol=0, atol=0)
