"""Split the loops that fill a group's shared memory over the threads of the group."""

from __future__ import annotations

from math import prod

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Index, Var, as_index, floordiv, mod
from convsmith.ir.rewrite import substitute
from convsmith.ir.stmt import For, If, Kernel, Stmt, Store
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.scope import LoopRewriter, perfect_nest, with_body
from convsmith.passes.unswitch_uniform import without


class _DistributeCopy(LoopRewriter):
    def __init__(
        self, buffer: str, threads: int, thread: str, order: tuple[str, ...], width: int, rows: tuple[str, int]
    ) -> None:
        super().__init__()
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
        total = prod(x.hi.const for x in chain)
        place = above = self.turn * self.threads + self.thread
        values: dict[Var, Index] = {x.var: as_index(0) for x in chain}
        outermost, *inner = [x for x in chain if x.hi.const > 1] or chain[:1]
        for x in reversed(inner):
            values[x.var], above = mod(above, x.hi.const), floordiv(above, x.hi.const)
        if outermost.hi.const > 1:
            values[outermost.var] = above
        body = substitute(body, values)
        if total % self.threads:
            body = If(place < total, body)
        body = For(self.turn, as_index(0), as_index(-(-total // self.threads)), body)
        return For(self.thread, as_index(0), as_index(self.threads), body, "group")


@stages(*LOOPS)
def distribute_copy(
    kernel: Kernel, buffer: str, threads: int, thread: str, order: tuple[str, ...] = (), width: int = 1,
    rows: tuple[str, int] = ("", 1),
) -> Kernel:  # fmt: skip
    """Distribute the copy to ``buffer`` over all ``threads``; in each round, adjacent threads fill adjacent elements.

    Elements are adjacent along the innermost loop around the store, in the present order of the loops or in ``order``.
    These loops become a loop ``thread`` and a loop ``<buffer>.e`` over rounds. If the number of elements is not a
    multiple of the threads, a guard skips the remainder of the last round. Each element is filled by one thread; a
    thread fills ``width`` adjacent elements per round, of as many adjacent iterations of another loop as ``rows`` says,
    in a loop ``<buffer>.v`` that can become a vector: it runs through the rows of an element, then the next element.

    Before::

        kernel k(a: f32[3, 5], dst: f32[3])
          alloc a_s: f32[3, 5] @shared:
            for a_s0 in 0 .. 3:
              for a_s1 in 0 .. 5:
                a_s[a_s0, a_s1] = a[a_s0, a_s1]
            for t in 0 .. 3:
              dst[t] = a_s[t, 0] + a_s[t, 4]

    After ``distribute_copy("a_s", 4, "t")``::

        kernel k(a: f32[3, 5], dst: f32[3])
          alloc a_s: f32[3, 5] @shared:
            for t in 0 .. 4 #group:
              for a_s.e in 0 .. 4:
                if -a_s.e * 4 - t + 14 >= 0:
                  a_s[(a_s.e * 4 + t) // 5, (a_s.e * 4 + t) % 5] = a[(a_s.e * 4 + t) // 5, (a_s.e * 4 + t) % 5]
            for t in 0 .. 3:
              dst[t] = a_s[t, 0] + a_s[t, 4]
    """
    if threads < 1:
        raise ConfigError("threads", f"distribute_copy: {threads} threads fill {buffer}; legal is at least one")
    return with_body(kernel, _DistributeCopy(buffer, threads, thread, order, width, rows).stmt(kernel.body))
