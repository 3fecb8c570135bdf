# # Training a small network
#
# Two spirals, a network that tells them apart, and nothing but torch's own parts. Random numbers are drawn on the CPU
# here, so that both devices begin from the same ones.

import copy
import tempfile

import torch
from torch import nn


def spirals(count):
    torch.manual_seed(0)
    angle = torch.linspace(0.5, 3.0, count) * torch.pi
    arms = [torch.stack([angle.cos(), angle.sin()], 1) * angle[:, None] * sign for sign in (1, -1)]
    points = torch.cat(arms) / 9 + torch.randn(2 * count, 2) * 0.01
    return points, torch.cat([torch.zeros(count), torch.ones(count)]).long()


points, labels = spirals(200)
model = nn.Sequential(nn.Linear(2, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 2))
print(points.shape, sum(p.numel() for p in model.parameters()), "parameters")

# The same function trains on any device. `Module.to` moves parameters in place: an optimizer made before or after holds
# the right ones.


def train(model, device, steps=200):
    model = copy.deepcopy(model).to(device)
    x, y = points.to(device), labels.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return model, torch.stack(losses).cpu()


trained, losses = train(model, "kunlun")
accuracy = (trained(points.to("kunlun")).argmax(1).cpu() == labels).float().mean()
print(f"loss {losses[0]:.1f} at first, small in the end: {bool(losses[-1] < 0.1)}, accuracy {accuracy:.2f}")

# The losses are the CPU's, bit for bit, because the same kernels ran in the same order.

_, losses_of_the_cpu = train(model, "cpu")
assert torch.equal(losses, losses_of_the_cpu)
print("equal to the CPU:", torch.equal(losses, losses_of_the_cpu))

# A checkpoint says where its tensors lay; `map_location` brings them elsewhere.

with tempfile.NamedTemporaryFile() as file:
    torch.save(trained.state_dict(), file.name)
    print(torch.load(file.name)["0.weight"].device)
    print(torch.load(file.name, map_location="cpu")["0.weight"].device)
    print(torch.load(file.name, map_location="kunlun:1")["0.weight"].device)
