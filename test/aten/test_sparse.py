"""Sparse tensors: making them, taking them apart, moving and computing."""

import pytest
import torch
from common_move import DEVICE


@pytest.mark.filterwarnings("ignore:Sparse")
def test_coo():
    dense = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 4.0]])
    sparse = dense.to(DEVICE).to_sparse()
    assert sparse.is_sparse
    assert sparse.device == torch.device(DEVICE, 0)
    assert torch.equal(sparse.to_dense().cpu(), dense)
    assert torch.equal(torch.sparse.mm(sparse, torch.ones(3, 2, device=DEVICE)).cpu(), dense @ torch.ones(3, 2))
    assert torch.equal((sparse + sparse).to_dense().cpu(), dense * 2)
    assert torch.equal((sparse * 3).coalesce().values().cpu(), torch.tensor([6.0, 9, 12]))
    assert torch.equal(sparse.t().to_dense().cpu(), dense.t())
    assert torch.equal(torch.sparse.sum(sparse, 0).to_dense().cpu(), dense.sum(0))
    twice = torch.sparse_coo_tensor(torch.zeros(1, 2, dtype=torch.int64), torch.ones(2), (3,), device=DEVICE)
    assert twice.coalesce().values().tolist() == [2]
    sparse.mul_(2)
    assert torch.equal(sparse.cpu().to_dense(), dense * 2)
    assert torch.equal(dense.to_sparse().to(DEVICE).to("kunlun:1").to_dense().cpu(), dense)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc], ids=str)
def test_compressed(layout):
    dense = torch.tensor([[0.0, 2.0, 0.0, 1.0], [3.0, 0.0, 4.0, 0.0]])
    block = {"blocksize": (1, 2)} if layout in (torch.sparse_bsr, torch.sparse_bsc) else {}
    sparse = dense.to(DEVICE).to_sparse(layout=layout, **block)
    assert sparse.layout is layout
    assert sparse.values().device == sparse.device == torch.device(DEVICE, 0)
    assert torch.equal(sparse.to_dense().cpu(), dense)
    assert torch.equal(sparse.cpu().to_dense(), dense)
    if layout is torch.sparse_csr:
        assert torch.equal((sparse @ torch.ones(4, 2, device=DEVICE)).cpu(), dense @ torch.ones(4, 2))
        assert torch.equal((sparse * 2).to_dense().cpu(), dense * 2)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_they_lie_on_the_device_that_was_asked_for():
    x = torch.eye(3, device="kunlun:1")
    for sparse in (x.to_sparse(), x.to_sparse_csr()):
        for made in (sparse, sparse * 2, sparse.clone(), torch.zeros_like(sparse), torch.sparse.mm(sparse, x)):
            assert made.device == torch.device("kunlun:1")
        assert sparse.to("kunlun:0").device == torch.device("kunlun:0")
    assert torch.sparse_coo_tensor(size=(3, 3), device="kunlun:1").device == torch.device("kunlun:1")
    assert torch.kunlun.current_device() == 0
