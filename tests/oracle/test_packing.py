"""Packed operands are what the nest reads, in the order in which it reads; passes derive every packing kernel."""

from __future__ import annotations

import ast
import random
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draws import examples
from guarded import Array, memories
from hypothesis import assume, given
from hypothesis import strategies as st
from oracles import small_target
from problems import random_config, random_problem

import convsmith
from convsmith.diag.errors import ConfigError
from convsmith.interp import run
from convsmith.ir.buffer import UNKNOWN
from convsmith.ir.intern import interning
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import For, Kernel
from convsmith.ir.types import U8
from convsmith.ir.walk import loops_of
from convsmith.passes.derive_packing import derive_packing
from convsmith.passes.manager import run_steps
from convsmith.problem.data import random_arrays
from convsmith.schedule.packing import packing_steps
from convsmith.schedule.plan import plan
from convsmith.statement.views import statement


class Traced(np.ndarray[Any, Any]):
    """An array that notes which elements are read and written, one after the other."""

    def __getitem__(self, key: Any) -> Any:
        self.read.extend(np.atleast_1d(key).tolist())
        self.journal.append(np.atleast_1d(np.asarray(self)[key]))
        return np.asarray(self)[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.written.extend(np.atleast_1d(key).tolist())
        np.asarray(self)[key] = value


def traced(array: Array, journal: list[Array] | None = None) -> Any:
    """A copy that notes its accesses; the journal has what is read of several arrays."""
    found = array.copy().view(Traced)
    found.read, found.written = [], []  # type: ignore[attr-defined]
    found.journal = [] if journal is None else journal  # type: ignore[attr-defined]
    return found


def packed_by(pack: Kernel, memory: dict[str, Array], **sizes: int) -> Array:
    """Return the array that the packing kernel writes, one element after the other, each once; sums stay in memory."""
    *given, packed = pack.params
    out = traced(np.zeros(packed.size if packed.size < UNKNOWN else 4096, packed.dtype.numpy))
    memory |= {b.name: np.full(b.size, 77, b.dtype.numpy) for b in pack.written if b is not packed}
    run(pack, {**{b.name: memory[b.name] for b in given}, packed.name: out}, {}, sizes)
    count = packed.size if packed.size < UNKNOWN else len(out.written)
    assert out.written == list(range(count))
    return np.asarray(out)[:count]


def reads(kernel: Kernel, memory: dict[str, Array], name: str) -> tuple[list[float], list[int]]:
    """The numbers that a kernel reads of an array, in order, and where they lie."""
    copies = {b.name: memory[b.name].copy() for b in kernel.params}
    copies[name] = traced(copies[name])
    run(kernel, copies)
    places = copies[name].read  # type: ignore[attr-defined]
    return np.asarray(copies[name])[places].astype(np.float64).tolist(), places


@examples(30)
@given(st.integers(0, 2**32))
def test_the_packed_operand_in_the_order_of_the_nest(seed: int) -> None:
    """For random problems and schedules: the nest reads the same numbers as before, from where packing wrote them."""
    rng = random.Random(seed)
    problem = random_problem(rng, 400)
    target = small_target(rng.choice((2, 4)))
    config = random_config(rng, problem, target).changed(threads=1, realise=rng.choice(("peel", "mask")))
    with interning():
        try:
            plain_statement = statement(problem, target)
            sides = (plain_statement.b.name, plain_statement.a.name)
            config = config.changed(pack=sides[: rng.choice((1, 2))])
            made = plan(problem, config, target)
            kernel, steps = made.program.naive(), made.pipeline
            places = [n for n, step in enumerate(steps) if step.run is derive_packing]
            before = run_steps(kernel, steps[: places[0]])
            memory = memories(problem, random_arrays(problem, seed))
            for k in kernel.before:
                memory |= {b.name: np.zeros(b.size, b.dtype.numpy) for b in k.written}
                run(k, {b.name: memory[b.name] for b in k.params})
            sums = {b.name: memory[b.name].tolist() for k in kernel.before for b in k.written}
            for n in places:
                after = run_steps(before, [steps[n]])
                assume(after is not before)
                (pack,) = set(after.packs) - set(before.packs)
                operand, *_, packed = pack.params
                memory[packed.name] = packed_by(pack, memory)
                plain, _ = reads(before, memory, operand.name)
                found, _ = reads(after, memory, packed.name)
                if operand.name in config.flip:  # packed with the top bit turned over
                    plain = [v - 128 if operand.dtype is U8 else v + 128 for v in plain]
                assert found == plain
                assert {name: memory[name].tolist() for name in sums} == sums
                before = after
        except ConfigError:
            assume(False)


STREAM = """\
kernel k(bias: {bias}[?], wei: {wei}[?], scale: f32[?], a: f32[{depth}], dst: f32[?]{size})
  for c.o in 0 .. {tiles}:
    alloc acc: f32[{tile}] @register:
      for c.l in 0 .. min(-c.o * {tile} + {n}, {tile}):
        acc[c.l] = cast(f32, bias[c.l + c.o * {tile}])
      {first}:
        {second}:
          acc[c.l] = acc[c.l] + a[k] * cast(f32, wei[c.l * {depth} + c.o * {tile} * {depth} + k])
      for c.l in 0 .. min(-c.o * {tile} + {n}, {tile}):
        dst[c.l + c.o * {tile}] = acc[c.l] * scale[c.l + c.o * {tile}]
"""
"""Three operands, read one after the other for each tile of channels."""
TYPES = st.sampled_from(("f32", "s8", "f16"))


@examples(30)
@given(st.integers(1, 13), st.integers(1, 5), st.integers(1, 4), TYPES, TYPES, st.booleans(), st.booleans())
def test_a_stream_in_the_order_of_the_nest(
    n: int, tile: int, depth: int, bias: str, wei: str, depth_first: bool, at_call: bool
) -> None:
    """Several operands as one stream, of one type or several: read as they are, and written one after the other."""
    size, tiles = ("n", f"(n + {tile - 1}) // {tile}") if at_call else (n, -(-n // tile))
    loops = (f"for k in 0 .. {depth}", f"for c.l in 0 .. min(-c.o * {tile} + {size}, {tile})")
    first, second = loops if depth_first else loops[::-1]
    kernel = parse_kernel(
        STREAM.format(bias=bias, wei=wei, depth=depth, size=", n" if at_call else "", tiles=tiles, tile=tile, n=size,
                      first=first, second=second)
    )  # fmt: skip
    sizes = {"n": n} if at_call else {}
    rng = np.random.default_rng(n)
    lengths = {"bias": n, "wei": n * depth, "scale": n, "a": depth, "dst": n}
    memory = {b.name: rng.integers(-9, 10, lengths[b.name]).astype(b.dtype.numpy) for b in kernel.params}
    after = derive_packing(kernel, ("bias", "wei", "scale"), "stream")
    (pack,) = after.packs
    packed = packed_by(pack, memory, **sizes)
    found = []
    for k, names in ((kernel, ("bias", "wei", "scale")), (after, ("stream",))):
        journal: list[Array] = []
        copies = {b.name: (packed if b.name == "stream" else memory[b.name]).copy() for b in k.params}
        copies |= {name: traced(copies[name], journal) for name in names}
        run(k, copies, {}, sizes)
        found.append(([x.tobytes() for x in journal], copies["dst"].tolist()))
    assert found[0] == found[1]


SUMS = """\
kernel k(lhs: u8[{m}, {d}], sums: s32[{m}], out: s32[{m}])
  for {loops[0]}:
    for {loops[1]}:
      for {loops[2]}:
        for {loops[3]}:
          out[m.o * {width} + m.i] = out[m.o * {width} + m.i] + cast(s32, lhs[m.o * {width} + m.i, d.o * {deep} + d.i])
  for m in 0 .. {m}:
    out[m] = out[m] - sums[m]
before sums(lhs: u8[{m}, {d}], point: s32[1], sums: s32[{m}])
  for m in 0 .. {m}:
    alloc acc: s32[] @register:
      acc[] = s32(0)
      for d in 0 .. {d}:
        acc[] = acc[] + cast(s32, lhs[m, d])
      sums[m] = acc[] - point[0] * s32({d})
"""
"""The sums along depth of a side, less a zero point for each entry; the loops in any order that tiles allow."""
ORDERS = [o for o in permutations(("m.o", "m.i", "d.o", "d.i")) if o.index("m.o") < o.index("m.i")
          and o.index("d.o") < o.index("d.i")]  # fmt: skip


@examples(30)
@given(st.sampled_from(ORDERS), st.integers(1, 9), st.integers(1, 4), st.integers(1, 9), st.integers(1, 4))
def test_sums_are_made_while_packing(order: tuple[str, ...], m: int, width: int, d: int, deep: int) -> None:
    """Whatever the order of depth and width, packing leaves the sums along depth; no other kernel does."""
    width, deep = min(width, m), min(deep, d)
    ends = {"m.o": str(-(-m // width)), "d.o": str(-(-d // deep)),
            "m.i": f"min(-m.o * {width} + {m}, {width})", "d.i": f"min(-d.o * {deep} + {d}, {deep})"}  # fmt: skip
    loops = [f"{name} in 0 .. {ends[name]}" for name in order]
    kernel = parse_kernel(SUMS.format(m=m, d=d, width=width, deep=deep, loops=loops))
    after = derive_packing(kernel, ("lhs",), "lhs_p")
    assert not after.before
    lhs = np.random.default_rng(m).integers(0, 256, (m, d)).astype(np.uint8)
    memory = {"lhs": lhs.ravel(), "point": np.array([5], np.int32)}
    truth = lhs.sum(1, dtype=np.int64) - 5 * d
    for steps in ([], packing_steps(after.packs[0], small_target())):
        pack = run_steps(after.packs[0], steps)
        made = {b.name: np.full(b.size, 77, b.dtype.numpy) for b in pack.written}
        rows = {row.name: row.kernel for row in small_target().instructions}
        run(pack, {b.name: made.get(b.name, memory.get(b.name)) for b in pack.params}, rows)
        assert made["sums"].tolist() == truth.tolist()


def test_terms_are_added_up_by_the_instruction_that_multiplies() -> None:
    loops = ["d.o in 0 .. 2", "m.o in 0 .. 2", "m.i in 0 .. 4", "d.i in 0 .. 4"]
    kernel = parse_kernel(SUMS.format(m=8, d=8, width=4, deep=4, loops=loops))
    pack = derive_packing(kernel, ("lhs",), "lhs_p").packs[0]
    text = str(run_steps(pack, packing_steps(pack, small_target())))
    assert "dot_u8_4(acc[0, 0, 0]{4}, lhs_p[" in text and "repeat(s8(1), 16)" in text
    assert text.count("sums: s32[8]") == 1


def test_masked_elements_of_a_window_are_not_read() -> None:
    """Elements that a mask around the product leaves out may lie outside of the operand: zeros stand for them."""
    kernel = parse_kernel(
        "kernel k(src: f32[4], wei: f32[3], dst: f32[4])\n  for x in 0 .. 4:\n    for t in 0 .. 3:\n"
        "      dst[x] = dst[x] + (src[t + x - 1] * wei[t] if t + x - 1 >= 0 and -t - x + 4 >= 0 else 0.0)\n"
    )
    pack, weights = derive_packing(derive_packing(kernel, ("src",), "src_p"), ("wei",), "wei_p").packs
    packed = packed_by(pack, {"src": np.arange(1, 5, dtype=np.float32)})
    assert packed.reshape(4, 3).tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 0]]
    assert "if" not in str(weights)


def test_entries_that_are_read_several_times_are_added_up_by_a_kernel_of_their_own() -> None:
    kernel = parse_kernel(
        "kernel k(src: u8[8], sums: s32[1], dst: s32[6])\n"
        "  for x in 0 .. 6:\n    for t in 0 .. 3:\n      dst[x] = dst[x] + cast(s32, src[t + x]) - sums[0]\n"
        "before sums(src: u8[8], sums: s32[1])\n"
        "  alloc acc: s32[] @register:\n    acc[] = s32(0)\n"
        "    for i in 0 .. 8:\n      acc[] = acc[] + cast(s32, src[i])\n    sums[0] = acc[]\n"
    )
    after = derive_packing(kernel, ("src",), "src_p")
    assert [len(k.params) for k in after.packs] == [2] and after.before == kernel.before


def test_where_every_loop_indexes_the_operand_reading_is_sequential() -> None:
    kernel = parse_kernel(
        "kernel k(wei: f32[6, 8], dst: f32[6, 8])\n"
        "  for n.o in 0 .. 2:\n    for k in 0 .. 6:\n      for n.l in 0 .. 4:\n"
        "        dst[k, n.l + n.o * 4] = wei[k, n.l + n.o * 4]\n"
    )
    after = derive_packing(kernel, ("wei",), "wei_p")
    memory = {"wei": np.arange(48, dtype=np.float32), "dst": np.zeros(48, np.float32)}
    memory["wei_p"] = packed_by(after.packs[0], memory)
    assert reads(after, memory, "wei_p")[1] == list(range(48))


def loops(pack: Kernel) -> list[tuple[str, int]]:
    return [(loop.var.name, int(loop.hi)) for loop in loops_of(pack.body) if isinstance(loop, For)]


HIERARCHY = """\
kernel compute(lhs: u8[48, 64], rhs: u8[64, 32], acc: s32[48, 32])
  for l2.d in 0 .. 2:
    for l1.w in 0 .. 4:
      for l1.d in 0 .. 2:
        for run.w in 0 .. 3:
          for c in 0 .. 32:
            for run.d in 0 .. 4:
              for w in 0 .. 4:
                for d in 0 .. 4:
                  acc[l1.w * 12 + run.w * 4 + w, c] = acc[l1.w * 12 + run.w * 4 + w, c] + \
cast(s32, lhs[l1.w * 12 + run.w * 4 + w, l2.d * 32 + l1.d * 16 + run.d * 4 + d]) * \
cast(s32, rhs[l2.d * 32 + l1.d * 16 + run.d * 4 + d, c])
"""
"""The loops of the compute stage: blocks for L2 and for L1, runs along depth, and the kernel's cells."""


def test_the_hierarchy_of_blocks() -> None:
    """The packing loops are the compute loops, less those that do not index the side that is packed."""
    after = derive_packing(derive_packing(parse_kernel(HIERARCHY), ("lhs",), "lhs_p"), ("rhs",), "rhs_p")
    lhs, rhs = after.packs
    order = [("l2.d", 2), ("l1.w", 4), ("l1.d", 2), ("run.w", 3), ("run.d", 4), ("w", 4), ("d", 4)]
    assert loops(lhs) == order
    assert loops(rhs) == [("l2.d", 2), ("l1.d", 2), ("c", 32), ("run.d", 4), ("d", 4)]
    # A register block has the width of the kernel and the depth of a cell, side by side.
    assert lhs.params[1].shape[-2:] == (4, 4)


SIZES = [(48, 64, 16, 4), (24, 32, 32, 8), (12, 20, 5, 3), (24, 20, 16, 8), (10, 20, 16, 4), (9, 7, 3, 2)]


@pytest.mark.parametrize(("l2_width", "l2_depth", "l1_depth", "width"), SIZES)
def test_seek_run(l2_width: int, l2_depth: int, l1_depth: int, width: int) -> None:
    """A run begins at width * start_depth + start_width * run depth, the width rounded up to whole runs.

    That is gemmlowp's position but for the runs of a last block of less depth: gemmlowp lets them follow each other,
    here each has the room of the others, and zeros after its entries.
    """
    depths, runs = -(-l2_depth // l1_depth), -(-l2_width // width)
    text = (
        f"kernel k(lhs: u8[{l2_width}, {l2_depth}], out: u8[{l2_width}, {l2_depth}])\n"
        f"  for depth in 0 .. {depths}:\n    for run in 0 .. {runs}:\n"
        f"      for d in 0 .. min({l2_depth} - depth * {l1_depth}, {l1_depth}):\n"
        f"        for w in 0 .. min({l2_width} - run * {width}, {width}):\n"
        f"          out[run * {width} + w, depth * {l1_depth} + d] = lhs[run * {width} + w, depth * {l1_depth} + d]\n"
    )
    pack = derive_packing(parse_kernel(text), ("lhs",), "lhs_p").packs[0]
    whole = np.zeros((runs * width, depths * l1_depth), np.uint8)
    whole[:l2_width, :l2_depth] = (np.arange(l2_width * l2_depth) % 250 + 1).reshape(l2_width, l2_depth)
    packed = packed_by(pack, {"lhs": whole[:l2_width, :l2_depth].ravel()})
    assert len(packed) == whole.size
    for start_depth in range(0, l2_depth, l1_depth):
        gemmlowp_depth = min(l1_depth, l2_depth - start_depth)
        for start_width in range(0, l2_width, width):
            position = runs * width * start_depth + start_width * l1_depth
            if gemmlowp_depth == l1_depth or not start_width:
                assert position == runs * width * start_depth + start_width * gemmlowp_depth
            run_ = packed[position : position + l1_depth * width].reshape(l1_depth, width)
            block = whole[start_width : start_width + width, start_depth : start_depth + l1_depth]
            assert np.array_equal(run_, block.T)
            assert not run_[gemmlowp_depth:].any() and run_[0].any()


def test_unaligned_blocks_are_completed_with_zeros() -> None:
    text = (
        "kernel k(lhs: u8[5, 6], out: u8[5, 6])\n  for run in 0 .. 2:\n    for d in 0 .. 6:\n"
        "      for w in 0 .. min(-run * 4 + 5, 4):\n        out[run * 4 + w, d] = lhs[run * 4 + w, d]\n"
    )
    pack = derive_packing(parse_kernel(text), ("lhs",), "lhs_p").packs[0]
    lhs = np.arange(1, 31, dtype=np.uint8).reshape(5, 6)
    packed = packed_by(pack, {"lhs": lhs.ravel()}).reshape(2, 6, 4)
    whole = np.zeros((8, 6), np.uint8)
    whole[:5] = lhs
    assert np.array_equal(packed, whole.reshape(2, 4, 6).transpose(0, 2, 1))


def test_an_end_that_hangs_on_another_loop_is_refused() -> None:
    text = (
        "kernel k(src: f32[3], dst: f32[5])\n  for n in 0 .. 2:\n    for m in 0 .. min(-n * 3 + 5, 3):\n"
        "      dst[n * 3 + m] = src[m]\n"
    )
    with pytest.raises(ConfigError, match=r"loop m ends at .*, which hangs on loops that do not index src") as error:
        derive_packing(parse_kernel(text), ("src",), "src_p")
    assert error.value.code == "bounds"


def test_no_other_function_makes_a_kernel_that_packs() -> None:
    """One pass packs operands, from a nest; a second one merges dims of such an operand."""
    root = Path(convsmith.__file__).parent
    found = set()
    for path in root.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "packs=" in text else ():
            if not isinstance(node, ast.Call):
                continue
            if any(k.arg == "packs" and not isinstance(k.value, ast.Constant) for k in node.keywords):
                found.add(path.relative_to(root).as_posix())
    # The parser reads them back, and a page of text leaves them out.
    assert found == {
        "passes/derive_packing.py", "passes/share_taps.py", "passes/share_terms.py", "ir/parse.py",
        "frontend/explain.py",
    }  # fmt: skip
