"""Spread elements of fragments over the lanes of a warp: each lane accesses the elements in its registers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from convsmith.arith.ranges import Ranges, interval
from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index, Var, as_index, floordiv, mod
from convsmith.ir.instruction import LANES, Instruction, Operand
from convsmith.ir.lane_operands import operands_beside
from convsmith.ir.rewrite import substitute
from convsmith.ir.stages import TENSORISED
from convsmith.ir.stmt import THREAD_LOOPS, For, Invoke, Kernel, Stmt, Store, block
from convsmith.ir.value import Load
from convsmith.ir.walk import statements_of, variables_of, walk
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.scope import LoopRewriter, perfect_nest, with_body, wrap

MAX_RUN = 16
"""Maximum number of elements of a run, which becomes a vector."""
LANE = "lane"
"""Name of the loop over the lanes of a warp."""


def run_name(count: int) -> str:
    """Return the name of the loops over ``count`` elements of a lane that are adjacent along a dim."""
    return f"{LANE}.{count}"


def lane_operands(kernel: Kernel, rows: Sequence[Instruction]) -> dict[Buffer, Operand]:
    """Return the operand whose layout each buffer of fragments has, for operands whose registers belong to lanes."""
    by_name = {row.name: row for row in rows}
    found: dict[Buffer, Operand] = {}
    for s in statements_of(kernel.body):
        if isinstance(s, Invoke) and s.instruction in by_name:
            for operand, v in zip(by_name[s.instruction].operands, (s.dst, *s.args)):
                if isinstance(v, Load) and v.buffer.scope == "fragment" and operand.file == LANES:
                    if found.setdefault(v.buffer, operand).layout != operand.layout:
                        raise ConfigError("fragment", f"spread_lanes: {v.buffer} has the layouts of two operands")
    return {**operands_beside(kernel.body, found), **found}


class _SpreadLanes(LoopRewriter):
    def __init__(self, operands: Mapping[Buffer, Operand]) -> None:
        super().__init__()
        self.operands = operands

    def visit_For(self, loop: For) -> Stmt:
        chain, body = perfect_nest(loop)
        uses = [
            x for x in walk(body) if isinstance(x, (Load, Store)) and x.buffer in self.operands and x.lanes is None
        ]
        if any(isinstance(s, (For, Invoke)) for s in statements_of(body)) or not uses:
            return self._For(loop)
        least = min(uses, key=lambda x: self.operands[x.buffer].size)  # others may be slices of larger fragments
        operand = self.operands[least.buffer]
        rank = len(operand.shape)
        tail = least.index[-rank:]
        element = {v for i in tail for v in variables_of(i)}
        for x in uses:
            moved = {v for i, own in zip(x.index[-rank:], tail) for v in variables_of(i - own)}
            if moved & element or not operand.layout.is_part_of(self.operands[x.buffer].layout):
                raise ConfigError("fragment", f"spread_lanes: `{body}` accesses elements of several lanes")
        threads = max((n + 1 for n, x in enumerate(chain) if x.kind in THREAD_LOOPS), default=0)
        outer = [x for x in chain[threads:] if x.var not in element]
        outer = [For(x.var, x.lo, x.hi, x.body, "unrolled") for x in outer]
        body = wrap(outer, block(*_runs(body, operand, tail, {x.var: int(x.hi) for x in chain if x.var in element})))
        lanes = For(Var(LANE), as_index(0), as_index(operand.layout.lanes), body, "lane")
        return wrap(chain[:threads], lanes)


def _runs(body: Stmt, operand: Operand, tail: tuple[Index, ...], sizes: Mapping[Var, int]) -> list[Stmt]:
    """Return ``body`` for the elements of a lane; elements that are adjacent along a dim are covered by a loop. A nest
    over a slice of the fragment covers the registers of the slice.
    """
    layout, lane = operand.layout, Var(LANE)
    places = [
        layout.coordinates(r, lane, e) for r in range(layout.registers) for e in range(layout.elements)
    ]  # fmt: skip
    places = [at for at in places if _is_within(at, tail, sizes, {lane: (0, layout.lanes - 1)})]
    out: list[Stmt] = []
    start = 0
    while start < len(places):
        step, count = _run(places[start : start + MAX_RUN])
        if count == 1:
            at = places[start]
            loops: list[For] = []
        else:
            var = Var(run_name(count))
            at = tuple(x + var * n for x, n in zip(places[start], step))
            loops = [For(var, as_index(0), as_index(count), body, "unrolled")]
        out.append(wrap(loops, substitute(body, values_at(tail, at, sizes))))
        start += count
    return out


def _is_within(at: tuple[Index, ...], tail: tuple[Index, ...], sizes: Mapping[Var, int], ranges: Ranges) -> bool:
    """Return whether a place of all lanes is in the slice of the coordinates ``tail``, of loops of ``sizes``."""
    inside = True
    for x, i in zip(at, tail):
        (low, high), slice_of = interval(x, ranges), interval(i, {v: (0, n - 1) for v, n in sizes.items()})
        if high < slice_of[0] or low > slice_of[1]:
            inside = False
        elif low < slice_of[0] or high > slice_of[1]:
            raise ConfigError("fragment", f"spread_lanes: {i} is a slice in which some lanes have no elements")
    return inside


def _run(places: Sequence[tuple[Index, ...]]) -> tuple[tuple[int, ...], int]:
    """Return the constant step between consecutive leading places, along a single dim, and the number of these places.
    """

    def step(n: int) -> tuple[int, ...] | None:
        apart = [b - a for a, b in zip(places[n], places[n + 1])]
        return tuple(x.const for x in apart) if all(x.is_const for x in apart) else None

    first = step(0) if len(places) > 1 else None
    if first is None or sorted(map(abs, first))[-2:] not in ([0, 1], [1]) or min(first) < 0:
        return (), 1
    return first, next((n + 1 for n in range(1, len(places) - 1) if step(n) != first), len(places))


def values_at(tail: tuple[Index, ...], at: tuple[Index, ...], sizes: Mapping[Var, int]) -> dict[Var, Index]:
    """Return the iterations of the loops of ``sizes`` in which the coordinates ``tail`` are ``at``."""
    values: dict[Var, Index] = {}
    for i, x in ((i, x - i.const) for i, x in zip(tail, at)):
        digits = sorted((c, v) for v, c in i.terms)
        whole = 1
        for n, (c, v) in enumerate(digits):
            if c != whole or not isinstance(v, Var) or v in values:
                loops = ", ".join(map(str, sizes))
                raise ConfigError("fragment", f"spread_lanes: {i} is no coordinate of loops {loops}")
            whole *= sizes[v]
            values[v] = floordiv(x, c) if n == len(digits) - 1 else mod(floordiv(x, c), sizes[v])
    return values


@stages(*FLATTENED, ensures=TENSORISED)
def spread_lanes(kernel: Kernel, rows: Sequence[Instruction]) -> Kernel:
    """Replace nests over elements of the fragments of ``rows`` by a loop over the lanes, each with its own elements.

    The loops over adjacent elements of a lane, such as pairs of halves in a register, have distinct names, so that they
    may become vectors. A fragment that no row computes with is unchanged.

    Before::

        kernel k(a: u8[16], b: s8[8], dst: s32[8])
          for w in 0 .. 2 #warp:
            alloc acc: s32[1, 2, 2] @fragment:
              for i in 0 .. 1:
                for m in 0 .. 2:
                  for l in 0 .. 2:
                    acc[i, m, l] = s32(0)
              alloc a_f: u8[2, 4] @fragment:
                alloc b_f: s8[4, 2] @fragment:
                  for a_f0 in 0 .. 2:
                    for a_f1 in 0 .. 4:
                      a_f[a_f0, a_f1] = a[a_f0 * 4 + a_f1 + w * 8]
                  for b_f0 in 0 .. 2:
                    for b_f1 in 0 .. 4:
                      b_f[b_f1, b_f0] = b[b_f0 + b_f1 * 2]
                  for i in 0 .. 1:
                    lane_dot(acc[i, 0, 0]{4}, a_f[0, 0]{8}, b_f[0, 0]{8})
              for i in 0 .. 1:
                for m in 0 .. 2:
                  for l in 0 .. 2:
                    dst[l + m * 2 + w * 4] = acc[i, m, l]

    After ``spread_lanes((LANE_DOT,))``::

        kernel k(a: u8[16], b: s8[8], dst: s32[8])
          for w in 0 .. 2 #warp:
            alloc acc: s32[1, 2, 2] @fragment:
              for lane in 0 .. 4 #lane:
                for i in 0 .. 1 #unrolled:
                  acc[i, lane // 2, lane % 2] = s32(0)
              alloc a_f: u8[2, 4] @fragment:
                alloc b_f: s8[4, 2] @fragment:
                  for lane in 0 .. 4 #lane:
                    for lane.2 in 0 .. 2 #unrolled:
                      a_f[lane // 2, lane.2 + lane % 2 * 2] = a[lane * 2 + lane.2 + w * 8]
                  for lane in 0 .. 4 #lane:
                    for lane.2 in 0 .. 2 #unrolled:
                      b_f[lane.2 + lane % 2 * 2, lane // 2] = b[lane.2 * 2 + lane % 2 * 4 + lane // 2]
                  for i in 0 .. 1:
                    lane_dot(acc[i, 0, 0]{4}, a_f[0, 0]{8}, b_f[0, 0]{8})
              for lane in 0 .. 4 #lane:
                for i in 0 .. 1 #unrolled:
                  dst[lane + w * 4] = acc[i, lane // 2, lane % 2]
    """
    operands = lane_operands(kernel, rows)
    return with_body(kernel, _SpreadLanes(operands).stmt(kernel.body)) if operands else kernel
