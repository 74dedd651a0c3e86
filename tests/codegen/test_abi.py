"""The manifest of an artifact: what its entries take, in which order, and what its object code exports."""

from __future__ import annotations

import ctypes
import re
import struct

import llvmlite.binding as llvm
import numpy as np
import pytest
from guarded import check_result, expected, memories

from convsmith.codegen.artifact import FINITE, Artifact
from convsmith.compiler.driver import build_artifact, lower
from convsmith.ir.intern import interning
from convsmith.machine.generic.level import level
from convsmith.problem import Conv
from convsmith.problem.data import random_arrays
from convsmith.runtime.host import HostLibrary
from convsmith.runtime.object_code import ObjectCode
from convsmith.schedule.config import Config
from convsmith.schedule.planned import plan_for

PADDED = "mb2ic3ih5oc6oh5kh3ph1"
BLOCKED = f"--stag=aBcd4b --dtag=aBcd4b {PADDED}"
TILES = "--lane=oc --register=oc:8,ow:2"

CASES = {
    "plain": (PADDED, TILES),
    "bias": (f"--dir=FWD_B {PADDED}", TILES),
    "two-threads": (f"--dir=FWD_B {PADDED}", f"{TILES} --threads=2"),
    "blocked": (BLOCKED, TILES),
    "padded-copy": (PADDED, f"{TILES} --realise=pad_copy"),
    "everything": (f"--dir=FWD_B {BLOCKED}", f"{TILES} --realise=pad_copy --threads=2"),
    "not-packed": (f"--dir=FWD_B g2{PADDED.replace('ic3', 'ic4')}", f"{TILES} --pack="),
}

WEI = "wei in f32 (6, 3, 3, 3) abcd 162 oc,ic,kh,kw"
PACKED = "wei_p packed of wei f32 (216,) a 216"
BIA = "bia in f32 (6,) a 6 oc"
SRC, DST = "src in f32 (2, 3, 5, 5) abcd 150 mb,ic,ih,iw", "dst out f32 (2, 6, 5, 5) abcd 300 mb,oc,oh,ow"
SRC_4, DST_4 = (x.replace("abcd", "aBcd4b").replace("150", "200").replace("300", "400") for x in (SRC, DST))

MAIN = {
    "plain": (SRC, PACKED, DST),
    "bias": (SRC, PACKED, BIA, DST),
    "two-threads": (SRC, PACKED, BIA, DST),
    "blocked": (SRC_4, PACKED, DST_4),
    # An image with its border: 7 rows of 8 columns (3 tiles of 2, and 2) and 3 channels, rounded up to 16 elements;
    # each of two threads copies the 3 rows that it needs.
    "padded-copy": (SRC, PACKED, DST, "scratch scratch f32 (176,) a 176"),
    "everything": (SRC_4, PACKED, BIA, DST_4, "scratch scratch f32 (80,) a 80"),
    "not-packed": (
        "src in f32 (2, 4, 5, 5) abcd 200 mb,ic,ih,iw", "wei in f32 (2, 3, 2, 3, 3) abcde 108 g,oc,ic,kh,kw", BIA, DST,
    ),
}  # fmt: skip
"""Arguments of "main": name, role, data type, logical shape, layout, elements of memory, and names of dims."""


def built(case: str) -> tuple[Conv, Artifact]:
    line, words = CASES[case]
    problem = Conv.parse(line)
    return problem, build_artifact(problem, Config.parse(f"--target=generic {words}"), level())


def arguments(artifact: Artifact, entry: str) -> tuple[str, ...]:
    return tuple(
        f"{a.name} {a.role}{a.of and ' of ' + a.of} {a.dtype} {a.shape} {a.layout} {a.size} {','.join(a.dims)}".rstrip()
        for a in artifact.entries[entry].arguments
    )


def global_symbols(code: bytes) -> dict[str, bool]:
    """Names that an ELF object shares with others, and whether it defines them."""
    sections = {s.name(): s.data() for s in llvm.ObjectFileRef.from_data(code).sections()}
    names, out = sections[b".strtab"], {}
    for name, info, _, section, _, _ in struct.iter_unpack("<IBBHQQ", sections[b".symtab"]):
        if info >> 4:
            out[names[name : names.index(b"\0", name)].decode()] = section != 0
    return out


@pytest.mark.parametrize("case", CASES)
def test_arguments(case: str) -> None:
    _, artifact = built(case)
    assert arguments(artifact, "main") == MAIN[case]
    assert ("pack" in artifact.entries) == (case != "not-packed")
    if "pack" in artifact.entries:
        assert arguments(artifact, "pack") == (WEI, PACKED)
        assert artifact.entries["pack"].launch.threads == 1
    assert artifact.entries["main"].launch.threads == (2 if case in ("two-threads", "everything") else 1)
    assert artifact.limits == ({"wei": FINITE} if case in ("padded-copy", "everything") else {})


@pytest.mark.parametrize("case", CASES)
def test_exports_the_entries_and_nothing_else(case: str) -> None:
    _, artifact = built(case)
    symbols = global_symbols(artifact.code)
    entries = artifact.entries.values()
    assert {n for n, defined in symbols.items() if defined} == {s for e in entries for s in (e.symbol, e.chunk_symbol)}
    openmp = {"GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads"}
    threaded = any(e.launch.threads > 1 for e in entries)
    needed = {n for n, defined in symbols.items() if not defined}
    assert needed - {"memset", "memcpy"} == (openmp if threaded else set())


@pytest.mark.parametrize("case", CASES)
def test_a_call_is_one_function_with_two_symbols(case: str) -> None:
    _, artifact = built(case)
    places = ObjectCode(artifact.code).symbols
    for entry in artifact.entries.values():
        is_one = places[entry.symbol] == places[entry.chunk_symbol]
        assert is_one == (entry.launch.kind == "call")


def test_functions_that_only_call_tiles_are_not_optimised() -> None:
    problem, words = Conv.parse(PADDED), f"--target=generic {TILES}"
    with interning():
        tiles, whole = (lower(plan_for(problem, Config.parse(f"{words} {w}"), level())).text
                        for w in ("", "--outline=no"))  # fmt: skip
    (head,) = re.findall(r"^define .*@convsmith_chunk.*", tiles, re.MULTILINE)
    assert "optnone" in head and tiles.count("optnone") == 1
    assert "optnone" not in whole


def call(library: HostLibrary, entry: str, memory: dict[str, np.ndarray], chunks: int) -> None:
    """Call an entry by its addresses alone: whole, or in parts."""
    function = library[entry]
    addresses = []
    for a in function.entry.arguments:
        size = a.size * (max(chunks, function.entry.launch.threads) if a.role == "scratch" else 1)
        array = memory.setdefault(a.name, np.full(size, np.nan, a.dtype.replace("f", "float")))
        assert array.shape == (size,) and array.dtype.itemsize * 8 == int(a.dtype[1:])
        addresses.append(array.ctypes.data)
    block = (ctypes.c_uint64 * len(addresses))(*addresses)
    if chunks:
        part = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        address = ctypes.cast(function._chunk, ctypes.c_void_p).value
        for n in range(chunks):
            part(address or 0)(ctypes.addressof(block), n, chunks)
    else:
        function(ctypes.addressof(block))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("chunks", [0, 1, 2])
@pytest.mark.parametrize("case", CASES)
def test_a_call_by_hand(case: str, chunks: int) -> None:
    problem, artifact = built(case)
    arrays = random_arrays(problem)
    memory = memories(problem, arrays)
    library = HostLibrary(artifact)
    if "pack" in artifact.entries:
        call(library, "pack", memory, 0)
    call(library, "main", memory, chunks)
    check_result(problem, memory, expected(problem, arrays))


def test_a_manifest_survives_its_file() -> None:
    _, artifact = built("everything")
    assert Artifact.from_bytes(artifact.to_bytes()) == artifact
