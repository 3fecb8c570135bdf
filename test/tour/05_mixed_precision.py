# # Mixed precision and random numbers
#
# Under `torch.autocast` operators that gain from it run in the lower precision, with torch's own lists.

import torch
from torch import nn

print(torch.kunlun.get_amp_supported_dtype())
layer = nn.Linear(8, 4, device="kunlun")
x = torch.ones(2, 8, device="kunlun")
with torch.autocast("kunlun", dtype=torch.bfloat16):
    y = layer(x)
    print(y.dtype, y.softmax(-1).dtype)
print(layer(x).dtype)

# Small gradients vanish in float16, so a scaler multiplies the loss. Where a gradient becomes infinite it leaves the
# step out and lowers its factor.

optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("kunlun", init_scale=1024.0)
for value in (1.0, float("inf"), 1.0):
    optimizer.zero_grad()
    before = layer.weight.detach().clone()
    with torch.autocast("kunlun", dtype=torch.float16):
        loss = layer(x * value).float().square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print("stepped:", not torch.equal(before, layer.weight), "scale:", scaler.get_scale())

# Random numbers follow from a seed and an offset, on each device for itself; the state can be taken and set.

torch.manual_seed(7)
first = torch.rand(3, device="kunlun")
state = torch.kunlun.get_rng_state()
second = torch.rand(3, device="kunlun")
torch.kunlun.set_rng_state(state)
print("repeated:", torch.equal(second, torch.rand(3, device="kunlun")), "- new:", not torch.equal(first, second))
torch.manual_seed(7)
print("from the seed:", torch.equal(first, torch.rand(3, device="kunlun")))
