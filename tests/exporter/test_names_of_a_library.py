"""Names that programs meet: none of a library's is a word or a name of C, C++, Rust, a C library or another kernel."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from exported import run, tool

import convsmith as cs
from convsmith.cli.main import main
from convsmith.exporter.header import macro
from convsmith.exporter.names import check_name, legal_name
from convsmith.problem.lines import parse_problem

STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1")
LINE = "--accuracy=strict mb1ic2ih3oc2kh1"
NAMES = ("malloc", "exp", "main", "int", "size_t", "errno", "NULL", "class", "fn", "self", "create", "stdin", "3x3",
         "pack", "wei", "m", "I", "linux", "std", "memcpy", "isnan", "Option", "usize",
         "code", "sum_of_dst", "a", "a_run", "run_a")  # fmt: skip
"""Names of nodes that mean something else in C, C++ or Rust."""
HEADERS = ("assert", "complex", "ctype", "errno", "fenv", "float", "inttypes", "limits", "locale", "math", "setjmp",
           "signal", "stdarg", "stddef", "stdint", "stdio", "stdlib", "string", "time", "wchar", "wctype")  # fmt: skip
KNOWN = (2, 36)
"""The version of glibc whose names the table has."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("prefix", (None, "pthread", ""))
def test_names_that_mean_something_else(prefix: str | None, tmp_path: Path) -> None:
    lines = [f'{LINE}n"{name}"' for name in NAMES]
    library = cs.export(lines, tmp_path, name="net", prefix=prefix, threads=1, target="generic")
    assert len({kernel.name.upper() for kernel in library.kernels}) == len(NAMES)
    before = "net_" if prefix is None else f"{prefix}_" if prefix else ""
    assert all(kernel.name.startswith(before) for kernel in library.kernels)
    includes = "".join(f"#include <{name}.h>\n" for name in HEADERS)
    (tmp_path / "all.c").write_text(f'{includes}#include "net.h"\nint all;\n')
    options = ("-fsyntax-only", tmp_path / "all.c")
    run(tool("gcc"), "-std=gnu17", *STRICT, *options)
    run(tool("g++"), "-std=gnu++20", *STRICT, "-x", "c++", *options)
    run(tool("gcc"), "-std=gnu11", *STRICT, tmp_path / "example.c", *library.code, "-o", tmp_path / "example")
    assert run(tmp_path / "example").count("us a call") == len(NAMES)  # whose arrays malloc gives
    run(tool("rustc"), "--edition=2021", "--crate-type=lib", "-D", "warnings", "--emit=metadata", tmp_path / "net.rs",
        "-o", tmp_path / "net.rmeta")  # fmt: skip


@pytest.mark.parametrize("file", ("libc.so.6", "libm.so.6"))
def test_no_function_of_the_c_library_is_a_name(file: str) -> None:
    found = {Path(line.split()[-1]) for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(file)}
    if not found:
        pytest.skip(f"this process uses no {file}")
    names = set()
    for line in run(tool("nm"), "-D", "--defined-only", *found).splitlines():
        if symbol := re.search(r" ([A-Za-z]\w*)@+GLIBC_(\d+)\.(\d+)", line):
            name, *version = symbol.groups()
            names |= {name} if tuple(map(int, version)) <= KNOWN else set()
    assert {"libc.so.6": "malloc", "libm.so.6": "exp"}[file] in names
    legal = []
    for name in names:
        assert legal_name(name) not in names
        try:
            legal.append(check_name(name))
        except cs.UsageError:
            continue
    assert not legal


PROBLEMS = (
    f"--dir=FWD_B {LINE}", f"--dir=BWD_D {LINE}", f"--dir=BWD_WB {LINE}",
    "--dt=u8:s8:u8 --attr-scales=src:common:0.5+wei:per_oc+dst:common:2 --attr-zero-points=src:common:2 "
    "--attr-post-ops=sum+add:f32:per_oc " + LINE,
    "--attr-post-ops=dw:k3s1p1 mb1ic2ih3oc2kh1",
    "mb1ic4ih6oc8kh1 -> g8mb1ic8ih6oc8kh3ph1", "--matmul --rounding=probabilistic --bits=7:5 --dt=u8:u8:s32 4x5:5x6",
)  # fmt: skip


@pytest.mark.parametrize("line", PROBLEMS)
def test_no_macro_of_a_kernel_is_that_of_another(line: str) -> None:
    """A kernel k has macros such as K_PACKED_WEI_BYTES, and a kernel k_packed could have the same."""
    names = {t.name for t in parse_problem(line).tensors}
    names |= {f"packed_{name}" for name in names} | {"workspace"}
    own = {macro(f"k_{name}") for name in names}
    for name in names:
        assert legal_name(name).startswith(f"conv_{name}")  # the example has both
        words = name.split("_")
        for n in range(1, len(words)):
            other = legal_name("_".join(("k", *words[:n])))
            assert not own & {macro(f"{other}_{name}") for name in names}, other


def test_the_prefix_of_a_single_kernel(tmp_path: Path) -> None:
    def names(**options: str) -> tuple[str, str]:
        library = cs.export(f'{LINE}n"exp"', tmp_path, threads=1, target="generic", **options)
        return library.name, library.kernels[0].name

    assert names() == ("conv_exp", "conv_exp")
    assert names(name="layer") == ("layer", "layer")
    assert names(name="layer", prefix="acme") == ("layer", "acme_layer")
    assert names(prefix="acme_") == ("acme_exp", "acme_exp")


def test_nodes_of_one_size_are_listed_in_the_manifest(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper, tensors = onnx.helper, ("a", "b", "c")
    nodes = [
        helper.make_node("Conv", [source, weights], [made], name, pads=[1] * 4)
        for source, weights, made, name in zip("xyz", tensors, "yzw", ("malloc", "left */ exp", "right"))
    ]
    float_ = onnx.TensorProto.FLOAT
    shapes = {"x": [1, 8, 6, 7], "a": [8, 8, 3, 3], "b": [8, 8, 3, 3], "c": [4, 8, 3, 3]}
    graph = helper.make_graph(
        nodes, "graph", [helper.make_tensor_value_info(name, float_, shape) for name, shape in shapes.items()],
        [helper.make_empty_tensor_value_info("w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])
    model.ir_version = 9
    onnx.save(model, tmp_path / "net.onnx")
    words = ("export", str(tmp_path / "net.onnx"), "--threads", "1", "--target", "generic", "-o", str(tmp_path))
    done = CliRunner().invoke(main, [*words, "--prefix", "own"])
    assert done.exit_code == 0, done.output
    kernels = json.loads((tmp_path / "net.json").read_text())["kernels"]
    assert [(k["name"], k["nodes"]) for k in kernels] == [
        ("own_malloc", ["malloc", "left */ exp"]), ("own_right", ["right"]),
    ]  # fmt: skip
    assert " * Of the nodes malloc, left * / exp." in (tmp_path / "net.h").read_text()
