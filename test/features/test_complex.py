"""Complex tensors: pending conjugation and negation, views of the parts, algebra and gradients."""

import pytest
import torch

X = torch.complex(torch.linspace(-2, 2, 12), torch.linspace(3, -1, 12)).reshape(4, 3)

FUNCTIONS = {
    "conj": lambda t: t.conj(),
    "conj, then resolved": lambda t: t.conj().resolve_conj(),
    "imag of conj": lambda t: t.conj().imag,
    "sum of imag of conj": lambda t: t.conj().imag.sum(),
    "real of conj of transpose": lambda t: t.mH.real,
    "clone of conj": lambda t: t.conj().clone(),
    "matmul with conj": lambda t: t.mH @ t,
    "matmul of neg": lambda t: t.conj().imag @ t.real.t(),
    "vdot": lambda t: torch.vdot(t[:, 0], t[:, 1]),
    "outer with conj": lambda t: torch.outer(t[:, 0], t[:, 1].conj()),
    "polar": lambda t: torch.polar(t.abs(), t.angle()),
    "view_as_real": lambda t: torch.view_as_real(t) + 1,
    "view_as_complex": lambda t: torch.view_as_complex(torch.view_as_real(t).clone()),
    "eigenvalues": lambda t: torch.linalg.eigvals(t[:3] @ t[:3].mH),
    "fft": lambda t: torch.fft.ifft(torch.fft.fft(t.conj())),
    "where of conj": lambda t: torch.where(t.real > 0, t.conj(), t),
    "cat of conj": lambda t: torch.cat([t.conj(), t]),
    "cumprod": lambda t: t.conj().cumprod(0),
    "index of conj": lambda t: t.conj()[torch.tensor([2, 0], device=t.device)],
    "equal": lambda t: torch.tensor(torch.equal(t.conj().conj(), t)),
    "to complex128": lambda t: t.conj().to(torch.complex128),
    "real to complex": lambda t: t.real.to(torch.complex64) * 1j,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_equals_the_cpu(name):
    want, got = FUNCTIONS[name](X), FUNCTIONS[name](X.to("kunlun"))
    assert (got.is_conj(), got.is_neg(), got.stride()) == (want.is_conj(), want.is_neg(), want.stride())
    torch.testing.assert_close(got.cpu(), want, rtol=0, atol=0)


def write(t, view, value):
    view(t).copy_(value)
    return t


@pytest.mark.parametrize(
    "view", [lambda t: t.conj(), lambda t: t.conj().imag, lambda t: t.real, lambda t: t.mH, lambda t: t.imag[1:, ::2]]
)
@pytest.mark.parametrize("operation", ["copy_", "add_", "fill_", "zero_"])
def test_writes_through_views_with_pending_bits(view, operation):
    results = []
    for device in ("cpu", "kunlun"):
        t = X.clone().to(device)
        target = view(t)
        argument = () if operation == "zero_" else (torch.full((), 1.5, device=device),)
        getattr(target, operation)(*argument)
        results.append((t.cpu(), target.cpu()))
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_gradients():
    gradients = []
    for device in ("cpu", "kunlun"):
        x = X.clone().to(device).requires_grad_()
        ((x.mH @ x).abs().sum() + x.conj().imag.square().sum()).backward()
        gradients.append(x.grad.cpu())
    torch.testing.assert_close(*gradients, rtol=0, atol=0)


@pytest.mark.parametrize("adjoint", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_solutions_whose_conjugation_the_cpu_leaves_pending(left, adjoint):
    results = []
    for device in ("cpu", "kunlun"):
        lu, pivots = torch.linalg.lu_factor((X.mH @ X + torch.eye(3)).to(device))
        right = X.to(device) if not left else X.mT.to(device)
        results.append(torch.linalg.lu_solve(lu, pivots, right, left=left, adjoint=adjoint).cpu().resolve_conj())
    torch.testing.assert_close(*results, rtol=0, atol=0)
