"""Load the elements that several products of a thread share into registers, each once."""

from __future__ import annotations

from collections.abc import Sequence

from convsmith.arith.simplify import simplify
from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import make_buffer
from convsmith.ir.index import Index, Var, as_index, is_true
from convsmith.ir.rewrite import substitute
from convsmith.ir.stmt import FENCES, Alloc, For, Kernel, Stmt, Store, block
from convsmith.ir.value import Load
from convsmith.ir.walk import variables_of, walk
from convsmith.passes.accesses import written_in
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.lets import Name
from convsmith.passes.scope import (
    ScopedRewriter,
    bounds_of,
    loop_range,
    perfect_nest,
    require_new_buffer,
    require_no_effects,
    with_body,
    wrap,
)


class _LoadOnce(ScopedRewriter):
    def __init__(self, buffer: str, names: Sequence[str], vector: str) -> None:
        super().__init__()
        self.buffer, self.names, self.vector = buffer, names, vector

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name not in self.names:
            return self._For(loop)
        chain, body = perfect_nest(loop)
        loads = {x for x in walk(body) if isinstance(x, Load) and x.buffer.name == self.buffer}
        if len(loads) != 1:
            return loop
        (load,) = loads
        moving = [x for x in chain if x.var in {v for i in load.index for v in variables_of(i)}]
        if len(moving) == len(chain) or load.lanes is not None or load.buffer in written_in(loop):
            return loop
        if not all(x.lo is as_index(0) and x.hi.is_const for x in moving) or not self.is_inside(load, chain):
            return loop
        moving.sort(key=lambda x: x.var.name == self.vector)
        own = {x.var: Var(f"{self.buffer}_r{n}") for n, x in enumerate(moving)}
        own |= {x.var: Var(f"{self.buffer}_r.v") for x in moving if x.var.name == self.vector}
        new = make_buffer(f"{self.buffer}_r", load.buffer.dtype, tuple(int(x.hi) for x in moving), "register")
        places: dict[Var, Index] = dict(own)
        here = Load(load.buffer, tuple(substitute(i, places) for i in load.index), None)
        copy: Stmt = Store(new, tuple(own.values()), here)
        copy = wrap([For(own[x.var], x.lo, x.hi, copy, "unrolled") for x in moving], copy)
        kept = Load(new, tuple(x.var for x in moving), None)
        return Alloc(new, block(copy, Name({load: kept}).stmt(loop)))

    def is_inside(self, load: Load, chain: Sequence[For]) -> bool:
        """Return whether ``load`` is within its buffer, regardless of conditions."""
        ranges = dict(self.ranges)
        for x in chain:
            ranges[x.var] = loop_range(x, ranges)
        return all(is_true(simplify(c, ranges)) for c in bounds_of(load.buffer, load.index))


@stages(*LOOPS)
def load_once(kernel: Kernel, buffer: str, loops: tuple[str, ...], vector: str = "") -> Kernel:
    """Load the elements of ``buffer`` that the nest of ``loops`` reads into registers, if it is invariant in a loop.

    Registers are numbered densely by the loops that the element depends on; the loop ``vector`` comes last, and the
    loop over its iterations is ``<buffer>_r.v``, which may become a vector. The kernel is unchanged if the nest writes
    the buffer, or if a load may be outside of it.

    Before::

        kernel k(a: f32[8], b: f32[4], c: f32[2, 2])
          for k in 0 .. 2:
            for i in 0 .. 2:
              for j in 0 .. 2:
                c[i, j] = c[i, j] + a[i * 4 + k] * b[j * 2 + k]

    After ``load_once("a", ("i", "j"))``::

        kernel k(a: f32[8], b: f32[4], c: f32[2, 2])
          for k in 0 .. 2:
            alloc a_r: f32[2] @register:
              for a_r0 in 0 .. 2 #unrolled:
                a_r[a_r0] = a[a_r0 * 4 + k]
              for i in 0 .. 2:
                for j in 0 .. 2:
                  c[i, j] = c[i, j] + a_r[i] * b[j * 2 + k]
    """
    if not loops:
        raise ConfigError("not-nested", f"load_once: no loop is named around loads of {buffer}; legal is at least one")
    require_no_effects(kernel, "load_once", FENCES)
    require_new_buffer(kernel, f"{buffer}_r", "load_once")
    return with_body(kernel, _LoadOnce(buffer, loops, vector).stmt(kernel.body))
