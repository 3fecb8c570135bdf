"""torch.export, make_fx and torch.compile with the backends that need no code generation for the chip."""

import io

import pytest
import torch


@pytest.fixture(autouse=True)
def no_compiled_code_is_kept():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def net():
    torch.manual_seed(0)
    layers = [torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)]
    return torch.nn.Sequential(*layers).to("kunlun")


def test_export_run_save_and_load():
    model, x = net(), torch.randn(3, 8, device="kunlun")
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: batch},))
    assert torch.equal(program.module()(x), model(x))
    larger = torch.randn(7, 8, device="kunlun")
    assert torch.equal(program.module()(larger), model(larger))

    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    again = torch.export.load(file)
    assert torch.equal(again.module()(larger), model(larger))
    assert {tensor.device.type for tensor in again.state_dict.values()} == {"kunlun"}


def test_an_exported_program_moves_to_another_device():
    from torch.export.passes import move_to_device_pass

    model, x = net(), torch.randn(3, 8, device="kunlun")
    moved = move_to_device_pass(torch.export.export(model, (x,)), "cpu")
    torch.testing.assert_close(moved.module()(x.cpu()), model(x).cpu(), rtol=0, atol=0)


def test_decomposed_programs_give_the_same():
    model, x = net(), torch.randn(3, 8, device="kunlun")
    program = torch.export.export(model, (x,)).run_decompositions()
    torch.testing.assert_close(program.module()(x), model(x))


def test_a_traced_function():
    from torch.fx.experimental.proxy_tensor import make_fx

    def function(x):
        return torch.ops.aten.add(x.sin(), torch.arange(3, device=x.device)).sum()

    x = torch.randn(2, 3, device="kunlun")
    graph = make_fx(function, tracing_mode="symbolic")(x)
    assert any(node.kwargs.get("device") == torch.device("kunlun:0") for node in graph.graph.nodes)
    larger = torch.randn(5, 3, device="kunlun")
    assert torch.equal(graph(larger), function(larger))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "aot_eager_decomp_partition"])
def test_compiled_training(backend):
    model = net()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    x = torch.randn(3, 8, device="kunlun")
    gradients = []
    for run in (model, compiled):
        model.zero_grad()
        run(x).square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    # A decomposition may round differently.
    tolerance = {} if "decomp" in backend else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(*gradients, **tolerance)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_dynamic_shapes_compile_once(backend):
    counter = torch._dynamo.testing.CompileCounterWithBackend(backend)

    @torch.compile(backend=counter, dynamic=True, fullgraph=True)
    def function(x):
        return (x * 2).sum(0) + x.shape[0]

    for rows in (2, 3, 7):
        x = torch.randn(rows, 3, device="kunlun")
        assert torch.equal(function(x), (x * 2).sum(0) + rows)
    assert counter.frame_count == 1


def test_in_place_changes_views_and_the_device_in_a_compiled_function():
    @torch.compile(backend="aot_eager", fullgraph=True)
    def function(x, table):
        table[1:].mul_(2)
        return x.view(-1)[::2], torch.arange(4, device=x.device) + x.device.index

    for device in ("kunlun:0", "kunlun:1"):
        x, table = torch.arange(6.0, device=device).reshape(2, 3), torch.ones(3, device=device)
        view, numbers = function(x, table)
        assert table.tolist() == [1.0, 2.0, 2.0]
        assert view.data_ptr() == x.data_ptr()
        assert numbers.tolist() == [n + x.device.index for n in range(4)]


def test_random_numbers_in_a_compiled_function_follow_the_generator():
    @torch.compile(backend="aot_eager", fullgraph=True)
    def function(x):
        return torch.nn.functional.dropout(x, 0.5)

    x = torch.ones(100, device="kunlun")
    torch.manual_seed(0)
    want = torch.nn.functional.dropout(x, 0.5)
    torch.manual_seed(0)
    assert torch.equal(function(x), want)


def test_inductor_is_refused_and_the_text_says_what_to_use():
    from torch._dynamo.exc import BackendCompilerFailed

    for function in (lambda x: x * 2, lambda x: torch.nn.functional.layer_norm(x, (8,)).sum()):
        with pytest.raises(BackendCompilerFailed, match=r"cannot generate code for kunlun.*backend=\"aot_eager\""):
            torch.compile(function)(torch.ones(3, 8, device="kunlun"))
    assert (torch.ones(2, device="kunlun") * 2).tolist() == [2.0, 2.0]
