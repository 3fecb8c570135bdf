"""Small things to audit, named on the command line as models:<function>."""

import torch


def classifier():
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.LayerNorm(16), torch.nn.Conv1d(3, 2, 3, padding=1)
    )
    return model, (torch.randn(3, 8),)


def on_the_host():
    """The same weights twice, made on the host; inputs by name."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4, device="cpu"), torch.nn.Linear(4, 4, device="cpu"))
    model[1].weight = model[0].weight
    return model, {"input": torch.randn(2, 4, device="cpu")}


def by_itself():
    x = torch.randn(4, 4)
    return x[torch.nonzero(x > 0)[:, 0]].sum()


def decides_by_values():
    return 1 if torch.randn(3).sum() > 0 else 2
