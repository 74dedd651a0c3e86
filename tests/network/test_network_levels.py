"""Networks for several levels in one library: each CPU runs the level that it should, and errors."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported import run, tool

pytest.importorskip("onnx")

from onnx_networks import NetworkBuilder

import convsmith as cs
from convsmith.exporter.target import export_machine
from convsmith.machine.registry import host_targets
from convsmith.network.compile import program_of
from convsmith.network.files.c_texts import sample
from convsmith.network.files.levels import export_levels
from convsmith.onnx.graph import read_graph
from convsmith.onnx.network import export_for, network_of

LEVELS = ("avx2", "generic")
needs_levels = pytest.mark.skipif(
    not {*LEVELS} <= {t.name for t in host_targets()}, reason="this machine packs weights for no level with AVX2"
)


def _graph(shift: float) -> Any:
    """A small network whose results are moved by a number."""
    b = NetworkBuilder(3)
    x = b.conv(b.input("x", 1, 8, 6, 6), 8, 16, 3)
    y = b.op("MatMul", b.op("Flatten", b.op("Relu", x)), b.weights(16 * 36, 10))
    return read_graph(b.model(b.op("Add", y, b.held(np.float32(shift)))).SerializeToString())


def _results(graph: Any) -> dict[str, Any]:
    return network_of(graph, 1).run({x.name: sample(x.shape, x.type) for x in graph.inputs})


@needs_levels
def test_each_cpu_runs_the_first_level_that_it_has(tmp_path: Path) -> None:
    """The levels are those of networks with different results, so that the example says which one ran."""
    graphs = [_graph(1000.0 * n) for n in range(2)]
    programs = [program_of(graph, 1, export_machine(level)) for graph, level in zip(graphs, LEVELS)]
    made = [export_levels(programs, tmp_path / str(n), "net", _results(graph)) for n, graph in enumerate(graphs)]
    examples = []
    for library in made:
        examples.append(library.directory / "example")
        options = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-static")
        run(tool("gcc"), *options, library.directory / "example.c", library.library, "-lm", "-o", examples[-1])
    assert "net: right" in run(examples[0])
    emulator = tool("qemu-x86_64")
    for cpu, right in (("Haswell", 0), ("Nehalem", 1), ("Haswell,-fma", 1), ("Haswell,-xsave", 1)):
        for n, example in enumerate(examples):
            if n == right:
                assert "net: right" in run(emulator, "-cpu", cpu, example), cpu
            else:
                with pytest.raises(AssertionError, match=r"is .*, not"):
                    run(emulator, "-cpu", cpu, example)


@needs_levels
def test_a_library_of_two_levels_needs_no_other(tmp_path: Path) -> None:
    graph = _graph(0.5)
    library = export_for(graph, tmp_path, "net", ",".join(LEVELS), 2)
    shared = tmp_path / "shared.so"
    whole = ("-Wl,--whole-archive", library.library, "-Wl,--no-whole-archive")
    run(tool("gcc"), "-shared", "-nostdlib", "-Wl,--no-undefined", "-o", shared, *whole)
    loaded = ctypes.CDLL(str(shared))
    loaded.net_message.restype = ctypes.c_char_p
    code = loaded.net(None, None, None, None, None)
    assert code != 0 and loaded.net_message(code) == b"net: x is null"
    assert "avx2, generic, of which the first call chooses" in library.header.read_text()
    assert '"levels"' in (tmp_path / "net.json").read_text()


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("avx2,avx2", "legal is each level once"),
        ("avx512_amx,avx2", "need no permission"),
        ("aarch64,generic", "available are levels of x86-64"),
        ("avx2,avx3", "unknown"),
    ],
)  # fmt: skip
def test_errors(target: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(cs.ConvsmithError, match=words):
        export_for(_graph(0.0), tmp_path, "net", target, 1)
