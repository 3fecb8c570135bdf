# # A first tensor
#
# `import torch` finds the device by itself. Asking for it starts nothing; it starts when something is put on it.

import torch

print(torch.kunlun.is_available(), torch.kunlun.device_count())
print(torch.kunlun.get_device_name())
print("started:", torch.kunlun.is_initialized())

# A tensor is made on the device, moved there, or made where another one is, as on any device of torch.

a = torch.arange(6.0, device="kunlun").reshape(2, 3)
b = torch.ones(3, 2).to("kunlun")
c = torch.zeros_like(a)
print(a @ b)
print("started:", torch.kunlun.is_initialized())
print(a.device, a.is_kunlun, c.device)

# Numbers do not depend on the device: the simulated chip computes what the CPU computes, bit for bit.

x = torch.linspace(-3, 3, 1000).reshape(10, 100)
on_cpu = torch.nn.functional.layer_norm(x, (100,)).softmax(-1)
on_kunlun = torch.nn.functional.layer_norm(x.to("kunlun"), (100,)).softmax(-1)
assert torch.equal(on_kunlun.cpu(), on_cpu)
print("equal to the CPU:", torch.equal(on_kunlun.cpu(), on_cpu))

# Views share memory on the device as on the host, and a copy into a view changes what lies under it.

rows = torch.zeros(3, 4, device="kunlun")
rows[:, 1::2].copy_(torch.tensor([1.0, 2.0]))
rows.t()[0].add_(9)
print(rows)

# Where no device is named, `torch.device` as a context or `torch.set_default_device` decides. A device has a number;
# without one it is the current device of the thread.

with torch.device("kunlun:1"):
    print(torch.ones(2).device, torch.nn.Linear(2, 2).weight.device)
with torch.kunlun.device(1):
    print(torch.kunlun.current_device(), torch.ones(1, device="kunlun").device)
print(torch.kunlun.current_device())
