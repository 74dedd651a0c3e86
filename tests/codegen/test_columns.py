"""Vectors of the columns of several rows: which lanes are columns, which share loads, and kernels that read them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from emulated import check_emulated, skip_without_emulator
from natives import llvm_text

import convsmith as cs
from convsmith.codegen.columns import Columns, columns_of, groups_of, interleaved
from convsmith.codegen.shuffles import ShuffleEmitter
from convsmith.compiler.driver import build_artifact, lower
from convsmith.frontend.kernel import CompiledKernel
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Block, Invoke
from convsmith.ir.types import U8
from convsmith.ir.walk import statements_of
from convsmith.machine.base import Machine
from convsmith.machine.registry import host_targets, target
from convsmith.problem import Problem, parse_problem
from convsmith.problem.data import random_arrays
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan
from convsmith.tune.candidates import candidates, default_config

BYTES = target("wasm32+dot_u8")
PAIRS = target("wasm32+pairs_u8")
LAYOUT = "--stag=axb --dtag=axb"
CASES = {
    "two vectors": "--dt=u8:s8:s32 g16mb2ic16ih5iw7oc16kh3kw3ph1pw1",
    "rows apart": "--dt=u8:s8:u8 g8mb1ic8ih9iw8oc8kh3kw3sh2sw2ph1pw1",
    "four taps": "--dt=u8:s8:s8 g8mb1ic8ih6iw9oc8kh2kw4ph1pw2",
    "taps apart": "--dt=u8:s8:s32 g4mb1ic4ih7iw9oc4kh3kw3dh1dw1ph2pw2",
    "no padding": "--dt=u8:s8:u8 g8mb1ic8ih5iw6oc8kh3kw3ph0pw0",
    "zero points": "--dt=u8:s8:u8 --attr-zero-points=src:common:3+dst:common:2 g8mb1ic8ih5iw6oc8kh3kw3ph1pw1",
}


def sums_taps(config: Config) -> bool:
    return config.tiles_at("k_step") == (("kw", 4),)


def has_dots(level: Machine) -> bool:
    """Whether the level adds up four products of bytes for all of their values."""
    return any(x.terms == 4 and not x.limit for x in level.vector_rows("u8", "s8", "s32"))


def of_taps(line: str, level: Machine, threads: int = 1) -> tuple[Problem, Config]:
    """The first config whose instruction adds up taps."""
    problem = parse_problem(f"{LAYOUT} {line}")
    able = replace(level, costs=replace(level.costs, interleave=0.01))
    return problem, next(x.config for x in candidates(problem, able, threads, 100) if sums_taps(x.config))


@pytest.mark.parametrize(
    ("offsets", "found"),
    [
        ((0, 9, 1, 10, 2, 11), Columns(3, 2, 9)),
        ((0, 144, 288, 432, 1, 145, 289, 433), Columns(2, 4, 144)),
        ((0, 9, 18, 1, 10, 19), None),
        ((0, 9, 1, 11), None),
        ((0, 1, 9, 10), None),
        ((0, 9, 18, 27), None),
    ],
)
def test_lanes_that_are_columns(offsets: tuple[int, ...], found: Columns | None) -> None:
    assert columns_of(offsets) == found


@pytest.mark.parametrize(("width", "rows", "most"), [(4, 4, 16), (8, 4, 16), (16, 4, 16), (8, 2, 8), (4, 2, 8)])
def test_columns_are_interleaved(width: int, rows: int, most: int) -> None:
    """The shuffles, computed by numpy, give each column of the rows in turn."""
    emitted = _Shuffled()
    given = np.arange(rows * width).reshape(rows, width)
    emitted.values = {f"%r{n}": row for n, row in enumerate(given)}
    parts = [interleaved(emitted, U8, [*emitted.values][:rows], width, n, most) for n in range(rows * width // most)]
    np.testing.assert_array_equal(np.concatenate([emitted.values[x] for x in parts]), given.T.ravel())


class _Shuffled(ShuffleEmitter):
    def __init__(self) -> None:
        super().__init__(128, "")
        self.values: dict[str, np.ndarray] = {}

    def shuffle(self, t: object, count: int, a: str, b: str, places: object) -> str:
        name = f"%s{len(self.values)}"
        both = np.concatenate([self.values[a], self.values[b]])
        assert len(self.values[a]) == len(self.values[b]) == count
        self.values[name] = both[list(places)]  # type: ignore[call-overload]
        return name


def test_neighbours_share_their_rows() -> None:
    lanes = "(0, 24, 48, 72, 1, 25, 49, 73, 2, 26, 50, 74, 3, 27, 51, 75)"
    starts = (0, 4, 8, 20, 28, 32)
    body = "\n".join(f"    dot_u8_s8(acc[0]{{4}}, a[{n}]{{{lanes}}}, w[0]{{16}})" for n in starts)
    head = "kernel k(a: u8[128], w: s8[16], dst: s32[4])\n  alloc acc: s32[4] @register:"
    text = f"{head}\n{body}\n    dst[0] = acc[0]\n"
    kernel = parse_kernel(text)
    (statements,) = _blocks(kernel.body)
    groups = {start: group for (_, _, start), group in groups_of(statements.stmts).items()}
    assert groups == {0: (0, 8), 4: (0, 8), 8: (8, 4), 20: (20, 4), 28: (28, 8), 32: (28, 8)}


def _blocks(s: object) -> list[Block]:
    found = [s] if isinstance(s, Block) else []
    return found or _blocks(s.body)  # type: ignore[attr-defined]


@pytest.mark.sampled(2, "line")
@pytest.mark.parametrize("line", CASES.values(), ids=[*CASES])
def test_kernels_in_an_engine(line: str) -> None:
    skip_without_emulator(BYTES)
    problem, config = of_taps(line, BYTES)
    check_emulated(problem, build_artifact(problem, config, BYTES), random_arrays(problem))


@pytest.mark.sampled(2, "threads", "line")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("line", CASES.values(), ids=[*CASES])
def test_kernels_on_this_machine(line: str, threads: int) -> None:
    lines = line.replace("g4mb1ic4", "g16mb1ic16").replace("oc4", "oc16").replace("g8mb1ic8", "g16mb1ic16")
    lines = lines.replace("oc8", "oc16")
    level = next((x for x in host_targets() if has_dots(x) and not x.vectors.scalable), None)
    if level is None:
        pytest.skip("this machine has no dot products of four bytes that are exact for all bytes")
    problem, config = of_taps(lines, level, threads)
    assert CompiledKernel(problem, level, config, threads).verify().ok


def test_columns_of_two_taps_fill_registers() -> None:
    """The first choice interleaves pixels by shuffles of whole registers, which engines know as one instruction."""
    level = target("wasm32+relaxed")
    problem = parse_problem(f"{LAYOUT} --dt=u8:s8:u8 g192mb1ic192ih12oc192kh2")
    config = default_config(problem, level, threads=1)
    assert config.tiles_at("k_step") == (("kw", 2),)
    shuffles = [x for x in CompiledKernel(problem, level, config, 1).asm().splitlines() if "i8x16.shuffle" in x]
    order = ", ".join(f"{n}, {n + 16}" for n in range(8))
    assert shuffles
    assert all(x.endswith(order) for x in shuffles)
    skip_without_emulator(level)
    check_emulated(problem, build_artifact(problem, config, level), random_arrays(problem))


def test_adjacent_pixels_share_columns() -> None:
    """Both pixels of a tile multiply the same registers, whose sums of 16 channels are stored as one vector."""
    problem = parse_problem(f"{LAYOUT} --dt=u8:s8:u8 g16mb1ic16ih9iw8oc16kh3kw3ph1pw1")
    config = default_config(problem, BYTES, threads=1)
    assert config.size("ow") == 2
    made = lower(plan(problem, config, BYTES)).kernel
    reads = [x.args[0] for x in statements_of(made.body) if isinstance(x, Invoke)]
    assert len(reads) == 2 * len({*reads})
    assembly = CompiledKernel(problem, BYTES, config, 1).asm()
    assert assembly.count("i8x16.narrow_i16x8_u") == 2
    assert "store32_lane" not in assembly
    skip_without_emulator(BYTES)
    check_emulated(problem, build_artifact(problem, config, BYTES), random_arrays(problem))


def test_first_choices() -> None:
    """Bytes of depthwise kernels are multiplied by dot products where a machine has a price for their columns."""
    line = f"{LAYOUT} --dt=u8:s8:u8 g144mb1ic144ih28oc144oh28kh3ph1"
    assert sums_taps(default_config(parse_problem(line), BYTES))
    assert not sums_taps(default_config(parse_problem(line.replace("kh3ph1", "kh5ph2")), BYTES))
    assert not sums_taps(default_config(parse_problem(line.replace("axb", "abx")), BYTES))
    assert sums_taps(default_config(parse_problem(line), PAIRS))
    without = replace(BYTES, costs=replace(BYTES.costs, interleave=0.0))
    assert not sums_taps(default_config(parse_problem(line), without))


def test_larger_weights_have_a_kernel_of_words() -> None:
    """Pairs of taps are multiplied as words where weights are beyond the limit of the instruction for bytes."""
    skip_without_emulator(PAIRS)
    kernel = cs.compile(f"{LAYOUT} --dt=u8:s8:u8 g8mb1ic8ih5iw6oc8kh3kw3ph1pw1", target=PAIRS.name, threads=1)
    assert sums_taps(kernel.config) and kernel.artifact is not None and kernel.artifact.limits == {"wei": 64}
    assert kernel.without_limits().config.tiles_at("k_step") == (("kw", 2),)
    assert kernel.verify().ok  # with weights of either kernel


def test_first_choices_read_their_copy_alone() -> None:
    """The copy has room for the last terms of each row, so that no product is masked."""
    problem = parse_problem(f"{LAYOUT} --dt=u8:s8:u8 g16mb1ic16ih5iw6oc16kh3kw3ph1pw1")
    text = str(lower(plan(problem, default_config(problem, BYTES), BYTES)).kernel)
    assert "dot_u8_s8(" in text and "sum(" not in text


@pytest.mark.parametrize(("t", "count", "stores"), [("s32", 5, 2), ("f32", 4, 1), ("f32", 2, 1), ("s16", 4, 4)])
def test_registers_of_bytes_are_stored_together(t: str, count: int, stores: int) -> None:
    """Four registers fill a vector; what is left over, and types that no instruction narrows, keep their own stores."""
    body = "\n".join(f"  dst[{4 * n}]{{4}} = cast(u8, src[{4 * n}]{{4}})" for n in range(count))
    kernel = parse_kernel(f"kernel k(src: {t}[20], dst: u8[20])\n{body}\n")
    text = llvm_text(kernel, BYTES)
    assert len([x for x in text.splitlines() if x.lstrip().startswith("store")]) == stores


def test_sums_with_absent_terms_are_stored_together() -> None:
    """The stores read the sums of the end of a branch."""
    level, problem = target("wasm32"), parse_problem(f"{LAYOUT} --dt=s8:s8:s8 g16mb1ic16ih9iw12oc16kh4kw3sh2sw1ph1pw0")
    skip_without_emulator(level)
    config = Config.parse(
        "--target=wasm32 --lane=g --register=oh:1,ow:5,g:8,kh:4,kw:3 --order=mb,oh,ow,g,oc --reduce=ic,kh,kw"
    )
    check_emulated(problem, build_artifact(problem, config, level), random_arrays(problem))


def test_registers_apart_are_stored_alone() -> None:
    body = "\n".join(f"  dst[{n}]{{4}} = cast(u8, src[{n}]{{4}})" for n in (0, 8))
    text = llvm_text(parse_kernel(f"kernel k(src: s32[12], dst: u8[12])\n{body}\n"), BYTES)
    assert text.count("store <4 x i8>") == 2


def test_sums_become_bytes_by_two_instructions() -> None:
    text = "kernel k(src: s32[64], dst: u8[64])\n  for i in 0 .. 16:\n    dst[i * 4]{4} = cast(u8, src[i * 4]{4})\n"
    assembly = llvm_text(parse_kernel(text), BYTES)
    assert "narrow.signed.v8i16.v4i32" in assembly and "narrow.unsigned.v16i8.v8i16" in assembly
    assert "smax" not in assembly
