"""Stage what each iteration of a loop reads of a buffer in a copy."""

from __future__ import annotations

from convsmith.diag.errors import ConfigError
from convsmith.ir.stmt import FENCES, For, Kernel, Stmt
from convsmith.ir.value import Load
from convsmith.ir.walk import walk
from convsmith.passes.accesses import written_in
from convsmith.passes.box_copy import BoxCopy
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.copies import CopyLayout, StagedReads
from convsmith.passes.scope import (
    ScopedRewriter,
    known_range,
    ranges_below,
    require_loops,
    require_new_buffer,
    require_no_effects,
    with_body,
)


class _Stage(ScopedRewriter):
    def __init__(self, kernel: Kernel, buffer: str, loop: str, layout: CopyLayout, scope: str) -> None:
        super().__init__()
        self.kernel, self.buffer, self.loop, self.layout, self.scope = kernel, buffer, loop, layout, scope

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name != self.loop:
            return self._For(loop)
        loads = [x for x in walk(loop.body) if isinstance(x, Load) and x.buffer.name == self.buffer]
        if not loads:
            return loop
        old = loads[0].buffer
        if any(x.lanes is not None for x in loads):
            raise ConfigError("lanes", f"stage: {self.loop} reads vectors of {old}; legal is to stage single elements")
        if old in written_in(loop.body):
            raise ConfigError(
                "dependence", f"stage: {old}[...] = ... and ... {loads[0]}: a copy at the start of an iteration of "
                f"{loop.var} lacks what the iteration writes; legal are buffers that it only reads",
            )  # fmt: skip
        around = {**self.ranges, **known_range(loop, self.ranges)}
        reads = StagedReads(self.kernel, loop, old, loads, around, ranges_below(loop.body, around))
        return self.layout.staged(reads, f"{self.buffer}_{self.layout.ending}", self.scope)


BOX = BoxCopy()
"""The copy of all that is read, with zeros around it."""


@stages(*LOOPS)
def stage(kernel: Kernel, buffer: str, loop: str, layout: CopyLayout = BOX, scope: str = "cache") -> Kernel:
    """Copy what each iteration of ``loop`` reads of ``buffer`` to memory of ``scope`` before the iteration runs.

    The ``layout`` says which elements the copy has, and where: those of a box (`BoxCopy`), the windows of pixels
    (`WindowCopy`), one for each iteration of a tile (`TileCopy`), or in reading order (`OrderedCopy`).

    Before::

        kernel k(a: f32[2, 3], b: f32[2], c: f32[2, 4])
          for n in 0 .. 2:
            for i in 0 .. 4:
              for k in 0 .. 2:
                c[n, i] = c[n, i] + (a[n, i + k - 1] * b[k] if i + k - 1 >= 0 and -i - k + 3 >= 0 else 0.0)

    After ``stage("a", "n")``::

        kernel k(a: f32[2, 3], b: f32[2], c: f32[2, 4])
          for n in 0 .. 2:
            alloc a_s: f32[1, 5] @cache:
              for a_s0 in 0 .. 1:
                for a_s1 in 0 .. 5:
                  a_s[a_s0, a_s1] = (a[a_s0 + n, a_s1 - 1] if a_s1 - 1 >= 0 and -a_s1 + 3 >= 0 else 0.0)
              for i in 0 .. 4:
                for k in 0 .. 2:
                  c[n, i] = c[n, i] + a_s[0, i + k] * b[k]
    """
    require_no_effects(kernel, "stage", FENCES)
    require_loops(kernel, (loop,), "stage")
    require_new_buffer(kernel, f"{buffer}_{layout.ending}", "stage")
    return with_body(kernel, _Stage(kernel, buffer, loop, layout, scope).stmt(kernel.body))
