"""Pack the elements of an operand that an iteration of a loop reads, in reading order, when the iteration starts.

The copy is small, contiguous and private to a thread, whatever the distances between the elements in memory are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import as_index
from convsmith.ir.stmt import Alloc, Block, For, Kernel, Stmt, block
from convsmith.ir.value import Load
from convsmith.ir.walk import walk
from convsmith.passes.accesses import written_in
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.derive_packing import Packing
from convsmith.passes.scope import (
    ScopedRewriter,
    loop_range,
    require_loops,
    require_new_buffer,
    require_no_effects,
    with_body,
)


class _PackNear(ScopedRewriter):
    def __init__(
        self, kernel: Kernel, operand: str, loop: str, widths: dict[str, int], adjacent: tuple[str, ...]
    ) -> None:
        super().__init__()
        self.kernel, self.operand, self.loop, self.widths, self.adjacent = kernel, operand, loop, widths, adjacent
        """Names of the loops that write copies."""

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name != self.loop:
            return self._For(loop)
        if self.operand in {b.name for b in written_in(loop.body)}:
            raise ConfigError(
                "dependence", f"pack_near: an iteration of {loop.var} writes {self.operand}; legal are operands that "
                "it only reads",
            )  # fmt: skip
        ranges = {**self.ranges, loop.var: loop_range(loop, self.ranges)}
        inside = replace(self.kernel, body=loop.body)
        name = f"{self.operand}_n"
        packing = Packing(inside, frozenset((self.operand,)), name, self.widths, False, self.adjacent, scope="cache")
        packing.around = ranges
        packing.ranges = dict(ranges)
        body, writes = packing.derive(loop.body, as_index(0))
        if packing.packed is None:
            return loop
        if not packing.alone:
            raise ConfigError("bounds", f"pack_near: several places in {loop.var} read {self.operand}; legal is one")
        return For(loop.var, loop.lo, loop.hi, _filled(packing.packed, writes, body), loop.kind, loop.carried)


def _filled(new: Buffer, writes: Stmt, s: Stmt) -> Stmt:
    """Return ``s``, which reads ``new``, after the nest that ``writes`` it. If only the last of several statements
    reads it, the nest comes right before that statement, so that the memory is free until then.
    """
    allocated, inner = [], s
    while isinstance(inner, Alloc):
        allocated.append(inner.buffer)
        inner = inner.body
    if not isinstance(inner, Block) or any(_reads(x, new) for x in inner.stmts[:-1]):
        return Alloc(new, block(writes, s))
    made = block(*inner.stmts[:-1], _filled(new, writes, inner.stmts[-1]))
    for buffer in reversed(allocated):
        made = Alloc(buffer, made)
    return made


def _reads(s: Stmt, buffer: Buffer) -> bool:
    """Return whether ``s`` reads an element of ``buffer``."""
    return any(isinstance(x, Load) and x.buffer is buffer for x in walk(s))


@stages(*LOOPS)
def pack_near(
    kernel: Kernel, operand: str, loop: str, widths: Sequence[tuple[str, int]] = (), adjacent: tuple[str, ...] = ()
) -> Kernel:
    """Copy what each iteration of ``loop`` reads of ``operand`` to ``<operand>_n``, one dim per loop that indexes it.

    ``widths`` gives loops with room for more elements than their iterations, which hold zeros; ``adjacent`` are loops
    whose elements are contiguous.

    Before::

        kernel k(a: f32[4, 6], b: f32[2, 4], c: f32[2, 6])
          for i in 0 .. 2:
            for n in 0 .. 2:
              for k in 0 .. 4:
                for l in 0 .. 3:
                  c[n, i * 3 + l] = c[n, i * 3 + l] + a[k, i * 3 + l] * b[n, k]

    After ``pack_near("a", "i")``::

        kernel k(a: f32[4, 6], b: f32[2, 4], c: f32[2, 6])
          for i in 0 .. 2:
            alloc a_n: f32[4, 3] @cache:
              for k in 0 .. 4:
                for l in 0 .. 3:
                  a_n[k, l] = a[k, i * 3 + l]
              for n in 0 .. 2:
                for k in 0 .. 4:
                  for l in 0 .. 3:
                    c[n, i * 3 + l] = c[n, i * 3 + l] + a_n[k, l] * b[n, k]
    """
    require_no_effects(kernel, "pack_near")
    require_loops(kernel, (loop,), "pack_near")
    require_new_buffer(kernel, f"{operand}_n", "pack_near")
    pass_ = _PackNear(kernel, operand, loop, dict(widths), adjacent)
    return with_body(kernel, pass_.stmt(kernel.body))
