"""KUNLUN_AUTOCOMPARE: every operator's result is compared with the CPU's; a difference is told and can be repeated."""

import textwrap

import pytest
import torch

from torch_xpu_kunlun.autocompare._copies import host_copies

INSTALL = """
import os, threading, warnings
import torch
from torch_xpu_kunlun import autocompare
autocompare.install(os.environ["CASES"], raises=os.environ.get("RAISES") != "no")
F = torch.nn.functional
line = torch.linspace(-5, 5, 7).to("kunlun")
"""


@pytest.fixture
def compare(run_python, tmp_path):
    """Runs code with operators compared; returns how the process ended."""

    def run(code: str, **environment: str):
        return run_python(INSTALL + textwrap.dedent(code), CASES=str(tmp_path / "cases"), **environment)

    return run


@pytest.fixture
def check_compare(compare):
    def run(code: str, **environment: str) -> str:
        done = compare(code, **environment)
        assert done.returncode == 0, done.stderr
        return done.stderr

    return run


def test_what_is_right_passes_and_is_counted_forward_backward_and_on_every_thread(check_compare):
    told = check_compare(
        """
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten(),
            torch.nn.Linear(64, 5),
        ).to("kunlun")
        model(torch.randn(2, 3, 6, 6, device="kunlun")).square().mean().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        q = torch.randn(1, 2, 8, 16, device="kunlun", requires_grad=True)
        F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
        thread = threading.Thread(target=lambda: torch.sort(line[::2]))
        thread.start(); thread.join()
        line.unsqueeze(0).add_(1).t_()
        torch.add(line, 1, out=torch.empty(0, device="kunlun"))
        assert (line.double() + 1).unique().numel() == 7
        (torch.arange(4, device="kunlun:1") & 3).nonzero()
        counts = autocompare.report()
        assert counts["differing"] == {} and counts["not_compared"] == {}, counts
        for name in ("convolution_overrideable", "convolution_backward_overrideable", "sort.stable", "addmm",
                     "native_batch_norm", "threshold_backward", "add_.Tensor", "add.out", "_unique2", "nonzero",
                     "_scaled_dot_product_fused_attention_overrideable_backward"):
            assert counts["compared"]["aten::" + name] > 0, (name, sorted(counts["compared"]))
        for name in ("as_strided", "view", "t", "empty.memory_format", "normal_"):  # views, memory, random numbers
            assert "aten::" + name not in counts["compared"]
        """
    )
    assert "compared with the CPU, 0 differed; 0 calls could not be compared" in told


def test_a_wrong_operator_raises_at_the_call_and_leaves_a_program_that_repeats_it(
    compare, wrong_chip, tmp_path, run_python
):
    done = compare("F.hardsigmoid(line[:4])", KUNLUN_CHIP=wrong_chip)
    assert done.returncode == 1
    for part in (
        "AutocompareMismatch: aten::hardsigmoid gave another result on kunlun than on the CPU",
        "Greatest absolute difference: 0.25 at index (2,)",
        "Arguments: float32[4] strides [1]",
        "Served by: aten::hardsigmoid.out (launcher)",
        f"To repeat it: python {tmp_path / 'cases' / 'aten_hardsigmoid_0.py'}",
        "1 differed",
    ):
        assert part in done.stderr, done.stderr
    program = (tmp_path / "cases" / "aten_hardsigmoid_0.py").read_text()
    runpy = f"import runpy; runpy.run_path({str(tmp_path / 'cases' / 'aten_hardsigmoid_0.py')!r})"
    assert "torch.ops.aten.hardsigmoid.default" in program
    again = run_python(runpy, KUNLUN_CHIP=wrong_chip)
    assert again.returncode == 1
    assert "Greatest absolute difference: 0.25 at index (2,)" in again.stderr
    right = run_python(runpy, KUNLUN_CHIP="sim")
    assert (right.returncode, right.stdout) == (0, "equal\n"), right.stderr


def test_programs_repeat_calls_with_all_kinds_of_arguments(check_compare, run_python, tmp_path):
    check_compare(
        """
        autocompare._difference = lambda *arguments: "said to differ"
        torch.add(line, 2.5, alpha=2, out=torch.empty(0, device="kunlun"))
        line.view(7, 1).t()[:, ::2].clamp_(min=float("-inf"), max=3)
        torch.cat([line, line[2:]])
        line[torch.tensor([1, 2], device="kunlun"), ]
        line + torch.tensor(2.0, dtype=torch.float64)
        torch.arange(3, device="kunlun", dtype=torch.int16) & 1
        F.conv1d(line.view(1, 1, 7), torch.ones(2, 1, 3, device="kunlun"))
        """,
        RAISES="no",
    )
    programs = sorted((tmp_path / "cases").glob("*.py"))
    names = {path.name.rsplit("_", 1)[0] for path in programs}
    assert names >= {
        "aten_add.out", "aten_clamp_", "aten_cat", "aten_index.Tensor", "aten_add.Tensor", "aten_bitwise_and.Tensor",
        "aten_convolution_overrideable",
    }, names  # fmt: skip
    done = run_python(f"import runpy\nfor path in {[str(path) for path in programs]!r}: runpy.run_path(path)")
    assert (done.returncode, done.stdout) == (0, "equal\n" * len(programs)), done.stderr


def test_warn_tells_once_for_each_operator_and_goes_on(check_compare, wrong_chip):
    check_compare(
        """
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for _ in range(3):
                F.hardsigmoid(line)
            F.hardsigmoid(line, inplace=True)
        assert [str(one.message).split()[0] for one in told] == ["aten::hardsigmoid", "aten::hardsigmoid_"], told
        assert all(one.category is autocompare.AutocompareWarning for one in told)
        assert "<test>" in str(told[0].message).partition("Called from")[2]  # where the call was
        assert autocompare.report()["differing"] == {"aten::hardsigmoid": 3, "aten::hardsigmoid_": 1}
        """,
        KUNLUN_CHIP=wrong_chip,
        RAISES="no",
    )


def test_a_wrong_operator_is_found_inside_backward(compare, wrong_chip):
    done = compare(
        """
        class Strange(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x + 1
            @staticmethod
            def backward(ctx, grad):
                return F.hardsigmoid(grad)
        x = line.clone().requires_grad_()
        Strange.apply(x).backward(torch.ones(7, device="kunlun"))
        """,
        KUNLUN_CHIP=wrong_chip,
    )
    assert done.returncode == 1
    assert "AutocompareMismatch: aten::hardsigmoid" in done.stderr


def test_errors_are_the_operators_own(check_compare):
    check_compare(
        """
        for call, error in ((lambda: line[torch.tensor([9], device="kunlun")], IndexError),
                            (lambda: line @ line[:3], RuntimeError)):
            try:
                call()
            except error as raised:
                assert not isinstance(raised, autocompare.AutocompareMismatch), raised
            else:
                raise AssertionError("not raised")
        assert (line + 1).sum().item() == 7
        """
    )


def test_the_variables_switch_it_on_and_are_checked(run_new_python, wrong_chip, tmp_path):
    code = "import torch; torch.nn.functional.hardsigmoid(torch.zeros(3, device='kunlun'))"
    folder = tmp_path / "elsewhere"
    done = run_new_python(code, KUNLUN_CHIP=wrong_chip, KUNLUN_AUTOCOMPARE="1", KUNLUN_AUTOCOMPARE_DIR=str(folder))
    assert "AutocompareMismatch" in done.stderr
    assert {path.name for path in folder.iterdir()} == {"aten_hardsigmoid_0.py", "aten_hardsigmoid_0.pt"}
    refused = run_new_python("import torch_xpu_kunlun", KUNLUN_AUTOCOMPARE="yes")
    assert 'KUNLUN_AUTOCOMPARE="yes" is not understood; accepted: 0, 1 or warn' in refused.stderr


@pytest.mark.parametrize("device", ["cpu", "kunlun"])
def test_copies_keep_strides_offsets_sharing_and_bits_and_take_no_more_than_needed(device):
    base = torch.arange(1000.0, device=device)
    first, second = base[100:110:3], base[104:120].view(4, 4).t()
    number = torch.complex(base[:4], base[4:8])
    copies = host_copies(([first, second], {"conj": number.conj(), "neg": torch._neg_view(base[:2]), "other": 3}))
    (a, b), named = copies
    for copy, original in ((a, first), (b, second), (named["conj"], number.conj()), (named["neg"], -base[:2])):
        assert torch.equal(copy, original.cpu())
        assert copy.device.type == "cpu"
    assert (a.stride(), b.stride()) == (first.stride(), second.stride())
    assert named["conj"].is_conj()
    assert named["neg"].is_neg()
    assert named["other"] == 3
    a.fill_(-1)
    assert b[0, 0] == 104  # 106 is the first that both see
    assert b[2, 0] == -1
    assert base[100] == 100  # the originals are as they were
    assert a.untyped_storage().nbytes() <= 124 * 4
