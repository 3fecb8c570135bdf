"""Loads my_ops.cpp, gives `scaled_add` a gradient and a shape, and uses all three operators on kunlun."""

from pathlib import Path

import torch

from torch_xpu_kunlun.utils.cpp_extension import load


def build(**options) -> None:
    """Compiles (once; afterwards it takes the finished library) and loads the operators ``torch.ops.my_ops.*``."""
    load("my_ops", [Path(__file__).with_name("my_ops.cpp")], is_python_module=False, **options)

    @torch.library.register_fake("my_ops::scaled_add")
    def shape(x, y, alpha):
        return torch.empty_like(x)

    def remember(ctx, inputs, output):
        ctx.alpha = inputs[2]

    def gradient(ctx, grad):
        return grad, grad * ctx.alpha, None

    torch.library.register_autograd("my_ops::scaled_add", gradient, setup_context=remember)


def main() -> None:
    build()
    x = torch.arange(4.0, device="kunlun").requires_grad_()
    y = torch.ones(4, device="kunlun")
    result = torch.ops.my_ops.scaled_add(x, y, 0.5)
    print("scaled_add:", result)
    result.square().sum().backward()
    print("its gradient:", x.grad)
    print("hypot3:", torch.ops.my_ops.hypot3(y, y * 2, y * 2))
    print("clip:", torch.ops.my_ops.clip(x.detach(), 1.5))
    compiled = torch.compile(lambda a: torch.ops.my_ops.scaled_add(a, a, 2.0).sum(), backend="aot_eager")
    print("compiled:", compiled(y))


if __name__ == "__main__":
    main()
