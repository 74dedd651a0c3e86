"""Merge products of sums into instructions that add up several terms, where code is straight.

Channels that are groups of their own have no adjacent terms: an instruction multiplies one term of each lane, the next
one another term. Terms that lie evenly apart in memory are columns of rows, which one instruction with more terms adds
up. Its vectors are interleaved in registers, once for all sums that read them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from convsmith.ir.instruction import Instruction
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stmt import Block, Invoke, Kernel, Stmt, block
from convsmith.ir.value import Lanes, Load
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.scope import each_body


class _Term(NamedTuple):
    """A product: its position among statements, and the offsets of its factors from those of the first product."""

    at: int
    a: int
    b: int


class _MergeTerms(Rewriter):
    def __init__(self, single: Instruction, dot: Instruction) -> None:
        super().__init__()
        self.single, self.dot = single, dot

    def visit_Block(self, s: Block) -> Stmt:
        out: list[Stmt] = []
        run: list[Invoke] = []
        for x in map(self.stmt, s.stmts):
            product = self.product_of(x)
            if run and (product is None or not _is_near(product, run[0])):
                out += self.merged(run)
                run = []
            if product is None:
                out.append(x)
            else:
                run.append(product)
        out += self.merged(run)
        return block(*out)

    def product_of(self, s: Stmt) -> Invoke | None:
        """Return a statement that multiplies adjacent elements of memory by adjacent elements of memory; None for
        another one.
        """
        if not isinstance(s, Invoke) or s.instruction != self.single.name:
            return None
        plain = all(
            isinstance(v, Load) and v.lanes is not None and v.lanes.is_whole and v.lanes.stride == 1
            and v.buffer.flat and not v.buffer.in_registers
            for v in s.args
        )
        return s if plain else None

    def merged(self, run: Sequence[Invoke]) -> list[Stmt]:
        """Return the statements of a run with merged products, where most of them merge with the fewest vectors."""
        if len(run) < self.dot.terms:
            return list(run)
        sums: dict[Load, list[_Term]] = {}
        for at, x in enumerate(run):
            a, b = (_distance(v, first) for v, first in zip(x.args, run[0].args))
            sums.setdefault(x.dst, []).append(_Term(at, a, b))
        terms = next(iter(sums.values()))
        steps = {(y.a - x.a, y.b - x.b) for x in terms for y in terms if y.a > x.a}
        ways = [[*self.groups(sums, step)] for step in sorted(steps)]
        ways = [x for x in ways if x]
        if not ways:
            return list(run)
        groups = min(ways, key=lambda found: (-len(found), len({tuple(t.a for t in x) for x in found})))
        first = {min(t.at for t in x): x for x in groups}
        others = {t.at for x in groups for t in x} - first.keys()
        return [self.product(run, first[n]) if n in first else x for n, x in enumerate(run) if n not in others]

    def groups(self, sums: dict[Load, list[_Term]], step: tuple[int, int]) -> Iterator[list[_Term]]:
        """Yield the terms of each product of several terms whose factors are ``step`` apart."""
        for terms in sums.values():
            left = {(t.a, t.b): t for t in terms}
            for t in terms:
                places = [(t.a + n * step[0], t.b + n * step[1]) for n in range(self.dot.terms)]
                if all(place in left for place in places):
                    yield [left.pop(place) for place in places]

    def product(self, run: Sequence[Invoke], terms: list[_Term]) -> Invoke:
        """Return the instruction that adds up ``terms``."""
        first, then = run[terms[0].at], run[terms[1].at]
        lanes = range(self.single.lanes), range(len(terms))
        args = []
        for v, w in zip(first.args, then.args):
            assert isinstance(v, Load) and isinstance(w, Load)
            step = _distance(w, v)
            offsets = tuple(n + r * step for n in lanes[0] for r in lanes[1])
            args.append(Load(v.buffer, v.index, Lanes(offsets, len(offsets))))
        return Invoke(self.dot.name, first.dst, tuple(args))


def _distance(v: object, first: object) -> int:
    """Return the elements from one load to another one of the same buffer."""
    assert isinstance(v, Load) and isinstance(first, Load)
    return int((v.index[0] - first.index[0]).const)


def _is_near(x: Invoke, first: Invoke) -> bool:
    """Return whether the factors of two products are constant distances apart."""
    return all(
        isinstance(v, Load) and isinstance(w, Load) and v.buffer is w.buffer and (v.index[0] - w.index[0]).is_const
        for v, w in zip(x.args, first.args)
    )


@stages(*FLATTENED)
def merge_terms(kernel: Kernel, single: Instruction, dot: Instruction) -> Kernel:
    """Merge products of the row `single`, of one term, of adjacent statements into those of the row `dot`, of several.

    Terms of a product lie evenly apart in both factors. Of the distances at which most products merge, the one is taken
    at which they read the fewest different vectors. Factors in registers, and vectors of which lanes are absent, stay.

    Before::

        kernel k(a: s8[12], b: s8[12], dst: s32[4])
          alloc acc: s32[4] @register:
            acc[0]{4} = s32(0)
            single(acc[0]{4}, a[0]{4}, b[0]{4})
            single(acc[0]{4}, a[4]{4}, b[4]{4})
            single(acc[0]{4}, a[8]{4}, b[8]{4})
            dst[0]{4} = acc[0]{4}

    After ``merge_terms(SINGLE, PAIRS)``::

        kernel k(a: s8[12], b: s8[12], dst: s32[4])
          alloc acc: s32[4] @register:
            acc[0]{4} = s32(0)
            pairs(acc[0]{4}, a[0]{(0, 4, 1, 5, 2, 6, 3, 7)}, b[0]{(0, 4, 1, 5, 2, 6, 3, 7)})
            single(acc[0]{4}, a[8]{4}, b[8]{4})
            dst[0]{4} = acc[0]{4}
    """
    return each_body(kernel, _MergeTerms(single, dot).stmt)
