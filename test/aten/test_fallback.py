"""A chip whose memory the host cannot reach: launchers work, everything else is computed on copies, under the policy.

Every test runs in a process of its own, because a chip is opened once.
"""

import textwrap

import pytest

# Whatever the suite itself runs under.
DEFAULT = {"KUNLUN_SIM_HOST_ADDRESSABLE": "0", "KUNLUN_FALLBACK": "warn"}
START = """
import warnings, torch, torch_xpu_kunlun as extension
counts = extension.operator_statistics
x = torch.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, 4.0]], device="kunlun")
"""


@pytest.fixture
def check_fallback(check_python):
    return lambda code, **environment: check_python(START + textwrap.dedent(code), **(DEFAULT | environment))


def test_launchers_need_no_fallback(check_fallback):
    check_fallback(
        """
        y = (x @ x.T + 1).softmax(1).sum()
        z = torch.nn.functional.layer_norm(x, (3,)).argmax()
        assert abs(y.item() - 2) < 1e-6
        assert z.item() == torch.nn.functional.layer_norm(x.cpu(), (3,)).argmax()
        statistics = counts()
        assert statistics["launcher"] >= 6
        assert statistics["fallback"] == statistics["boxed"] == statistics["host_call"] == 0, statistics
        """,
        KUNLUN_FALLBACK="error",
    )


def test_others_are_computed_on_copies_counted_and_warned_of_once(check_fallback):
    check_fallback(
        """
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for _ in range(3):
                assert torch.kthvalue(x, 2).values.tolist() == [2, 4]
            assert torch.nonzero(x > 2).tolist() == [[0, 0], [1, 1], [1, 2]]
        text = [str(one.message) for one in seen]
        assert len(text) == 2, text
        for part in ("'aten::kthvalue.values' has no kernel on Kunlun", "(driver sim)", "Float[2, 3]",
                     "computed on the host, on copies", "KUNLUN_FALLBACK=error", "warn;allow=aten::kthvalue.values"):
            assert part in text[0], (part, text[0])
        statistics = counts()
        assert statistics["fallback"] == sum(statistics["fallback_ops"].values()) == 4, statistics
        assert statistics["fallback_ops"]["aten::nonzero"] == 1
        assert statistics["boxed"] == 0
        extension.reset_operator_statistics()
        assert counts()["fallback"] == 0 and counts()["fallback_ops"] == {}
        """
    )


def test_results_arguments_and_devices_are_right(check_fallback):
    check_fallback(
        """
        host = x.cpu()
        assert torch.equal(torch.linalg.qr(x).Q.cpu(), torch.linalg.qr(host).Q)
        assert torch.unique(x).device == x.device
        assert torch.equal(torch.cdist(x, x).cpu(), torch.cdist(host, host))
        out = torch.empty(0, dtype=torch.int64, device="kunlun:1")
        torch.nonzero(x.to("kunlun:1"), out=out)  # resized, and on the other device
        assert out.device.index == 1 and torch.equal(out.cpu(), torch.nonzero(host))
        weight = torch.ones(4, 3, requires_grad=True, device="kunlun")
        torch.nn.functional.embedding_bag(torch.tensor([[0, 1]], device="kunlun"), weight).sum().backward()
        assert weight.grad.tolist() == [[0.5] * 3] * 2 + [[0.0] * 3] * 2
        y = torch.zeros(2, 3, device="kunlun")
        y.t().put_(torch.tensor([1], device="kunlun"), torch.tensor([7.0], device="kunlun"))  # in place, on a view
        assert y.tolist() == [[0, 0, 0], [7, 0, 0]], y.tolist()
        assert counts()["fallback"] > 0
        """,
        KUNLUN_FALLBACK="allow",
    )


def test_random_numbers_follow_the_devices_generator(check_fallback):
    check_fallback(
        """
        torch.manual_seed(3)
        first = torch.poisson(x * 10).tolist()
        second = torch.poisson(x * 10).tolist()
        torch.manual_seed(3)
        assert torch.poisson(x * 10).tolist() == first != second
        assert counts()["fallback_ops"] == {"aten::poisson": 3}, counts()
        """,
        KUNLUN_FALLBACK="allow",
    )


def test_the_policy_error(check_fallback):
    check_fallback(
        """
        assert issubclass(extension.UnsupportedOperatorError, NotImplementedError)
        for call in (lambda: torch.nonzero(x), lambda: torch.ops.aten.nonzero(x)):
            try:
                call()
            except extension.UnsupportedOperatorError as error:
                text = str(error)
            else:
                raise AssertionError("not raised")
            for part in ("'aten::nonzero'", "Float[2, 3]", "driver sim", "KUNLUN_FALLBACK=warn",
                         "error;allow=aten::nonzero", "set_fallback_policy"):
                assert part in text, (part, text)
        assert counts()["fallback"] == 0
        assert (x + 1).sum().item() == 21  # the process goes on
        extension.set_fallback_policy("error;allow=aten::nonzero")
        assert torch.nonzero(x > 2).shape == (3, 2)
        try:
            torch.kthvalue(x, 1)
        except NotImplementedError as error:
            assert type(error) is extension.UnsupportedOperatorError
        else:
            raise AssertionError("not raised")
        extension.set_fallback_policy("allow;error=aten::nonzero")
        torch.kthvalue(x, 1)
        try:
            torch.nonzero(x)
        except extension.UnsupportedOperatorError:
            pass
        else:
            raise AssertionError("not raised")
        try:
            extension.set_fallback_policy("sometimes")
        except ValueError as error:
            assert "sometimes" in str(error), error
        else:
            raise AssertionError("not raised")
        torch.kthvalue(x, 1)  # the old policy is in force
        """,
        KUNLUN_FALLBACK="error",
    )


def test_the_error_from_the_backward_pass_keeps_its_type(check_fallback):
    check_fallback(
        """
        weight = torch.ones(4, 3, requires_grad=True, device="kunlun")
        extension.set_fallback_policy("allow")
        bag = torch.nn.functional.embedding_bag(torch.tensor([[0, 1]], device="kunlun"), weight).sum()
        extension.set_fallback_policy("error")
        try:
            bag.backward()
        except extension.UnsupportedOperatorError as error:
            assert "embedding" in str(error), error
        else:
            raise AssertionError("not raised")
        extension.set_fallback_policy("allow")
        assert torch.nonzero(x).shape[0] == 5
        """
    )


def test_lists_per_operator(check_fallback):
    check_fallback(
        """
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.nonzero(x)
            try:
                torch.kthvalue(x, 1)
            except UserWarning as warning:
                assert "aten::kthvalue" in str(warning)
            else:
                raise AssertionError("no warning")
        try:
            torch.cdist(x, x)
        except extension.UnsupportedOperatorError:
            pass
        else:
            raise AssertionError("not raised")
        """,
        KUNLUN_FALLBACK="error;allow=aten::nonzero;warn=aten::kthvalue",
    )


def test_a_view_stays_a_view(check_fallback):
    check_fallback(
        """
        assert x.t()[1].view(2).tolist() == [1, 5]  # views never cross the interface
        library = torch.library.Library("kunlun_test", "DEF")
        library.define("second(Tensor(a) self) -> Tensor(a)")
        library.impl("second", lambda tensor: tensor[1], "CPU")
        row = torch.ops.kunlun_test.second(x)
        assert counts()["fallback_ops"] == {"kunlun_test::second": 1}
        row.fill_(9)
        assert x.tolist() == [[3, 1, 2], [9, 9, 9]]
        """,
        KUNLUN_FALLBACK="allow",
    )


def test_only_what_is_written_goes_back_and_nothing_around_it(check_fallback):
    check_fallback(
        """
        base = torch.zeros(6, 4, device="kunlun")
        index, ones = torch.tensor([0, 2, 5], device="kunlun"), torch.ones(3, device="kunlun")
        column = base[:, 1]
        column.put_(index, ones)  # elements with others between them
        base[4].put_(index[:1], ones[:1])
        expected = torch.zeros(6, 4)
        expected[[0, 2, 5], 1] = 1
        expected[4, 0] = 1
        assert torch.equal(base.cpu(), expected), base
        # Larger than the host could copy in a reasonable time, if it copied more than the row.
        cache = torch.empty(3 << 30, dtype=torch.uint8, device="kunlun")
        row = cache[1 << 30 :][:64].zero_()
        row.put_(index, torch.full((3,), 5, dtype=torch.uint8, device="kunlun"))
        assert row.nonzero().flatten().tolist() == [0, 2, 5]
        """,
        KUNLUN_FALLBACK="allow",
        KUNLUN_SIM_MEMORY="4G",
    )


def test_statistics_that_a_schema_does_not_call_written(check_fallback):
    check_fallback(
        """
        device, host = torch.nn.BatchNorm1d(3).to("kunlun"), torch.nn.BatchNorm1d(3)
        y = device(x)
        assert torch.equal(y.cpu(), host(x.cpu()))
        assert torch.equal(device.running_var.cpu(), host.running_var)
        """,
        KUNLUN_FALLBACK="allow",
    )


def test_sparse_tensors(check_fallback):
    check_fallback(
        """
        sparse = torch.sparse_coo_tensor([[0, 1]], x[:, 0], (3,), device="kunlun", check_invariants=False)
        assert sparse._nnz() == 2 and sparse.cpu().to_dense().tolist() == [3, 0, 0]
        assert torch.sparse.sum(sparse).item() == 3
        sparse.mul_(2)
        assert sparse.to_dense().tolist() == [6, 0, 0]
        assert counts()["fallback"] > 0
        """,
        KUNLUN_FALLBACK="allow",
    )


def test_a_wrong_variable_is_named(run_python):
    done = run_python('import torch; torch.ones(1, device="kunlun")', KUNLUN_FALLBACK="perhaps")
    assert done.returncode == 1
    assert "ValueError" in done.stderr
    assert "KUNLUN_FALLBACK" in done.stderr
    assert "perhaps" in done.stderr


@pytest.mark.full
def test_the_operators_of_the_test_bed_on_copies(check_fallback, pytestconfig):
    """torch's test-bed on a chip that the host cannot reach."""
    check_fallback(
        f"""
        import sys
        sys.path.insert(0, {str(pytestconfig.rootpath / "test")!r})
        warnings.simplefilter("ignore")
        from common_op_db import OPS, compare_with_cpu
        for op in OPS:
            compare_with_cpu(op, op.sample_inputs("cpu", torch.float32))
        assert counts()["fallback"] > 1000
        """,
        KUNLUN_FALLBACK="allow",
    )
