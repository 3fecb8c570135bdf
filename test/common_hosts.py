"""The collectives of common_collectives.py over several hosts. Run by ranks."""

import torch
import torch.distributed as dist
from common_collectives import Collectives
from common_group import COMPLEX, FLOAT8, FLOATS

# Sums go another way than on one host: within each host first.
TOLERANCES = {
    torch.float64: 1e-15,
    torch.float32: 1e-6,
    torch.bfloat16: 8e-3,
    torch.float16: 1e-3,
    torch.complex128: 1e-15,
    torch.complex64: 1e-6,
    torch.complex32: 2e-3,
    **dict.fromkeys(FLOAT8, 0.25),
}


class CollectivesOfHosts(Collectives):
    # Between hosts bytes of every dtype are sent, so that only some pairs of ranks would refuse.
    test_batch_that_the_chip_refuses = None

    def same(self, actual, expected):
        """Equal to the last bit, but for sums of floats: the same to the last bit on every rank, and close."""
        if actual.dtype not in TOLERANCES:
            super().same(actual, expected)
            return
        actual = actual.cpu()
        assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
        wide = torch.complex128 if actual.dtype in COMPLEX else torch.float64
        tolerance = TOLERANCES[actual.dtype]
        torch.testing.assert_close(
            actual.to(wide), expected.to(wide), rtol=tolerance, atol=4 * tolerance, equal_nan=True
        )

    def test_all_ranks_have_the_same_bits(self):
        for dtype in FLOATS:
            x = torch.randn(5000, dtype=torch.float64).mul(self.rank + 1).to(dtype).to(self.device)
            dist.all_reduce(x)
            every = [torch.empty_like(x) for _ in range(self.world_size)]
            dist.all_gather(every, x)
            for other in every:
                assert torch.equal(other.cpu(), x.cpu())
