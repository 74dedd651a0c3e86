"""The emulated machine: the contract of a kernel's memory, what ends a run, and what is refused before one."""

from __future__ import annotations

import dataclasses
import stat
from pathlib import Path

import numpy as np
import pytest
from emulated import (
    MISPLACED,
    MISREAD,
    TILE_FORMS,
    UNSIGNED,
    emulated_kernel,
    inserted_byte,
    pair_products,
    skip_without_emulator,
    tile_products,
)
from llvm_kernels import (
    MEMORY_FUNCTIONS,
    channels_last,
    chunk,
    data,
    depthwise,
    expected,
    gradients,
    object_code,
    quantised,
    weights,
    whole,
)

from convsmith.codegen import llvm_bind
from convsmith.codegen.artifact import Argument, Artifact, Entry
from convsmith.diag.errors import ConvsmithError, ToolchainError, UnsupportedError, UsageError
from convsmith.diag.settings import settings
from convsmith.machine.x86.levels import LEVELS
from convsmith.runtime.host_kernel import HostKernel

SHAPE = (2, 5, 3, 7)
X, W, B = channels_last(SHAPE), weights(5), data((5,), 9)


@pytest.fixture
def emulator() -> None:
    """Skips where there is no Bochs."""
    skip_without_emulator()


needs_emulator = pytest.mark.usefixtures("emulator")


def copies(body: str, n: int = 16, declare: str = "", needs: tuple[str, ...] = ()) -> Artifact:
    """`dst[i] = src[i]` for n numbers of 32 bits, with `body` before each, which sees %src, %dst and %i."""
    lines = f"""
      {body}
      %p = getelementptr i32, ptr %src, i64 %i
      %x = load i32, ptr %p, align 4
      %q = getelementptr i32, ptr %dst, i64 %i
      store i32 %x, ptr %q, align 4
    """
    arguments = (Argument("src", "in", "s32", (n,), "a", n), Argument("dst", "out", "s32", (n,), "a", n))
    code = object_code(declare + chunk("k", n, ("src", "dst"), lines) + whole("k", 1))
    return Artifact(code, "by hand", {"main": Entry("k", arguments)}, "copies", "by hand", needs=needs)


NUMBERS = np.arange(16, dtype=np.int32)


# -- the contract
@needs_emulator
@pytest.mark.parametrize("scratch", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_packing_bias_and_scratch(bias: bool, scratch: bool, in_place: bool) -> None:
    kernel = emulated_kernel(depthwise(SHAPE, bias=bias, scratch=scratch, in_place=in_place))
    given = {"src": X, "wei": W} | ({"bia": B} if bias else {})
    found = kernel.run(given)
    assert list(found) == ["dst"] and found["dst"].strides == X.strides
    assert (found["dst"] == expected(X, W, B if bias else None)).all()


@needs_emulator
def test_outputs_are_written_in_place() -> None:
    kernel = emulated_kernel(depthwise(SHAPE))
    for out in (np.full_like(X, np.nan), np.full(SHAPE, np.nan, np.float32), np.zeros((*SHAPE, 2), np.float32)[..., 1]):
        assert kernel.run({"src": X, "wei": W, "dst": out})["dst"] is out
        assert (out == expected(X, W)).all()


@needs_emulator
def test_blocked_layouts() -> None:
    kernel = emulated_kernel(depthwise((2, 5, 3, 7), layout="aBx8b"))
    x = np.zeros((2, 1, 3, 7, 8), np.float32)
    x[..., :5] = np.moveaxis(X, 1, -1)[:, None]
    y = kernel.run({"src": x, "wei": W})["dst"]
    assert (y[..., 5:] == 0).all() and (np.moveaxis(y[:, 0, ..., :5], -1, 1) == expected(X, W)).all()


@needs_emulator
@pytest.mark.parametrize("add", [False, True])
def test_defaults_and_sums_in_place(add: bool) -> None:
    artifact = quantised(add)
    src, old = data((2, 3, 4)), data((2, 3, 4), 1)
    given = {"src": src, "wei": data((1, 1, 1), 3)}
    more = {"zero_points_dst": 5, "scales_src": np.array([0.5], np.float32)}
    for arrays in (given, {**given, **more}):
        results = []
        for kernel in (emulated_kernel(artifact), HostKernel(artifact)):
            results.append(kernel.run({**arrays, **({"dst": old.copy()} if add else {})})["dst"])
        np.testing.assert_array_equal(*results)


@needs_emulator
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("both", [False, True])
def test_entries_run_in_order(packed: bool, both: bool) -> None:
    artifact = gradients(packed, both)
    arrays = {"src": data((1, 2, 3)), "diff_dst": data((1, 2, 3), 1)}
    found, truth = (kernel.run(arrays) for kernel in (emulated_kernel(artifact), HostKernel(artifact)))
    assert found.keys() == truth.keys() == {"diff_wei", "diff_bia"}
    for name, array in truth.items():
        np.testing.assert_array_equal(found[name], array)


@needs_emulator
def test_parts_of_tasks_run_one_after_the_other() -> None:
    kernel = emulated_kernel(depthwise(SHAPE, scratch=True, threads=3))
    assert (kernel.run({"src": X, "wei": W})["dst"] == expected(X, W)).all()


@pytest.mark.parametrize("shape", [(0, 5, 3, 7), (2, 5, 0, 7)])
def test_empty_tensors_start_nothing(shape: tuple[int, ...]) -> None:
    with settings.scope(bochs="/nowhere/bochs"):
        assert emulated_kernel(depthwise(shape)).run({"src": channels_last(shape), "wei": W})["dst"].shape == shape


@needs_emulator
def test_memory_functions_of_the_c_library() -> None:
    artifact = dataclasses.replace(copies(""), code=object_code(MEMORY_FUNCTIONS))
    found = emulated_kernel(artifact).run({"src": NUMBERS})["dst"]
    assert found.tolist() == [0, 1, 2, *[0x01010101] * 2, *range(5, 16)]


# -- what ends a run
def raised(artifact: Artifact, code: str, timeout: float = 60.0) -> ToolchainError:
    with pytest.raises(ToolchainError) as caught:
        emulated_kernel(artifact, timeout=timeout).run({"src": NUMBERS})
    assert caught.value.code == code
    return caught.value


AVX512 = next(t for t in LEVELS if t.name == "avx512")
WIDE = """
define void @k_chunk(ptr %block, i64 %tid, i64 %n) nounwind "prefer-vector-width"="512" {
  %src = load ptr, ptr %block
  %at = getelementptr ptr, ptr %block, i64 1
  %dst = load ptr, ptr %at
  %x = load <16 x i32>, ptr %src, align 4
  %y = mul <16 x i32> %x, splat (i32 3)
  store <16 x i32> %y, ptr %dst, align 4
  ret void
}
"""


@needs_emulator
def test_an_instruction_that_the_processor_lacks() -> None:
    """The processor is the smallest that has what the artifact says it needs: what needs more cannot hide."""
    code = llvm_bind.object_code(WIDE, AVX512.triple, AVX512.cpu, AVX512.features)
    honest = dataclasses.replace(copies("", needs=AVX512.needs), code=code)
    assert (emulated_kernel(honest).run({"src": NUMBERS})["dst"] == NUMBERS * 3).all()
    error = raised(dataclasses.replace(honest, needs=("avx2",)), "fault")
    assert (
        "the emulated corei7_haswell_4770 stopped in the kernel of 'copies' (config by hand): illegal instruction "
        in (str(error))
    )
    assert "at k_chunk+" in str(error)


@needs_emulator
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("call void @llvm.trap()", "illegal instruction at k_chunk+0x"),
        ("store i32 1, ptr %src", "page fault (writing 0x"),
        ("%e = getelementptr i32, ptr %src, i64 16\n%v = load volatile i8, ptr %e", "page fault (reading 0x"),
        ("%e = getelementptr i32, ptr %dst, i64 16\nstore volatile i8 1, ptr %e", "page fault (writing 0x"),
        ("store volatile i8 1, ptr null", "page fault (writing 0x0) at k_chunk+0x"),
        (
            'call void asm sideeffect "xor %ecx, %ecx; div %ecx", "~{rax},~{rdx},~{rcx}"()',
            "division error at k_chunk+0x",
        ),
        ("call void %src()", "page fault (executing 0x"),
        ("call void @k_deep(ptr %src)", "the emulated corei7_haswell_4770 began again"),
    ],
    ids=["trap", "input", "beyond-input", "beyond-output", "null", "division", "data", "stack"],
)
def test_faults(body: str, message: str) -> None:
    declare = """
    declare void @llvm.trap()
    define internal void @k_deep(ptr %p) nounwind noinline {
      %more = alloca [64 x i8]
      store volatile i8 1, ptr %more
      call void @k_deep(ptr %more)
      store volatile i8 1, ptr %more
      ret void
    }
    """
    error = raised(copies(body, declare=declare), "fault")
    assert message in str(error)


@needs_emulator
def test_a_run_that_does_not_end() -> None:
    text = """
    define void @k_chunk(ptr %block, i64 %tid, i64 %n) nounwind {
      br label %again
    again:
      %n2 = load volatile i64, ptr %block
      br label %again
    }
    """
    artifact = dataclasses.replace(copies(""), code=object_code(text))
    message = str(raised(artifact, "timeout", timeout=0.5))
    assert message.startswith("Bochs (") and message.endswith(") did not end within 0.5 s")


@pytest.mark.parametrize("script", ["exit 3", "echo no such processor; exit 1", "printf '\\nconvsmith results:R'"])
def test_a_program_that_gives_no_results(script: str, tmp_path: Path) -> None:
    program = tmp_path / "bochs"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    with settings.scope(bochs=program):
        message = str(raised(copies(""), "emulator"))
    assert message.startswith(f"Bochs ({program}, processor corei7_haswell_4770) ended without results, status ")
    assert "echo" not in script or message.endswith("status 1: no such processor")


# -- what is refused
def refused(kind: type[ConvsmithError], code: str, artifact: Artifact, **arrays: object) -> str:
    with pytest.raises(kind) as caught:
        emulated_kernel(artifact).run(arrays)  # type: ignore[arg-type]
    assert caught.value.code == code
    return str(caught.value)


def test_a_feature_that_no_processor_has() -> None:
    message = refused(UnsupportedError, "target", copies("", needs=("avx512f", "amx-int8", "amx-fp8")))
    assert message == (
        "no emulated processor has avx512f, amx-int8, amx-fp8; nearest is sapphire_rapids, without amx-fp8"
    )


def test_no_emulator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    begin = "code for levels of x86-64 that this CPU lacks runs under Bochs, which "
    legal = "install Bochs 3.0 or later with the display nogui, or set CONVSMITH_BOCHS to its path"
    with settings.scope(bochs="/nowhere/bochs"):
        message = refused(UnsupportedError, "emulator", copies(""), src=NUMBERS)
    assert message == f"{begin}is not at CONVSMITH_BOCHS='/nowhere/bochs': {legal}"
    monkeypatch.setenv("PATH", str(tmp_path))
    with settings.scope(bochs=None):
        message = refused(UnsupportedError, "emulator", copies(""), src=NUMBERS)
    assert message == f"{begin}PATH does not have: {legal}"


def test_arrays_that_do_not_fit() -> None:
    assert "wei: missing" in refused(UsageError, "missing", depthwise(SHAPE), src=X)
    assert "dtype is float64" in refused(UsageError, "dtype", depthwise(SHAPE), src=X.astype(np.float64), wei=W)


def test_weights_that_are_not_finite() -> None:
    message = refused(
        UnsupportedError, "non-finite", depthwise(SHAPE, needs_finite=True), src=X, wei=np.full_like(W, np.inf)
    )
    assert message.startswith("wei: holds infinities or NaN")


def test_a_problem_larger_than_the_machine() -> None:
    noise = np.random.default_rng(0).integers(0, 1 << 30, 1 << 20, np.int32)
    message = refused(UnsupportedError, "memory", copies("", n=1 << 20), src=noise)
    assert message.endswith("legal are problems of up to 4032 KiB")


def test_code_that_calls_what_is_not_there() -> None:
    artifact = copies("%c = call float @cosf(float 1.0)\ncall void @absent()",
                      declare="declare float @cosf(float)\ndeclare void @absent()\n")  # fmt: skip
    message = refused(ToolchainError, "symbol", artifact, src=NUMBERS)
    assert message == "object code calls absent, cosf; there is memcpy, memset to call"
    entry = Entry("other", artifact.entries["main"].arguments)
    artifact = dataclasses.replace(copies(""), entries={"main": entry})
    assert refused(ToolchainError, "symbol", artifact) == "object code of 'copies' has no other_chunk"


def test_object_code_that_is_none() -> None:
    whole_ = copies("").code
    for code in (b"", b"not an object", b"\x7fELF" + bytes(100), *(whole_[:n] for n in range(64, len(whole_), 97))):
        message = refused(ToolchainError, "object", dataclasses.replace(copies(""), code=code))
        start = f"{len(code)} bytes are not relocatable object code (ELF, x86-64, AArch64, Arm, Hexagon or RISC-V): "
        assert message.startswith(start)


def test_other_abi() -> None:
    assert "ABI version 99" in refused(UsageError, "bad-artifact", dataclasses.replace(copies(""), abi=99))


# -- what emulators are known to do wrong
@needs_emulator
@pytest.mark.parametrize("form", TILE_FORMS)
def test_tiles_of_bytes_have_their_signs(form: str) -> None:
    found, truth, unsigned = tile_products(form)
    if form != "uud" and (found == unsigned).all():
        pytest.skip(UNSIGNED)
    assert (found == truth).all()


@needs_emulator
def test_pairs_are_read_from_where_they_are() -> None:
    found, truth, misread = pair_products()
    if (found == misread).all():
        pytest.skip(MISREAD)
    assert (found == truth).all()


@needs_emulator
def test_bytes_are_inserted_from_where_they_are() -> None:
    found, truth, misplaced = inserted_byte()
    if found == misplaced:
        pytest.skip(MISPLACED)
    assert found == truth
