"""Split the loops that fill a group's shared memory over the threads of the group."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import NamedTuple

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Index, Var, as_index, floordiv, mod
from convsmith.ir.rewrite import substitute
from convsmith.ir.stmt import For, If, Kernel, Stmt, Store
from convsmith.ir.value import Load, Select
from convsmith.ir.walk import variables_of, walk
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.flatten import offset
from convsmith.passes.scope import LoopRewriter, perfect_nest, with_body
from convsmith.passes.unswitch_uniform import without


class NestPart(NamedTuple):
    """A part of a nest that threads run in a turn: ``number`` iterations of a ``loop``, whose outermost one is 0, with
    all of the ``inner`` iterations below each.
    """

    loop: int
    number: int
    inner: int


def turns_of(extents: Sequence[int], threads: int) -> tuple[int, NestPart | None]:
    """Return the number of turns in which ``threads`` run the iterations of a nest of ``extents``, and the part of a
    turn; None if all threads run successive iterations of the whole nest.

    The place of a thread within a part is the same in every turn. In the whole nest, it must be divided anew in each
    turn unless inner loops divide the threads: in machine code of sm_90a, an asynchronous copy then takes 29 to 46
    instructions, in parts about 14. So parts may take half as many turns again as the whole nest.
    """
    whole, inner, divided = -(-prod(extents) // threads), 1, False
    found: tuple[int, bool, NestPart] | None = None
    for loop, size in reversed([*enumerate(extents)]):
        if inner <= threads:
            turns = -(-size // min(threads // inner, size))
            count = -(-size // turns)
            this = turns * prod(extents[:loop]), bool(size % count), NestPart(loop, count, inner)
            found = this if found is None else min(found, this)
        inner *= size
        divided = divided or (loop > 0 and threads % inner > 0 and inner & (inner - 1) > 0)
    if found is None or not divided or whole == 1 or 2 * found[0] > 3 * whole:
        return whole, None
    return found[0], found[2]


def is_one_run(chain: Sequence[For], body: Stmt) -> bool:
    """Return whether successive iterations of the nest ``chain`` store and load elements that are evenly apart, under
    no condition on the loops.
    """
    variables = {x.var for x in chain}
    for s in walk(body):
        if isinstance(s, Select | If) and not variables.isdisjoint(variables_of(s.cond)):
            return False
        if not isinstance(s, Load | Store):
            continue
        place = offset(s.buffer, s.index)
        steps = dict(place.terms)
        if any(not isinstance(atom, Var) and not variables.isdisjoint(variables_of(atom)) for atom in steps):
            return False
        if any(steps.get(x.var) != y.hi.const * steps.get(y.var, 0) for x, y in pairwise(chain)):
            return False
    return True


class _DistributeCopy(LoopRewriter):
    def __init__(
        self, buffer: str, threads: int, thread: str, order: tuple[str, ...], width: int, rows: tuple[str, int],
        in_parts: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.in_parts = in_parts
        self.buffer, self.threads, self.order, self.width, self.rows = buffer, threads, order, width, rows
        self.thread, self.turn = Var(thread), Var(f"{buffer}.e")

    def visit_For(self, loop: For) -> Stmt:
        chain, body = perfect_nest(loop)
        filled = body.buffer if isinstance(body, Store) else None
        if filled is None or filled.name != self.buffer:
            return self._For(loop)
        if not all(x.lo is as_index(0) and x.hi.is_const for x in chain):
            raise ConfigError("bounds", f"distribute_copy: loops that fill {self.buffer} must run from 0 to constants")
        order = {name: n for n, name in enumerate(self.order)}
        chain.sort(key=lambda x: order.get(x.var.name, -1))
        last = next((x for x in reversed(chain) if x.hi.const > 1), chain[-1])
        name, count = self.rows
        row = next((x for x in chain if x.var.name == name), None)
        if count > 1 and (row is None or row is last or row.hi.const % count):
            raise ConfigError(
                "width", f"distribute_copy: {count} rows of {self.buffer} along {name} at once; legal is a loop other "
                f"than {last.var} that fills it, and divisors of its iterations",
            )  # fmt: skip
        if last.hi.const % self.width:
            raise ConfigError(
                "width", f"distribute_copy: {self.width} neighbours of {self.buffer} at once; legal are divisors of "
                f"the {last.hi} iterations of {last.var}",
            )  # fmt: skip
        if self.width > 1:
            own, whole = Var(f"{self.buffer}.v"), self.width * count
            places: dict[Var, Index] = {last.var: last.var * self.width + floordiv(own, count)}
            sizes = {last.var: self.width}
            if count > 1 and row is not None:
                places[row.var], sizes[row.var] = row.var * count + mod(own, count), count
            body = without(substitute(body, places), own, whole)
            body = For(own, as_index(0), as_index(whole), body, "unrolled")
            chain = [For(x.var, x.lo, floordiv(x.hi, sizes.get(x.var, 1)), x.body) for x in chain]
        body = substitute(body, {x.var: as_index(0) for x in chain if x.hi.const == 1})
        chain = [x for x in chain if x.hi.const > 1] or chain[:1]
        part: NestPart | None = None
        if self.in_parts and not is_one_run(chain, body):
            _, part = turns_of([x.hi.const for x in chain], self.threads)
        body = self._of_nest(chain, body) if part is None else self._of_parts(chain, part, body)
        return For(self.thread, as_index(0), as_index(self.threads), body, "group")

    def _of_nest(self, chain: Sequence[For], body: Stmt) -> Stmt:
        """Return the loop over turns in which all threads run successive iterations of ``chain``."""
        total, place = prod(x.hi.const for x in chain), self.turn * self.threads + self.thread
        body = substitute(body, _digits(place, chain))
        if total % self.threads:
            body = If(place < total, body)
        return For(self.turn, as_index(0), as_index(-(-total // self.threads)), body)

    def _of_parts(self, chain: Sequence[For], part: NestPart, body: Stmt) -> Stmt:
        """Return the loops around a ``part`` of ``chain``, whose iterations threads run in each turn."""
        split, first = chain[part.loop], self.turn * part.number
        values = _digits(self.thread, chain[part.loop + (part.number == 1) :])
        values[split.var] = first + values.get(split.var, as_index(0))
        body = substitute(body, values)
        if split.hi.const % part.number:
            body = If(values[split.var] < split.hi, body)
        if part.number * part.inner < self.threads:
            body = If(self.thread < part.number * part.inner, body)
        body = For(self.turn, as_index(0), as_index(-(-split.hi.const // part.number)), body)
        for x in reversed(chain[: part.loop]):
            body = For(x.var, x.lo, x.hi, body)
        return body


def _digits(place: Index, chain: Sequence[For]) -> dict[Var, Index]:
    """Return the iterations of ``chain`` at a place within its nest, by variable."""
    values: dict[Var, Index] = {}
    for x in reversed(chain[1:]):
        values[x.var], place = mod(place, x.hi.const), floordiv(place, x.hi.const)
    return values | {x.var: place for x in chain[:1]}


@stages(*LOOPS)
def distribute_copy(
    kernel: Kernel, buffer: str, threads: int, thread: str, order: tuple[str, ...] = (), width: int = 1,
    rows: tuple[str, int] = ("", 1), in_parts: bool = False,
) -> Kernel:  # fmt: skip
    """Distribute the copy to ``buffer`` over all ``threads``; in each round, adjacent threads fill adjacent elements.

    Elements are adjacent along the innermost loop around the store, in the present order of the loops or in ``order``.
    These loops become a loop ``thread`` and a loop ``<buffer>.e`` over rounds. If the number of elements is not a
    multiple of the threads, a guard skips the remainder of the last round. Each element is filled by one thread; a
    thread fills ``width`` adjacent elements per round, of as many adjacent iterations of another loop as ``rows`` says,
    in a loop ``<buffer>.v`` that can become a vector: it runs through the rows of an element, then the next element.

    Before::

        kernel k(a: f32[3, 4], dst: f32[3])
          alloc a_s: f32[3, 4] @shared:
            for a_s0 in 0 .. 3:
              for a_s1 in 0 .. 4:
                a_s[a_s0, a_s1] = a[a_s0, a_s1]
            for t in 0 .. 3:
              dst[t] = a_s[t, 0] + a_s[t, 3]

    After ``distribute_copy("a_s", 5, "t")``::

        kernel k(a: f32[3, 4], dst: f32[3])
          alloc a_s: f32[3, 4] @shared:
            for t in 0 .. 5 #group:
              for a_s.e in 0 .. 3:
                if -a_s.e * 5 - t + 11 >= 0:
                  a_s[a_s.e + (a_s.e + t) // 4, (a_s.e + t) % 4] = a[a_s.e + (a_s.e + t) // 4, (a_s.e + t) % 4]
            for t in 0 .. 3:
              dst[t] = a_s[t, 0] + a_s[t, 3]

    With ``in_parts``, threads run through a part of the nest in a round, so that those in excess are idle, and the
    loops around the part stay, where elements are not evenly apart and rounds of the whole nest would take a division
    by another number than a power of two each.

    Before::

        kernel k(a: f32[2, 3, 8], dst: f32[3])
          alloc a_s: f32[2, 3, 5] @shared:
            for a_s0 in 0 .. 2:
              for a_s1 in 0 .. 3:
                for a_s2 in 0 .. 5:
                  a_s[a_s0, a_s1, a_s2] = a[a_s0, a_s1, a_s2]
            for t in 0 .. 3:
              dst[t] = a_s[0, t, 0] + a_s[1, t, 4]

    After ``distribute_copy("a_s", 6, "t", in_parts=True)``::

        kernel k(a: f32[2, 3, 8], dst: f32[3])
          alloc a_s: f32[2, 3, 5] @shared:
            for t in 0 .. 6 #group:
              for a_s0 in 0 .. 2:
                for a_s.e in 0 .. 3:
                  if -t + 4 >= 0:
                    a_s[a_s0, a_s.e, t] = a[a_s0, a_s.e, t]
            for t in 0 .. 3:
              dst[t] = a_s[0, t, 0] + a_s[1, t, 4]
    """
    if threads < 1:
        raise ConfigError("threads", f"distribute_copy: {threads} threads fill {buffer}; legal is at least one")
    return with_body(kernel, _DistributeCopy(buffer, threads, thread, order, width, rows, in_parts).stmt(kernel.body))
