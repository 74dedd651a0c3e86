"""Loading object code: what links, what is refused, how long the code lives, and the ABI of the argument block."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from llvm_kernels import depthwise, object_code

from convsmith.codegen.artifact import Argument, Artifact, Entry, Launch, MemoryKind, host_launch
from convsmith.diag.errors import ToolchainError, UnsupportedError, UsageError
from convsmith.machine.x86.levels import LEVELS
from convsmith.runtime import host, permissions, threads
from convsmith.runtime.host import HostLibrary

# Writes what it was given: (tid, n) at dst[tid], and the addresses of the block behind them.
RECORDER = """
define void @r_chunk(ptr %block, i64 %tid, i64 %n) nounwind {
  %dst = load ptr, ptr %block
  %p = getelementptr i64, ptr %dst, i64 %tid
  store i64 %n, ptr %p
  %at1 = getelementptr ptr, ptr %block, i64 1
  %second = load i64, ptr %at1
  %q = getelementptr i64, ptr %dst, i64 8
  store i64 %second, ptr %q
  ret void
}
define void @r(ptr %block) nounwind {
  call void @r_chunk(ptr %block, i64 0, i64 1)
  ret void
}
"""


def recorder(threads: int = 1) -> Artifact:
    dst = Argument("dst", "out", "s32", (9,), "a", 9)
    src = Argument("src", "in", "s32", (9,), "a", 9)
    return Artifact(
        object_code(RECORDER), "generic", {"main": Entry("r", (dst, src), host_launch(threads))}, "recorder", ""
    )


def test_arguments_are_addresses_in_manifest_order() -> None:
    function = HostLibrary(recorder())["main"]
    seen = np.full(9, -1, np.int64)
    block = (ctypes.c_uint64 * 2)(seen.ctypes.data, 0xDEADBEEF12345678)
    function(ctypes.addressof(block))
    assert seen[0] == 1
    assert seen[8] == np.int64(0xDEADBEEF12345678 - 2**64)
    assert (seen[1:8] == -1).all()


def test_every_chunk_runs_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "openmp", lambda: None)
    function = HostLibrary(recorder(threads=5))["main"]
    assert function.whole is None
    seen = np.full(9, -1, np.int64)
    block = (ctypes.c_uint64 * 2)(seen.ctypes.data, 7)
    function(ctypes.addressof(block))
    assert seen.tolist() == [5, 5, 5, 5, 5, -1, -1, -1, 7]


def test_code_lives_as_long_as_a_function_of_it() -> None:
    function = HostLibrary(recorder())["main"]
    gc.collect()
    others = [HostLibrary(depthwise()) for _ in range(20)]
    seen = np.zeros(9, np.int64)
    block = (ctypes.c_uint64 * 2)(seen.ctypes.data, 3)
    function(ctypes.addressof(block))
    assert seen[0] == 1
    del others


def test_equal_symbols_do_not_meet() -> None:
    two = RECORDER.replace("store i64 %n, ptr %p", "store i64 2222, ptr %p")
    first = HostLibrary(recorder())
    second = HostLibrary(dataclasses.replace(recorder(), code=object_code(two)))
    seen = np.zeros(9, np.int64)
    block = (ctypes.c_uint64 * 2)(seen.ctypes.data, 3)
    second["main"](ctypes.addressof(block))
    assert seen[0] == 2222
    first["main"](ctypes.addressof(block))
    assert seen[0] == 1


@pytest.mark.parametrize("code", [b"", b"not an object", b"\x7fELF" + bytes(100)])
def test_bad_object_code(code: bytes) -> None:
    with pytest.raises(ToolchainError, match="cannot link the object code of 'recorder'"):
        HostLibrary(dataclasses.replace(recorder(), code=code))


def test_truncated_object_code() -> None:
    whole = recorder().code
    for cut in range(64, len(whole), 97):
        with pytest.raises(ToolchainError):
            HostLibrary(dataclasses.replace(recorder(), code=whole[:cut]))


def test_missing_symbol() -> None:
    entry = dataclasses.replace(recorder().entries["main"], symbol="absent")
    with pytest.raises(ToolchainError, match="absent"):
        HostLibrary(dataclasses.replace(recorder(), entries={"main": entry}))


def test_isa_of_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "cpu_features", lambda: frozenset({"avx2", "fma", "avx512f"}))
    needs = ("avx512f", "avx512vl", "avx512bw", "avx2")
    library = HostLibrary(dataclasses.replace(recorder(), target="avx512", needs=needs))
    with pytest.raises(UnsupportedError) as caught:
        library["main"](0)
    assert str(caught.value) == (
        "kernel 'recorder' is made for avx512, which this CPU cannot run: it lacks avx512vl, avx512bw; generic code "
        "runs everywhere"
    )


def test_other_abi() -> None:
    with pytest.raises(UsageError, match="ABI version 99"):
        HostLibrary(dataclasses.replace(recorder(), abi=99))


GRID = Launch("grid", runtime="device", grid=(64, 1, 1), group=(32, 1, 1))


@pytest.mark.parametrize(
    "launch, memory, text",
    [
        (GRID, "host", "entry r of kernel 'recorder' is started as a grid; a host starts call and tasks"),
        (Launch("tasks", 2, "pool"), "host", "entry r of .* through the runtime 'pool'; known are gomp"),
        (Launch(), "device", r"entry r of .* do not lie in host memory: src \(device\)"),
        (Launch(), "constant", r"entry r of .* do not lie in host memory: src \(constant\)"),
    ],
)
def test_entries_that_a_host_cannot_start(launch: Launch, memory: MemoryKind, text: str) -> None:
    dst, src = recorder().entries["main"].arguments
    entry = Entry("r", (dst, dataclasses.replace(src, memory=memory)), launch)
    with pytest.raises(UnsupportedError, match=text) as caught:
        HostLibrary(dataclasses.replace(recorder(), entries={"main": entry}))
    assert caught.value.code == "launch"


def test_a_permission_that_nobody_knows() -> None:
    with pytest.raises(UnsupportedError, match=r"needs the permission 'tape', which this .* it asks for amx") as caught:
        HostLibrary(dataclasses.replace(recorder(), permissions=("tape",)))
    assert caught.value.code == "permission"


def test_permissions_are_asked_for_once_and_before_code_is_linked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    permissions._is_granted.cache_clear()
    monkeypatch.setitem(permissions._REQUESTS, "given", lambda: asked.append("given") or True)
    monkeypatch.setitem(permissions._REQUESTS, "denied", lambda: bool(asked.append("denied")))
    for _ in range(2):
        HostLibrary(dataclasses.replace(recorder(), permissions=("given",)))
        with pytest.raises(UnsupportedError, match=r"does not let this process use it \(permission 'denied'\)"):
            HostLibrary(dataclasses.replace(recorder(), code=b"not code", permissions=("denied",)))
    assert asked == ["given", "denied"]
    permissions._is_granted.cache_clear()


def test_levels_with_tile_registers_ask_for_their_state() -> None:
    assert {t.name for t in LEVELS if t.permissions == ("amx",)} == {t.name for t in LEVELS if "amx-tile" in t.needs}


def test_memory_functions_of_libc_resolve() -> None:
    text = """
    declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
    define void @r_chunk(ptr %block, i64 %tid, i64 %n) nounwind {
      %dst = load ptr, ptr %block
      %bytes = mul i64 %n, 72
      call void @llvm.memset.p0.i64(ptr %dst, i8 1, i64 %bytes, i1 false)
      ret void
    }
    define void @r(ptr %block) nounwind {
      call void @r_chunk(ptr %block, i64 0, i64 1)
      ret void
    }
    """
    function = HostLibrary(dataclasses.replace(recorder(), code=object_code(text)))["main"]
    seen = np.zeros(9, np.int64)
    block = (ctypes.c_uint64 * 2)(seen.ctypes.data, 0)
    function(ctypes.addressof(block))
    assert (seen.view(np.uint8) == 1).all()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("count", [1, 2])
def test_nothing_is_left_of_libraries_that_are_dropped(count: int) -> None:
    """The process grows by less than 1 KB a library, in the median of batches: LLVM keeps 9 KB until its LLJIT goes."""
    artifact = depthwise(threads=count)

    def resident() -> int:
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    sizes = []
    for _ in range(8):
        for _ in range(128):
            HostLibrary(artifact)
        sizes.append(resident())
    growth = sorted(after - before for before, after in pairwise(sizes))
    assert growth[len(growth) // 2] < 128 * 1024, growth


def test_libraries_outlive_the_jit_that_linked_them() -> None:
    """Kernels of several LLJITs live side by side, whatever else is dropped between them."""
    artifact, kept = recorder(), []
    for number in range(3 * host._LIBRARIES_OF_A_JIT):
        library = HostLibrary(artifact)
        if number % 50 == 0:
            kept.append(library)
    gc.collect()
    for library in kept:
        dst = np.zeros(9, np.int64)
        block = np.array([dst.ctypes.data, 77], np.uint64)
        library["main"](block.ctypes.data)
        assert (dst[0], dst[8]) == (1, 77)
