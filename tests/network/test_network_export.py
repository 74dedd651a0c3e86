"""Exported networks: a program of C that checks itself, under AddressSanitizer and beside Python, and its errors."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported import run, tool

pytest.importorskip("onnx")

from onnx_networks import NetworkBuilder, residual_net, u_net

import convsmith as cs
from convsmith.network.files.export import ExportedNetwork
from convsmith.runtime.arrays import address_of, aligned_empty

FLAGS = ("-std=gnu11", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
SANITIZE = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@pytest.fixture(scope="module")
def net() -> cs.Network:
    return cs.onnx.compile(u_net(8, real=True), threads=1)


@pytest.fixture(scope="module")
def library(net: cs.Network, tmp_path_factory: pytest.TempPathFactory) -> ExportedNetwork:
    return net.export(tmp_path_factory.mktemp("library"), "small_net")


def _example(library: ExportedNetwork, *flags: str) -> str:
    program = library.directory / "example"
    run(tool("gcc"), *FLAGS, *flags, library.directory / "example.c", library.library, "-lm", "-o", program)
    return run(program)


def _shared(library: ExportedNetwork) -> ctypes.CDLL:
    """The library as a shared one, which may need no other."""
    path = library.directory / "shared.so"
    whole = ("-Wl,--whole-archive", library.library, "-Wl,--no-whole-archive")
    run(tool("gcc"), "-shared", "-nostdlib", "-Wl,--no-undefined", "-o", path, *whole)
    return ctypes.CDLL(str(path))


def test_the_example_checks_itself_under_the_sanitizer(library: ExportedNetwork) -> None:
    assert "small_net: right" in _example(library, *SANITIZE)


def test_the_example_in_cpp_checks_itself_under_the_sanitizer(library: ExportedNetwork) -> None:
    program = library.directory / "example_cpp"
    flags = ("-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror", *SANITIZE)
    run(tool("g++"), *flags, library.directory / "example.cpp", library.library, "-o", program)
    assert run(program) == "small_net: right\n"


def _rust(library: ExportedNetwork, source: Path) -> str:
    program = source.with_suffix("")
    options = ("--edition=2021", "-D", "warnings", "-O", "-L", library.directory, "-l", f"static={library.name}")
    run(tool("rustc"), *options, source, "-o", program)
    return run(program)


def test_the_example_in_rust_checks_itself(library: ExportedNetwork) -> None:
    source = library.directory / "example.rs"
    assert _rust(library, source) == "small_net: right\n"
    text = source.read_text()
    assert "rustc --edition=2021 -O -L . -l static=small_net example.rs" in text
    start = text.index('check("v14", v14, &[0')
    values = text.index("], &[", start) + len("], &[")
    changed = library.directory / "changed.rs"
    changed.write_text(f"{text[:values]}9.0, {text[values:]}")
    with pytest.raises(AssertionError, match=r"v14\[0\] is"):
        _rust(library, changed)


def test_the_example_fails_with_other_results(library: ExportedNetwork) -> None:
    text = (library.directory / "example.c").read_text()
    start = text.index("values_of_v14[] = {") + len("values_of_v14[] = {")
    changed = library.directory / "changed.c"
    changed.write_text(f"{text[:start]}9{text[start:]}")
    program = library.directory / "changed"
    run(tool("gcc"), changed, library.library, "-lm", "-o", program)
    with pytest.raises(AssertionError, match="v14"):
        run(program)


def test_the_function_computes_what_python_computes_and_writes_nothing_else(
    net: cs.Network, library: ExportedNetwork
) -> None:
    function = _shared(library).small_net
    x = np.random.default_rng(0).standard_normal(net.inputs["x"]).astype(np.float32)
    behind = 4096
    outputs = {name: np.full(int(np.prod(shape)) * 4 + behind, 0xA5, np.uint8) for name, shape in net.outputs.items()}
    workspace = aligned_empty(net.workspace + behind)
    workspace[:] = 0xA5
    given = [ctypes.c_void_p(address_of(a)) for a in (x, *outputs.values(), workspace)]
    assert function(*given) == 0
    expected = net.run({"x": x})
    for name, memory in outputs.items():
        made = memory[:-behind].view(np.float32).reshape(net.outputs[name])
        np.testing.assert_allclose(made, expected[name], rtol=1e-6, atol=1e-6)
    assert all((memory[-behind:] == 0xA5).all() for memory in (*outputs.values(), workspace))


def test_the_function_refuses_pointers_that_do_not_fit(net: cs.Network, library: ExportedNetwork) -> None:
    shared = _shared(library)
    shared.small_net_message.restype = ctypes.c_char_p
    x = np.zeros(net.inputs["x"], np.float32)
    y, z = (np.zeros(shape, np.float32) for shape in net.outputs.values())
    workspace = aligned_empty(net.workspace + 4)
    fit = [address_of(a) for a in (x, y, z, workspace)]
    cases = {
        b"x is null": [0, *fit[1:]], b"workspace is not aligned": [*fit[:3], fit[3] + 4],
        b"v14 and v4 overlap": [fit[0], fit[2], fit[2], fit[3]],
    }  # fmt: skip
    for message, addresses in cases.items():
        code = shared.small_net(*map(ctypes.c_void_p, addresses))
        assert code != 0 and message in shared.small_net_message(code)


def test_parts_of_kernels_run_through_the_program(tmp_path: Path) -> None:
    net = cs.onnx.compile(residual_net(64, real=True), threads=2)
    library = net.export(tmp_path, "two_parts")
    assert "convsmith_parallel parallel" in library.header.read_text()
    assert "two_parts: right" in _example(library)
    parts: list[tuple[int, int]] = []
    task_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, task_type, ctypes.c_void_p, ctypes.c_size_t)
    def parallel(_: Any, task: Any, data: Any, count: int) -> None:
        for part in reversed(range(count)):
            parts.append((part, count))
            task(data, part, count)

    x = np.random.default_rng(0).standard_normal(net.inputs["x"]).astype(np.float32)
    y, workspace = np.zeros((1, 10), np.float32), aligned_empty(net.workspace)
    addresses = [ctypes.c_void_p(address_of(a)) for a in (x, y, workspace)]
    assert _shared(library).two_parts(*addresses, parallel, None) == 0
    assert (0, 2) in parts and (1, 2) in parts
    np.testing.assert_allclose(y, net(x), rtol=1e-5, atol=1e-6)


def test_examples_pass_no_threads(tmp_path: Path) -> None:
    library = cs.onnx.compile(u_net(8), threads=2).export(tmp_path, "shared_net")
    program = tmp_path / "program"
    run(tool("g++"), "-std=c++17", "-Werror", tmp_path / "example.cpp", library.library, "-o", program)
    assert run(program) == _rust(library, tmp_path / "example.rs") == "shared_net: right\n"


def test_names_become_identifiers_and_the_manifest_lists_them(tmp_path: Path) -> None:
    b = NetworkBuilder(20)
    net = cs.onnx.compile(b.model(b.op("Relu", b.input("input.1/é", 2, 3))), threads=1)
    library = net.export(tmp_path, "tiny")
    manifest = json.loads((tmp_path / "tiny.json").read_text())
    assert [row["value"] for row in manifest["parameters"]] == ["input.1/é", "v0"]
    assert manifest["files"] == [path.name for path in library.files]
    assert "tiny: right" in _example(library)


def test_illegal_names_and_directories(net: cs.Network, tmp_path: Path) -> None:
    for name in ("two words", "int", ""):
        with pytest.raises(cs.UsageError):
            net.export(tmp_path, name)
    (tmp_path / "file").write_text("")
    with pytest.raises(cs.UsageError, match="cannot be written"):
        net.export(tmp_path / "file", "net")
