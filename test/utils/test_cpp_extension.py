"""Operators of users' own, in C++: the example builds, runs in stream order, differentiates and fails as it should."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torch_xpu_kunlun
from torch_xpu_kunlun.utils import cpp_extension

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "custom_op"
ADDRESSABLE = torch.kunlun.get_device_properties(0).is_host_addressable


@pytest.fixture(scope="module")
def ops(tmp_path_factory):
    """The operators of the example, compiled into a folder of the test's own."""
    spec = importlib.util.spec_from_file_location("my_ops_example", EXAMPLE / "my_ops.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    example.build(build_directory=str(tmp_path_factory.mktemp("my_ops")))
    return torch.ops.my_ops


@pytest.fixture
def scaled_add(ops):
    """The example whose kernel is a function of the host's; a chip whose memory the host cannot reach refuses it."""
    if not ADDRESSABLE:
        with pytest.raises(NotImplementedError, match="this chip's memory cannot be reached by the host"):
            ops.scaled_add(torch.ones(1, device="kunlun"), torch.ones(1, device="kunlun"), 1.0)
        pytest.skip("KUNLUN_SIM_HOST_ADDRESSABLE=0 (README.md, Environment variables): refused, as has been checked")
    return ops.scaled_add


@pytest.fixture(autouse=True)
def clean_state():
    yield
    for index in range(torch.kunlun.device_count()):
        torch.kunlun.synchronize(index)


@pytest.mark.parametrize("device", ["kunlun:0", "kunlun:1"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_code_on_the_stream(scaled_add, device, dtype):
    x, y = torch.randn(100, 100, dtype=dtype), torch.randn(100, 100, dtype=dtype)
    result = scaled_add(x.to(device), y.to(device).t(), 0.5)
    assert result.device == torch.device(device)
    torch.testing.assert_close(result.cpu(), x + y.t() * 0.5)


def test_it_is_asynchronous_and_in_stream_order(scaled_add):
    streams = [torch.kunlun.Stream() for _ in range(3)]
    results = []
    for number, stream in enumerate(streams):
        with torch.kunlun.stream(stream):
            value = torch.full((1 << 16,), float(number), device="kunlun")
            for _ in range(20):
                value = scaled_add(value, value, 1.0)
            results.append(value)
    for number, (stream, value) in enumerate(zip(streams, results, strict=True)):
        stream.synchronize()
        assert (value == number * 2.0**20).all()


def test_gradient_shape_and_compilation(scaled_add):
    x = torch.randn(5, dtype=torch.float64, device="kunlun", requires_grad=True)
    y = torch.randn(5, dtype=torch.float64, device="kunlun", requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: scaled_add(a, b, 0.5), (x, y))
    compiled = torch.compile(lambda a, b: scaled_add(a, b, 2.0).sum(), backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x, y), (x + 2.0 * y).sum())


def test_what_it_throws_on_the_chips_thread_is_raised_later_with_its_type(scaled_add):
    x = torch.ones(4, device="kunlun")
    with pytest.raises(ValueError, match=r"alpha must be finite.*my_ops::scaled_add, device kunlun:0, work item \d+"):
        scaled_add(x, x, float("inf"))
        torch.kunlun.synchronize()
    assert scaled_add(x, x, 1.0).tolist() == [2.0] * 4


def test_what_it_checks_is_raised_at_the_call(scaled_add):
    x = torch.ones(4, device="kunlun")
    with pytest.raises(RuntimeError, match=r"x is \[4\] and y is \[3\]"):
        scaled_add(x, x[:3], 1.0)
    with pytest.raises(RuntimeError, match="x is on kunlun:0 and y on kunlun:1"):
        scaled_add(x, x.to("kunlun:1"), 1.0)
    with pytest.raises(TypeError, match="floating point"):
        scaled_add(x.int(), x.int(), 1.0)


def test_a_launcher_takes_the_hosts_kernel_where_the_chip_has_none(ops):
    torch_xpu_kunlun.reset_operator_statistics()
    x = torch.full((6,), 2.0, device="kunlun:1")
    result = ops.hypot3(x, x / 2, x)
    assert result.device == torch.device("kunlun:1")
    assert result.tolist() == [3.0] * 6
    tier = "host_call_ops" if ADDRESSABLE else "fallback_ops"
    assert torch_xpu_kunlun.operator_statistics()[tier] == {"my_ops::hypot3": 1}


def test_a_cpu_kernel_alone_runs_in_the_boxed_tier(ops):
    torch_xpu_kunlun.reset_operator_statistics()
    assert ops.clip(torch.arange(4.0, device="kunlun"), 1.5).tolist() == [0.0, 1.0, 1.5, 1.5]
    tier = "boxed_ops" if ADDRESSABLE else "fallback_ops"
    assert torch_xpu_kunlun.operator_statistics()[tier] == {"my_ops::clip": 1}


def test_paths():
    (include,) = cpp_extension.include_paths()
    assert (Path(include) / "torch_xpu_kunlun" / "extension.h").exists()
    (library,) = cpp_extension.library_paths()
    assert (Path(library) / "libtorch_kunlun.so").exists()


def test_an_extension_for_setuptools_knows_headers_and_library():
    extension = cpp_extension.KunlunExtension("mine", [Path("a.cpp")], libraries=["m"], include_dirs=["here"])
    assert extension.sources == ["a.cpp"]
    assert extension.include_dirs[0] == "here"
    assert cpp_extension.include_paths()[0] in extension.include_dirs
    assert {"m", "torch_kunlun", "torch_cpu", "c10"} <= set(extension.libraries)


def test_the_wheel_carries_every_header_that_the_public_one_needs(tmp_path):
    """A translation unit that sees those headers and nothing else of the project's."""
    import shutil

    from tools.build.headers import public_headers
    from tools.build.toolchain import find_compiler

    for name in public_headers():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "csrc" / name, tmp_path / name)
    source = tmp_path / "user.cpp"
    source.write_text("#include <torch_xpu_kunlun/extension.h>\n")
    torch_headers = Path(torch.__file__).parent / "include"
    command = [*find_compiler(), "-std=c++20", "-fsyntax-only", "-I", tmp_path, "-isystem", torch_headers, source]
    subprocess.run(command, check=True, capture_output=True, text=True)


@pytest.mark.full
def test_the_examples_setup_builds(tmp_path):
    command = [sys.executable, "setup.py", "build_ext", "--build-lib", tmp_path, "--build-temp", tmp_path / "temp"]
    subprocess.run(command, cwd=EXAMPLE, check=True, capture_output=True, text=True)
    (library,) = tmp_path.glob("my_ops_library*.so")
    script = f"import torch; torch.ops.load_library({str(library)!r}); x = torch.ones(2, device='kunlun')\n"
    script += "print(torch.ops.my_ops.scaled_add(x, x, 2.0).tolist())"
    assert subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout == (
        "[3.0, 3.0]\n"
    )


@pytest.mark.full
def test_source_text_is_compiled_and_loaded(tmp_path):
    source = """
    #include <pybind11/pybind11.h>
    #include <torch_xpu_kunlun/extension.h>
    PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
      m.def("stream", [](int device) { return kunlun::getCurrentKunlunStream(device).id(); });
    }
    """
    module = cpp_extension.load_inline(
        "inline_example", source, no_implicit_headers=True, build_directory=str(tmp_path)
    )
    assert module.stream(0) == torch.kunlun.current_stream(0).stream_id
    side = torch.kunlun.Stream(1)
    with torch.kunlun.stream(side):
        assert module.stream(1) == side.stream_id
