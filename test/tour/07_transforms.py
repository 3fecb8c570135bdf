# # Transforms, export and compilation
#
# What torch builds on top of operators works with the device: `torch.func`, `torch.export`, and `torch.compile` with
# the backends that need no code generation for the chip.

import torch
from torch.func import grad, hessian, vmap


def energy(x):
    return (x.sin() * x).sum()


x = torch.tensor([[0.0, 1.0], [2.0, 3.0]], device="kunlun")
print(vmap(grad(energy))(x))
print(hessian(energy)(x[0]))

# A compiled function captures its graph once and runs it with the device's kernels.

compiled = torch.compile(lambda a: torch.relu(a - 1).sum() * 2, backend="aot_eager", fullgraph=True)
print(compiled(x))

# There is no generator of code for this chip, so inductor, which is the default, is refused with what to use instead.

try:
    torch.compile(energy)(x)
except RuntimeError as error:
    print(next(line for line in str(error).splitlines() if "kunlun" in line)[:108])

# An exported program keeps the device of its weights.

program = torch.export.export(torch.nn.Linear(2, 1).to("kunlun"), (x,))
print(type(program).__name__, {tensor.device for tensor in program.state_dict.values()})
print(program.module()(x).shape)

# Fake tensors answer for shape and device and take no memory: 4 TiB here.

with torch._subclasses.FakeTensorMode():
    huge = torch.empty(1 << 20, 1 << 20, device="kunlun")
    print((huge @ huge[:, :8]).shape, huge.device)
