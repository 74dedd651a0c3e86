"""The files of an exported library: C, C++, Rust, Python and CMake take them; messages say what an array lacks."""

from __future__ import annotations

import ctypes
import json
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from exported import run, shared_library, tool

import convsmith as cs
from convsmith.exporter.archive import archive
from convsmith.exporter.files import FORMATS, ExportedLibrary
from convsmith.machine.registry import host_targets

EXAMPLES = Path(__file__).parents[2] / "examples" / "export"
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1")
LAYER = "--dir=FWD_B --accuracy=strict --stag=axb --dtag=axb --attr-post-ops=relu mb1ic8ih6oc16kh3ph1"


def numbers(shape: tuple[int, ...], order: tuple[int, ...]) -> np.ndarray:
    """The array that an example fills: 0 to 4 by the order in memory, whose axes `order` lists, outermost first."""
    size = int(np.prod(shape))
    flat = (np.arange(size) * 7 % 5).astype(np.float32).reshape([shape[axis] for axis in order])
    return flat.transpose(np.argsort(order))


def sum_of_layer() -> float:
    """The sum of the results of LAYER on the arrays of the examples."""
    x, w = numbers((1, 8, 6, 6), (0, 2, 3, 1)), numbers((16, 8, 3, 3), (0, 1, 2, 3))
    b = numbers((16,), (0,))
    return float(cs.conv2d(x, w, b, padding=1, activation="relu").sum(dtype=np.float64))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", FORMATS)
def test_the_example_is_built_by_cmake_and_by_hand(form: str, tmp_path: Path) -> None:
    library = cs.export(LAYER, tmp_path, name="layer", format=form, threads=2)
    by_hand = tmp_path / "by_hand"
    run(tool("gcc"), "-std=c11", *STRICT, tmp_path / "example.c", *library.code, "-o", by_hand)
    assert f"sum of dst {sum_of_layer():g}," in run(by_hand)
    if form == "source":
        command = next(x for x in (tmp_path / "example.c").read_text(encoding="utf-8").splitlines() if " cc " in x)
        run(*command.removeprefix(" *").split(), cwd=tmp_path)
        assert f"sum of dst {sum_of_layer():g}," in run(tmp_path / "example")
    run(tool("cmake"), "-S", tmp_path, "-B", tmp_path / "build")
    run(tool("cmake"), "--build", tmp_path / "build")
    assert f"sum of dst {sum_of_layer():g}," in run(tmp_path / "build" / "layer_example")


def test_a_project_adds_the_library_to_its_build(tmp_path: Path) -> None:
    cs.export([LAYER, "--matmul 4x5:5x6"], tmp_path / "layers", name="layers", threads=1)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(p LANGUAGES CXX C)\nadd_subdirectory(layers)\n"
        "add_executable(p p.cpp)\ntarget_link_libraries(p PRIVATE layers)\n",
        encoding="utf-8",
    )
    (tmp_path / "p.cpp").write_text(
        '#include "layers.h"\n#include <cstdio>\nint main() { std::puts(layers_matmul_4x5_5x6_message(0)); }\n',
        encoding="utf-8",
    )
    run(tool("cmake"), "-S", tmp_path, "-B", tmp_path / "b")
    run(tool("cmake"), "--build", tmp_path / "b")
    assert run(tmp_path / "b" / "p") == "layers_matmul_4x5_5x6: every array fits the kernel\n"


def test_the_program_in_c_plus_plus_with_threads(tmp_path: Path) -> None:
    library = cs.export(LAYER, tmp_path, name="layer", threads=2)
    program = tmp_path / "program"
    run(
        tool("g++"), "-std=c++17", *STRICT, "-pthread", f"-I{tmp_path}", EXAMPLES / "threads.cpp", *library.code, "-o",
        program,
    )  # fmt: skip
    assert f"sum {sum_of_layer():g}" in run(program)


def test_the_program_in_rust(tmp_path: Path) -> None:
    weights = numbers((16, 8, 3, 3), (0, 1, 2, 3)).copy()
    cs.export(LAYER, tmp_path, name="layer", threads=1, weights=weights)
    (tmp_path / "main.rs").write_bytes((EXAMPLES / "main.rs").read_bytes())
    link = ("-L", f"native={tmp_path}", "-l", "static=layer")
    options = ("--edition=2021", "-O", "-D", "warnings", *link)
    run(tool("rustc"), *options, tmp_path / "main.rs", "-o", tmp_path / "program")
    assert f"sum {sum_of_layer():g}" in run(tmp_path / "program")


RUST = {
    "a module": "mod net;\n",
    "the program's own module": 'include!("net.rs");\n',
    "beside the same imports": 'use core::ffi::{c_char, c_int, c_void};\ninclude!("net.rs");\n'
    "pub fn types(_: c_char, _: c_int, _: *const c_void) {}\n",
    "modules for two libraries": 'mod one { include!("net.rs"); }\nmod two { include!("other.rs"); }\n',
}
"""Ways in which a program takes the declarations."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("edition", ["2018", "2021", "2024"])
def test_rust_takes_the_declarations_in_every_way(edition: str, tmp_path: Path) -> None:
    lines = [
        'mb1ic8ih6oc16kh3ph1n"one"', '--dt=bf16 mb1ic8ih6oc16kh3ph1n"Two"',
        '--attr-scales=src:common:2 mb1ic8ih6oc16kh3n"a"',
    ]  # fmt: skip
    for name in ("net", "other"):
        cs.export(lines, tmp_path, name=name, threads=2, target="generic", format="source")
    for n, (way, text) in enumerate(RUST.items()):
        source = tmp_path / f"way{n}.rs"
        source.write_text(f"{text}fn main() {{}}\n", encoding="utf-8")
        options = (f"--edition={edition}", "-D", "warnings", "--emit=metadata", "-o", tmp_path / "way.rmeta")
        assert run(tool("rustc"), *options, source) == "", way


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the program is for Linux on x86-64")
@pytest.mark.parametrize("level", ("", "+avx2"))
def test_the_program_without_a_c_library(level: str, tmp_path: Path) -> None:
    if level.strip("+") not in ("", *(t.name for t in host_targets())):
        pytest.skip(f"this machine lacks {level}")
    weights = numbers((16, 8, 3, 3), (0, 1, 2, 3)).copy()
    library = cs.export(
        LAYER, tmp_path, name="layer", threads=1, weights=weights, target=f"x86_64-none-elf{level}"
    )  # fmt: skip
    options = ("-O2", "-ffreestanding", "-nostdlib", "-static", f"-I{tmp_path}", EXAMPLES / "bare.c", *library.code)
    for expected, status in ((sum_of_layer(), 0), (sum_of_layer() + 1, 1)):
        run(tool("gcc"), f"-DEXPECTED={expected:.1f}", *options, "-o", tmp_path / "bare")
        assert subprocess.run([tmp_path / "bare"], check=False).returncode == status


def test_the_program_in_python_needs_numpy_alone(tmp_path: Path) -> None:
    library = cs.export(LAYER, tmp_path, name="layer", threads=1)
    shared_library(library)
    text = run(sys.executable, "-I", EXAMPLES / "call.py", tmp_path)
    assert f"sum {sum_of_layer():g}" in text


def test_the_manifest_describes_every_parameter(tmp_path: Path) -> None:
    line = "--dt=u8:s8:u8 --attr-scales=dst:common:2 mb1ic8ih6oc16kh3ph1"
    library = cs.export(line, tmp_path, threads=1, target="generic")
    manifest = json.loads(library.manifest.read_text(encoding="utf-8"))
    assert manifest["schema"] == 1 and set(manifest["files"]) == {file.name for file in library.files}
    assert all(file.exists() for file in library.files)
    (kernel,) = manifest["kernels"]
    named = {p["name"]: p for p in kernel["parameters"]}
    assert [*named] == ["src", "packed_wei", "scales_dst", "dst"]
    assert named["src"]["c_type"] == "uint8_t" and named["src"]["shape"] == [1, 8, 6, 6]
    assert named["src"]["strides"] == [288, 36, 6, 1] and named["src"]["bytes"] == 288
    assert named["scales_dst"]["optional"] and named["scales_dst"]["default"] == [2.0]
    assert named["packed_wei"]["alignment"] == 128 and named["dst"]["written"]
    assert kernel["packings"][0]["operand"] == "wei" and kernel["undefined_symbols"] == []


def called(library: ExportedLibrary) -> tuple[ctypes.CDLL, list[int], list[int]]:
    """The shared library, and the addresses and bytes of arrays that fit."""
    loaded = shared_library(library)
    loaded.layer_message.restype = ctypes.c_char_p
    parameters = library.kernels[0].interface.parameters
    at, places = 1 << 20, []
    for p in parameters:
        places.append(at)
        at += -(-p.nbytes // 64) * 64
    return loaded, places, [p.nbytes for p in parameters]


def test_the_check_names_what_is_wrong(tmp_path: Path) -> None:
    line = "--dir=FWD_B --attr-scales=wei:common:2 mb1ic16ih12oc16kh3ph1"
    library = cs.export(line, tmp_path, name="layer", threads=2)
    names = [p.name for p in library.kernels[0].interface.parameters]
    assert names[-2:] == ["dst", "workspace"] and "scales_wei" in names
    loaded, places, sizes = called(library)

    def message(**changes: tuple[int, int]) -> str:
        """The answer of the check when parameters have other addresses and bytes."""
        words = []
        for name, place, size in zip(names, places, sizes):
            at, nbytes = changes.get(name, (0, 0))
            words += [ctypes.c_void_p(None if at is None else place + at), ctypes.c_size_t(size + nbytes)]
        return loaded.layer_message(loaded.layer_check(*words)).decode().removeprefix("layer: ")

    assert message() == "every array fits the kernel"
    for name, size in zip(names, sizes):
        assert message(**{name: (0, -1)}) == f"{name} has too few bytes: the kernel needs {size}"
        if name == "scales_wei":
            assert message(**{name: (None, -size)}) == "every array fits the kernel"
        else:
            assert message(**{name: (None, 0)}) == f"{name} is null"
    assert message(src=(2, 0)) == "src is not aligned: its address must be a multiple of 4"
    assert message(packed_wei=(32, 0)) == "packed_wei is not aligned: its address must be a multiple of 128"
    distance = places[names.index("dst")] - places[names.index("src")]
    assert message(dst=(-distance, 0)) == "dst and src overlap"
    assert message(dst=(-distance + sizes[0] - 4, 0)) == "dst and src overlap"
    far = places[names.index("workspace")] - places[names.index("dst")]
    assert message(workspace=(-far, 0)) == "dst and workspace overlap"
    assert loaded.layer_message(9999) == loaded.layer_message(-1) == b"layer: unknown code"


def test_the_header_is_legal_for_every_type(tmp_path: Path) -> None:
    lines = [
        "--dt=bf16 mb1ic8ih6oc16kh3ph1", "--dt=f16 mb1ic8ih6oc16kh3ph1", "--dt=f64 mb1ic8ih6oc16kh3ph1",
        "--dt=u8:s8:s32 mb1ic8ih6oc16kh3ph1", "--dir=BWD_WB mb1ic8ih6oc16kh3ph1",
        "mb1ic4ih6oc8kh1 -> g8mb1ic8ih6oc8kh3ph1", '--dt=s8:s8:s8 mb1ic8ih6oc16kh3ph1n"*/ a name"',
    ]  # fmt: skip
    library = cs.export(lines, tmp_path, name="types", threads=2)
    assert library.kernels[-1].name == "types_a_name"
    run(tool("gcc"), "-std=c11", *STRICT, tmp_path / "example.c", *library.code, "-o", tmp_path / "example")
    assert run(tmp_path / "example").count("us a call") == len(lines)
    run(tool("g++"), "-std=c++11", *STRICT, "-fsyntax-only", "-x", "c++", library.header)
    run(tool("rustc"), "--edition=2021", "--crate-type=lib", "-D", "warnings", "--emit=metadata", tmp_path / "types.rs",
        "-o", tmp_path / "types.rmeta")  # fmt: skip


def test_members_of_odd_sizes(tmp_path: Path) -> None:
    members = [("one.o", b"abc", ("a", "bb")), ("a_long_name_of_a_file.o", b"defgh", ("c",)), ("two.o", b"x", ())]
    (tmp_path / "x.a").write_bytes(archive(members))
    assert run(tool("ar"), "t", tmp_path / "x.a").split() == [name for name, _, _ in members]
    for name, content, _ in members:
        assert run(tool("ar"), "p", tmp_path / "x.a", name) == content.decode()
    index = run(tool("nm"), "--print-armap", tmp_path / "x.a").splitlines()
    assert {"a in one.o", "bb in one.o", "c in a_long_name_of_a_file.o"} <= set(index)


def test_kernels_export_themselves(tmp_path: Path) -> None:
    kernel = cs.compile("mb1ic8ih6oc16kh3ph1", threads=1)
    library = kernel.export(tmp_path, name="own", format="object")
    assert library.code == (tmp_path / "own.o",) and library.header.exists()
    assert library.kernels[0].problem == str(kernel.problem)


def test_equal_exports_have_equal_files(tmp_path: Path) -> None:
    one, two = (cs.export(LAYER, tmp_path / name, name="layer", threads=1) for name in "ab")
    for a, b in zip(one.files, two.files):
        assert a.read_bytes() == b.read_bytes()
