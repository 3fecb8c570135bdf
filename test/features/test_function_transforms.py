"""torch.func: vmap, grad, jvp, vjp, Jacobians and Hessians, functional_call; checkpointed parts of a model."""

import pytest
import torch
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, linearize, stack_module_state, vjp, vmap
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


def scalar(x):
    return (x.sin() * x.exp()).sum()


def vector(x):
    return torch.softmax(x, 0) * x.roll(1)


def matrix(x):
    return torch.nn.functional.layer_norm(x @ x.t(), (x.shape[0],))


VECTOR = torch.linspace(-1, 1, 5)
MATRIX = torch.linspace(-2, 2, 12).reshape(4, 3)

TRANSFORMS = {
    "grad": (grad(scalar), VECTOR),
    "grad of grad": (grad(lambda y: grad(scalar)(y).sum()), VECTOR),
    "vmap": (vmap(vector), MATRIX),
    "vmap over another dimension": (vmap(vector, in_dims=1, out_dims=1), MATRIX),
    "vmap in chunks": (vmap(vector, chunk_size=3), MATRIX),
    "vmap of vmap": (vmap(vmap(torch.sin)), MATRIX),
    "per-sample gradients": (vmap(grad(scalar)), MATRIX),
    "jvp": (lambda x: jvp(vector, (x,), (torch.ones_like(x),)), VECTOR),
    "vjp": (lambda x: vjp(vector, x)[1](torch.ones_like(x)), VECTOR),
    "jacrev": (jacrev(vector), VECTOR),
    "jacfwd": (jacfwd(vector), VECTOR),
    "jacrev of a matrix": (jacrev(matrix), MATRIX),
    "hessian": (hessian(scalar), VECTOR),
    "linearize": (lambda x: linearize(vector, x)[1](torch.ones_like(x)), VECTOR),
    "functionalize": (torch.func.functionalize(lambda y: y.clone().add_(1).view(-1).mul_(2)), MATRIX),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_give_the_cpus_numbers(name):
    transform, value = TRANSFORMS[name]
    want, got = transform(value), transform(value.to("kunlun"))
    for a, b in zip(torch.utils._pytree.tree_leaves(want), torch.utils._pytree.tree_leaves(got), strict=True):
        assert b.device.type == "kunlun"
        torch.testing.assert_close(b.cpu(), a, rtol=0, atol=0)


def test_random_numbers_under_vmap():
    x = torch.zeros(4, 3, device="kunlun")
    with pytest.raises(RuntimeError, match="called random operation while in randomness error mode"):
        vmap(torch.rand_like)(x)
    same = vmap(torch.rand_like, randomness="same")(x)
    assert (same == same[0]).all()
    different = vmap(torch.rand_like, randomness="different")(x)
    assert different.unique().numel() == different.numel()
    assert different.device.type == "kunlun"


def test_an_ensemble_by_functional_call_and_vmap():
    results = []
    for device in ("cpu", "kunlun"):
        torch.manual_seed(0)
        models = [torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh()).to(device) for _ in range(3)]
        parameters, buffers = stack_module_state(models)
        data = MATRIX.to(device)
        together = vmap(lambda p, b, m=models[0], x=data: functional_call(m, (p, b), (x,)))(parameters, buffers)
        for model, result in zip(models, together, strict=True):
            torch.testing.assert_close(result, model(data))
        results.append(together)
    torch.testing.assert_close(results[1].cpu(), results[0])


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointed_parts_equal_the_whole(use_reentrant):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(6, 6), torch.nn.Dropout(0.5), torch.nn.GELU(), torch.nn.Linear(6, 6)]
    model = torch.nn.Sequential(*layers).to("kunlun")
    data = torch.randn(4, 6, device="kunlun")

    def gradients(run):
        model.zero_grad()
        x = data.clone().requires_grad_()
        torch.manual_seed(3)
        run(x).square().sum().backward()
        after = torch.rand(3, device="kunlun")
        return [x.grad, after, *(parameter.grad.clone() for parameter in model.parameters())]

    want = gradients(model)
    for run in (
        lambda x: checkpoint(model, x, use_reentrant=use_reentrant),
        lambda x: checkpoint_sequential(model, 2, x, use_reentrant=use_reentrant),
    ):
        for a, b in zip(want, gradients(run), strict=True):
            assert torch.equal(a, b), "the same gradients, and the generator stands where it would have stood"


def test_a_checkpoint_without_the_state_of_the_generator():
    x = torch.ones(1000, device="kunlun", requires_grad=True)
    torch.manual_seed(0)
    y = checkpoint(torch.nn.functional.dropout, x, use_reentrant=False, preserve_rng_state=False)
    torch.rand(1, device="kunlun")
    y.sum().backward()
    assert not torch.equal(x.grad, y.detach()), "the mask was drawn anew"
    torch.manual_seed(0)
    x.grad = None
    y = checkpoint(torch.nn.functional.dropout, x, use_reentrant=False)
    torch.rand(1, device="kunlun")
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())
