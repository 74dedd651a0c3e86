"""Libraries for Windows, macOS, iOS and Android: LLVM reads the object code, linkers find the symbols, and programs of
Windows run under wine.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest
from exported import run, tool

import convsmith as cs
from convsmith.codegen.artifact import object_format
from convsmith.codegen.object_symbols import undefined_symbols
from convsmith.diag.errors import ToolchainError, UnsupportedError
from convsmith.exporter.archive import bsd_archive
from convsmith.exporter.target import export_machine
from convsmith.machine.registry import host_targets

STRICT = ("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1")
LAYER = "--dir=FWD_B --accuracy=strict --stag=axb --dtag=axb --attr-post-ops=relu mb1ic8ih6oc16kh3ph1"
SYSTEMS = {
    "x86_64-windows-gnu+avx2": ("x86_64-w64-windows-gnu", "coff", "liblayer.a", ()),
    "x86_64-pc-windows-msvc": ("x86_64-pc-windows-msvc", "coff", "layer.lib", ("_fltused",)),
    "arm64-windows-msvc+dotprod": ("aarch64-pc-windows-msvc", "coff", "layer.lib", ()),
    "x86_64-macos+avx512": ("x86_64-apple-macos11", "mach-o", "liblayer.a", ()),
    "arm64-apple-macos12.3+i8mm": ("aarch64-apple-macos12.3", "mach-o", "liblayer.a", ()),
    "aarch64-ios": ("aarch64-apple-ios14", "mach-o", "liblayer.a", ()),
    "aarch64-linux-android28+dotprod": ("aarch64-linux-android28", "elf", "liblayer.a", ()),
}
"""By target: LLVM's triple, the format, the file of the library, and what the compiler's own library must provide."""
ENTRIES = {"layer", "layer_pack", "layer_check", "layer_message"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SYSTEMS)
def test_object_code_of_a_system(name: str, tmp_path: Path) -> None:
    triple, form, _, outside = SYSTEMS[name]
    assert export_machine(name).triple == triple
    library = cs.export(LAYER, tmp_path, name="layer", format="object", threads=1, target=name)
    (file,) = library.code
    code = file.read_bytes()
    assert object_format(code) == form and undefined_symbols(code) == outside
    (row,) = json.loads(library.manifest.read_text(encoding="utf-8"))["kernels"]
    assert row["target"]["triple"] == triple and row["undefined_symbols"] == [*outside]
    sections = [(s.name() or b"", s.size()) for s in llvm.ObjectFileRef.from_data(code).sections()]
    assert max(size for name, size in sections if b"text" in name) > 500


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_static_library_of_a_system(name: str, tmp_path: Path) -> None:
    library = cs.export(LAYER, tmp_path, name="layer", threads=1, target=name)
    assert [file.name for file in library.code] == [SYSTEMS[name][2]]
    index = run(tool("llvm-nm"), "--print-armap", library.code[0])
    listed = set(re.findall(r"^_?(\w+) in layer\.o(?:bj)?$", index, re.MULTILINE))
    assert listed == ENTRIES | ({"layer_pack_wei"} & listed)
    cmake = (tmp_path / "CMakeLists.txt").read_text(encoding="utf-8")
    assert ("max-page-size=16384" in cmake) == ("android" in name)


def test_an_archive_of_bsd() -> None:
    """Its index has the place of each symbol's member, whose content begins at a multiple of 8 bytes."""
    members = [("one.o", b"abc", ("b", "aa")), ("a_long_name.o", b"defgh" * 3, ("c",))]
    made = bsd_archive(members)
    assert made[:8] == b"!<arch>\n" and made[8:13] == b"#1/20"
    start = 8 + 60 + 20
    (size,) = struct.unpack_from("<I", made, start)
    assert size == 3 * 8
    pairs = [struct.unpack_from("<II", made, start + 4 + 8 * n) for n in range(3)]
    names = made[start + 8 + size :]
    found = {}
    for name, place in pairs:
        title = int(made[place + 3 : place + 16])
        content = place + 60 + title
        assert content % 8 == 0
        found[names[name : names.index(b"\0", name)].decode()] = made[content : content + 3]
    assert found == {"_aa": b"abc", "_b": b"abc", "_c": b"def"}


def test_code_of_another_system_is_not_called(tmp_path: Path) -> None:
    machine = export_machine("x86_64-windows-gnu")
    kernel = cs.frontend.kernel.CompiledKernel(cs.problem.parse_problem(LAYER), machine, None, 1)
    with pytest.raises(UnsupportedError, match="is made for another system, whose object code is COFF"):
        kernel(np.ones((1, 8, 6, 6), np.float32), np.ones((16, 8, 3, 3), np.float32), np.ones(16, np.float32))


def test_bytes_of_no_format() -> None:
    assert object_format(b"") is object_format(bytes(40)) is None
    with pytest.raises(ToolchainError, match="40 bytes are no object code of ELF, COFF, Mach-O or WebAssembly"):
        undefined_symbols(bytes(40))


def wine() -> str:
    """The path of wine, which Debian does not put on PATH; the test is skipped where there is none."""
    found = shutil.which("wine64") or shutil.which("wine") or shutil.which("/usr/lib/wine/wine64")
    if found is None:
        pytest.skip("there is no wine")
    return found


PROGRAMS = {
    "f32": (LAYER, "generic", 1), "f32, by parts": (LAYER, "avx2", 2), "f32 in long vectors": (LAYER, "avx512", 2),
    "transforms": ("--stag=axb --dtag=axb mb1ic16ih12oc16kh3ph1", "avx2", 1),
    "bytes": ("--dt=u8:s8:s32 --stag=axb --dtag=axb mb1ic16ih6oc16kh3ph1", "avx512_vnni", 1),
    "gradient": ("--dir=BWD_W --accuracy=strict --stag=axb --dtag=axb mb1ic8ih6oc16kh3ph1", "avx2", 1),
}
"""Lines, levels and parts."""


@pytest.fixture(scope="session")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which wine keeps its Windows."""
    return tmp_path_factory.mktemp("wine")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_of_windows_runs(name: str, tmp_path: Path, prefix: Path) -> None:
    """The same example prints the same sums on this system and under wine."""
    line, level, threads = PROGRAMS[name]
    compiler, emulator = tool("x86_64-w64-mingw32-gcc"), wine()
    if level not in {t.name for t in host_targets()}:
        pytest.skip(f"this machine does not run {level}")
    words = "" if level == "generic" else f"+{level}"
    sums = []
    for system in ("linux-gnu", "windows-gnu"):
        folder = tmp_path / system
        library = cs.export(line, folder, name="layer", threads=threads, target=f"x86_64-{system}{words}")
        built = folder / "example.exe"
        run(compiler if "windows" in system else tool("gcc"), *STRICT, folder / "example.c", *library.code, "-o", built)
        begin = [emulator] if "windows" in system else []
        environment = {**os.environ, "WINEPREFIX": str(prefix), "WINEDEBUG": "-all"}
        done = subprocess.run([*begin, str(built)], capture_output=True, text=True, timeout=300, env=environment)
        assert done.returncode == 0, done.stderr
        sums.append(re.findall(r"sum of (\w+) (\S+),", done.stdout))
    assert sums[0] == sums[1] and sums[0]
