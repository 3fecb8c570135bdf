"""Environment variables: what is accepted, what is refused and with which words."""

import pytest


def parsed(programs, **variables):
    result = programs.run("env", **variables)
    assert result.returncode == 0, result.stdout
    return dict(line.split("=", 1) for line in result.stdout.splitlines())


def test_defaults(programs):
    assert parsed(programs) == {
        "chip": "",
        "visible": "all",
        "devices": "2",
        "memory": "0",
        "threads": "0",
        "protect": "0",
        "addressable": "1",
        "poison": "0",
        "faults": "",
        "operators": "add.out:1 add.Tensor:1 mm.out:1",
        "dtypes": "0",
        "copy": "0",
        "link": "0",
        "blocking": "0",
        "custom_ops": "1",
        "log": "1",
        "fallback": "warn add.Tensor=warn add.out=warn nonzero=warn",
        "autocompare": "0:kunlun_autocompare",
    }


@pytest.mark.parametrize(
    ("name", "value", "key", "expected"),
    [
        ("KUNLUN_CHIP", "sim", "chip", "sim"),
        ("KUNLUN_CHIP", "./my driver.so", "chip", "./my driver.so"),
        ("KUNLUN_CHIP", "", "chip", ""),
        ("KUNLUN_VISIBLE_DEVICES", "3, 1,0", "visible", "3,1,0,"),
        ("KUNLUN_VISIBLE_DEVICES", "", "visible", ""),
        ("KUNLUN_VISIBLE_DEVICES", " ", "visible", ""),
        ("KUNLUN_SIM_DEVICES", "0", "devices", "0"),
        ("KUNLUN_SIM_DEVICES", "64", "devices", "64"),
        ("KUNLUN_SIM_MEMORY", "512M", "memory", str(512 << 20)),
        ("KUNLUN_SIM_MEMORY", "4g", "memory", str(4 << 30)),
        ("KUNLUN_SIM_MEMORY", "1073741824", "memory", str(1 << 30)),
        ("KUNLUN_SIM_THREADS", "7", "threads", "7"),
        ("KUNLUN_SIM_PROTECT", "off", "protect", "2"),
        ("KUNLUN_SIM_HOST_ADDRESSABLE", "0", "addressable", "0"),
        ("KUNLUN_SIM_POISON", "1", "poison", "1"),
        ("KUNLUN_SIM_FAULT", "launch:100", "faults", "0:100:-1@-1,"),
        ("KUNLUN_SIM_FAULT", "kernel:0@1, poison:3,hang:7:3@0", "faults", "1:0:-1@1,2:3:-1@-1,3:7:3000000000@0,"),
        ("KUNLUN_SIM_OPERATORS", "all", "operators", "add.out:1 add.Tensor:1 mm.out:1"),
        ("KUNLUN_SIM_OPERATORS", "without=aten::add", "operators", "add.out:0 add.Tensor:0 mm.out:1"),
        ("KUNLUN_SIM_OPERATORS", "only=aten::add.out, aten::mm", "operators", "add.out:1 add.Tensor:0 mm.out:1"),
        ("KUNLUN_SIM_DTYPES", "without=float64", "dtypes", "2000"),
        ("KUNLUN_SIM_DTYPES", "without=bool,complex64", "dtypes", "8002"),
        ("KUNLUN_SIM_COPY_SPEED", "10M", "copy", str(10 << 20)),
        ("KUNLUN_SIM_LINK_SPEED", "1", "link", "1"),
        ("KUNLUN_LAUNCH_BLOCKING", "1", "blocking", "1"),
        ("KUNLUN_AUTOCOMPARE", "0", "autocompare", "0:kunlun_autocompare"),
        ("KUNLUN_AUTOCOMPARE", "1", "autocompare", "1:kunlun_autocompare"),
        ("KUNLUN_AUTOCOMPARE", "warn", "autocompare", "2:kunlun_autocompare"),
        ("KUNLUN_AUTOCOMPARE_DIR", "/tmp/cases", "autocompare", "0:/tmp/cases"),
        ("KUNLUN_CUSTOM_OPS", "0", "custom_ops", "0"),
        ("KUNLUN_LOG_LEVEL", "debug", "log", "3"),
        ("KUNLUN_FALLBACK", "allow", "fallback", "allow add.Tensor=allow add.out=allow nonzero=allow"),
        (
            "KUNLUN_FALLBACK",
            "error;allow=aten::nonzero,aten::add;warn=aten::add.out",
            "fallback",
            "error add.Tensor=allow add.out=warn nonzero=allow",
        ),
    ],
)
def test_accepted(programs, name, value, key, expected):
    assert parsed(programs, **{name: value})[key] == expected


@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [
        ("KUNLUN_CHIP", "cuda", "sim, xre or the path of a driver that ends in .so"),
        ("KUNLUN_CHIP", ".so", "sim, xre"),
        ("KUNLUN_VISIBLE_DEVICES", "0,one", "device numbers separated by commas"),
        ("KUNLUN_VISIBLE_DEVICES", "-1", "device numbers"),
        ("KUNLUN_VISIBLE_DEVICES", "0,,1", "device numbers"),
        ("KUNLUN_VISIBLE_DEVICES", "1,0,1", "device 1 is named twice"),
        ("KUNLUN_SIM_DEVICES", "65", "a whole number from 0 to 64"),
        ("KUNLUN_SIM_DEVICES", "2 ", "a whole number from 0 to 64"),
        ("KUNLUN_SIM_DEVICES", "99999999999999999999", "a whole number"),
        ("KUNLUN_SIM_MEMORY", "4GB", "as in 512M"),
        ("KUNLUN_SIM_MEMORY", "1K", "bytes from 2M to 4T"),
        ("KUNLUN_SIM_MEMORY", "5T", "bytes from 2M to 4T"),
        ("KUNLUN_SIM_MEMORY", "99999999999999999G", "bytes from 2M to 4T"),
        ("KUNLUN_SIM_MEMORY", "-5M", "bytes from 2M to 4T"),
        ("KUNLUN_SIM_MEMORY", "G", "bytes from 2M to 4T"),
        ("KUNLUN_SIM_THREADS", "all", "a whole number from 0 to 1024"),
        ("KUNLUN_SIM_PROTECT", "yes", "auto, on or off"),
        ("KUNLUN_SIM_HOST_ADDRESSABLE", "true", "0 or 1"),
        ("KUNLUN_SIM_POISON", "on", "0 or 1"),
        ("KUNLUN_SIM_FAULT", "launch", "a kind (launch, kernel, poison, hang)"),
        ("KUNLUN_SIM_FAULT", "crash:1", "launch, kernel, poison, hang"),
        ("KUNLUN_SIM_FAULT", "launch:1:3", "for a hang also the seconds"),
        ("KUNLUN_SIM_FAULT", "hang:1:0", "seconds (1 to 86400)"),
        ("KUNLUN_SIM_FAULT", "poison:1@64", "@ with a device"),
        ("KUNLUN_SIM_FAULT", "poison:1@", "@ with a device"),
        ("KUNLUN_SIM_FAULT", "poison:-1", "the number of operators before it"),
        ("KUNLUN_SIM_OPERATORS", "aten::add", "only= or without="),
        ("KUNLUN_SIM_OPERATORS", "without=add", "only= or without="),
        ("KUNLUN_SIM_DTYPES", "float64", "without="),
        ("KUNLUN_SIM_DTYPES", "without=double", "float64 complex32"),
        ("KUNLUN_SIM_COPY_SPEED", "0", "bytes a second from 1 to 4T"),
        ("KUNLUN_SIM_LINK_SPEED", "fast", "bytes a second from 1 to 4T"),
        ("XCCL_ALGORITHM", "ring", "auto, one_shot or two_shot"),
        ("XCCL_ACCUMULATE", "float64", "float32 or native"),
        ("XCCL_TIMEOUT", "0", "a whole number from 1 to 1000000000"),
        ("KUNLUN_LAUNCH_BLOCKING", "2", "0 or 1"),
        ("KUNLUN_AUTOCOMPARE", "yes", "0, 1 or warn"),
        ("KUNLUN_LOG_LEVEL", "verbose", "silent, warn, info or debug"),
        ("KUNLUN_FALLBACK", "maybe", "warn, allow or error"),
        ("KUNLUN_FALLBACK", "allow=aten::add", "warn, allow or error"),
        ("KUNLUN_FALLBACK", "error;aten::add", "warn, allow or error"),
        ("KUNLUN_FALLBACK", "error;deny=aten::add", "warn, allow or error"),
        ("KUNLUN_FALLBACK", "error;allow=add", '"add" does not name an operator'),
        ("KUNLUN_FALLBACK", "error;allow=aten::add;warn=aten::add", "aten::add is named twice"),
    ],
)
def test_refused_by_name_value_and_what_is_accepted(programs, name, value, accepted):
    result = programs.run("env", **{name: value})
    assert result.returncode == 1
    assert f'EnvError: {name}="{value}" is not understood; accepted: ' in result.stdout
    assert accepted in result.stdout


def test_a_corrected_variable_works_in_the_same_process(programs):
    result = programs.run("env", "KUNLUN_SIM_DEVICES", "3", KUNLUN_SIM_DEVICES="three")
    assert result.returncode == 0
    assert result.stdout.startswith('EnvError: KUNLUN_SIM_DEVICES="three"')
    assert "devices=3\n" in result.stdout


def test_the_table_names_every_variable(programs):
    listed = programs.run("env", "--names").stdout.split()
    source = (programs.root / "csrc" / "runtime" / "Env.cpp").read_text()
    named = {word for word in source.split('"') if word.startswith(("KUNLUN_", "XCCL_")) and word.isupper()}
    assert len(listed) == len(set(listed))
    assert named == set(listed)
