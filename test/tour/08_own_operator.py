# # An operator of one's own
#
# In Python: a function that works on any device is registered with `torch.library`, with what it returns for fake
# tensors and with its gradient.

import torch


@torch.library.custom_op("tour::swiglu", mutates_args=())
def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(gate) * up


@swiglu.register_fake
def _(gate, up):
    return torch.empty_like(gate)


def remember(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def gradient(ctx, grad):
    gate, up = ctx.saved_tensors
    sigmoid = gate.sigmoid()
    return grad * up * sigmoid * (1 + gate * (1 - sigmoid)), grad * torch.nn.functional.silu(gate)


swiglu.register_autograd(gradient, setup_context=remember)
gate = torch.linspace(-1, 1, 4, dtype=torch.float64, device="kunlun").requires_grad_()
up = torch.ones(4, dtype=torch.float64, device="kunlun").requires_grad_()
print(swiglu(gate, up))
print("gradient:", torch.autograd.gradcheck(swiglu, (gate, up)))

# The same name may have a kernel for kunlun alone; it is taken where the tensors are on the device.


@swiglu.register_kernel("kunlun")
def on_kunlun(gate, up):
    print("kunlun's own kernel")
    return torch.nn.functional.silu(gate) * up


assert torch.equal(swiglu(gate, up).cpu(), swiglu(gate.cpu(), up.cpu()))

# In C++ the public header and `torch_xpu_kunlun.utils.cpp_extension` give streams, memory, and launches:
# `examples/custom_op` has three operators, one for each way an operator can come to the device, with gradient and test.

from torch_xpu_kunlun.utils import cpp_extension

print(cpp_extension.__all__)
