"""Loading object code: what links, what is refused, how long the code lives, and the ABI of the argument block."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from llvm_kernels import depthwise, object_code

from convsmith.codegen import llvm_bind
from convsmith.codegen.artifact import Argument, Artifact, Entry, Launch, MemoryKind, host_launch
from convsmith.diag.errors import ToolchainError, UnsupportedError, UsageError
from convsmith.machine.generic.level import level as generic_level
from convsmith.machine.x86.levels import LEVELS
from convsmith.runtime import host, permissions, threads
from convsmith.runtime.executable_memory import function_address
from convsmith.runtime.host import HostLibrary
from convsmith.runtime.object_code import ObjectCode, is_linked_here

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


@pytest.fixture(params=["here", "by LLVM"])
def linker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a test with objects that are linked in both ways, of which a machine uses one."""
    if request.param == "by LLVM":
        monkeypatch.setattr(host, "is_linked_here", lambda code: False)


def recorder(threads: int = 1) -> Artifact:
    dst = Argument("dst", "out", "s32", (9,), "a", 9)
    src = Argument("src", "in", "s32", (9,), "a", 9)
    return Artifact(
        object_code(RECORDER), "generic", {"main": Entry("r", (dst, src), host_launch(threads))}, "recorder", ""
    )


@pytest.mark.usefixtures("linker")
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


@pytest.mark.usefixtures("linker")
def test_code_lives_as_long_as_a_function_of_it() -> None:
    function = HostLibrary(recorder())["main"]
    gc.collect()
    others = [HostLibrary(depthwise()) for _ in range(20)]
    seen = np.zeros(9, np.int64)
    block = (ctypes.c_uint64 * 2)(seen.ctypes.data, 3)
    function(ctypes.addressof(block))
    assert seen[0] == 1
    del others


@pytest.mark.usefixtures("linker")
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


@pytest.mark.usefixtures("linker")
@pytest.mark.parametrize("code", [b"", b"not an object", b"\x7fELF" + bytes(100)])
def test_bad_object_code(code: bytes) -> None:
    with pytest.raises(ToolchainError, match="the object code of 'recorder' cannot be linked"):
        HostLibrary(dataclasses.replace(recorder(), code=code))


@pytest.mark.usefixtures("linker")
def test_truncated_object_code() -> None:
    whole = recorder().code
    for cut in range(64, len(whole), 97):
        with pytest.raises(ToolchainError):
            HostLibrary(dataclasses.replace(recorder(), code=whole[:cut]))


@pytest.mark.usefixtures("linker")
def test_missing_symbol() -> None:
    entry = dataclasses.replace(recorder().entries["main"], symbol="absent")
    with pytest.raises(ToolchainError, match="absent"):
        HostLibrary(dataclasses.replace(recorder(), entries={"main": entry}))


def test_isa_of_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "lacking", lambda names: [n for n in names if n not in {"avx2", "fma", "avx512f"}])
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


@pytest.mark.usefixtures("linker")
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
    code = object_code(text)
    function = HostLibrary(dataclasses.replace(recorder(), code=code))["main"]
    seen = np.zeros(9, np.int64)
    block = (ctypes.c_uint64 * 2)(seen.ctypes.data, 0)
    function(ctypes.addressof(block))
    assert (seen.view(np.uint8) == 1).all()


@pytest.mark.usefixtures("linker")
@pytest.mark.sampled(4)
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


@pytest.mark.usefixtures("linker")
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


def test_objects_are_linked_without_llvm_where_they_can_be() -> None:
    """A kernel from the cache waits for no LLVM on the processors that see new instructions by themselves."""
    script = """
import sys
from pathlib import Path
from convsmith.codegen.artifact import Artifact
from convsmith.runtime.executable_memory import function_address
from convsmith.runtime.host import HostLibrary
from convsmith.runtime.object_code import ObjectCode, is_linked_here
HostLibrary(Artifact.from_bytes(Path(sys.argv[1]).read_bytes()))
print("llvmlite" in sys.modules)
"""
    artifact = recorder()
    with tempfile.NamedTemporaryFile() as file:
        file.write(artifact.to_bytes())
        file.flush()
        done = subprocess.run([sys.executable, "-c", script, file.name], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(not is_linked_here(artifact.code))]


@pytest.mark.usefixtures("linker")
def test_code_that_lies_far_from_what_it_calls() -> None:
    """Calls, tables of addresses and constants reach what they name, wherever the code lies."""
    text = """
    @constants = private constant [4 x i64] [i64 5, i64 6, i64 7, i64 8], align 64
    declare i32 @abs(i32)
    define i64 @own(i64 %x) noinline nounwind { %y = add i64 %x, 1000  ret i64 %y }
    define void @r_chunk(ptr %block, i64 %tid, i64 %n) nounwind {
      %dst = load ptr, ptr %block
      %called = call i32 @abs(i32 -41)
      %wide = sext i32 %called to i64
      %own = call i64 @own(i64 %wide)
      store i64 %own, ptr %dst
      %at = getelementptr i64, ptr @constants, i64 %n
      %constant = load i64, ptr %at
      %p = getelementptr i64, ptr %dst, i64 1
      store i64 %constant, ptr %p
      %q = getelementptr i64, ptr %dst, i64 2
      store ptr @abs, ptr %q
      %s = getelementptr i64, ptr %dst, i64 3
      store ptr @own, ptr %s
      ret void
    }
    define void @r(ptr %block) nounwind { call void @r_chunk(ptr %block, i64 0, i64 3)  ret void }
    """
    machine = generic_level()
    code = llvm_bind.object_code(text, machine.triple, machine.cpu, machine.features)  # independent of its place
    function = HostLibrary(dataclasses.replace(recorder(), code=code))["main"]
    seen = np.zeros(9, np.int64)
    function(ctypes.addressof((ctypes.c_uint64 * 2)(seen.ctypes.data, 0)))
    assert seen[:3].tolist() == [1041, 8, function_address("abs")]
    own = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(int(seen[3]))
    assert own(1) == 1001


def test_a_call_reaches_any_distance() -> None:
    """A near call of x86-64 reaches 2 GB: it goes to a jump behind the code, which holds the address."""
    text = """
    declare void @far()
    define void @near() nounwind { call void @far()  call void @far()  ret void }
    """
    code = ObjectCode(llvm_bind.object_code(text, "x86_64-unknown-linux-gnu", "", ""))
    assert code.calls == ("far",) and code.functions == {"near": 0}
    linked = code.at(1 << 46, {"far": 0x1234})
    jump = linked.index(b"\xff\x25\0\0\0\0" + (0x1234).to_bytes(8, "little"))
    calls = [n for n in range(jump) if linked[n] == 0xE8]
    assert [n + 5 + int.from_bytes(linked[n + 1 : n + 5], "little", signed=True) for n in calls] == [jump, jump]


def test_a_function_that_no_library_has() -> None:
    text = RECORDER.replace("nounwind {", "nounwind {\n  call void @nobody_has_this()", 1)
    code = object_code("declare void @nobody_has_this()\n" + text)
    with pytest.raises(ToolchainError, match="the object code of 'recorder' cannot be linked"):
        HostLibrary(dataclasses.replace(recorder(), code=code))
