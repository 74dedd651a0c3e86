"""Bind the outermost loops of a nest to threads: the fewest loops that give each thread enough iterations."""

from __future__ import annotations

from collections.abc import Sequence

from convsmith.ir.stmt import For, Kernel
from convsmith.passes.bind import bind
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.scope import perfect_nest


@stages(*LOOPS)
def share_outermost(kernel: Kernel, names: Sequence[str], tasks: int) -> Kernel:
    """Make the outermost loops of ``kernel`` parallel until they have ``tasks`` iterations; ``names`` are legal.

    The kernel is unchanged if its body is not a loop. An iteration must not touch an element that another one writes
    (`bind`).

    Before::

        kernel k(a: f32[2, 3, 4], b: f32[2, 3, 4])
          for i in 0 .. 2:
            for j in 0 .. 3:
              for k in 0 .. 4:
                b[i, j, k] = a[i, j, k]

    After ``share_outermost(("i", "j", "k"), 5)``::

        kernel k(a: f32[2, 3, 4], b: f32[2, 3, 4])
          for i in 0 .. 2 #parallel:
            for j in 0 .. 3 #parallel:
              for k in 0 .. 4:
                b[i, j, k] = a[i, j, k]
    """
    if not isinstance(kernel.body, For):
        return kernel
    found: list[str] = []
    count = 1
    for loop in perfect_nest(kernel.body)[0]:
        if count >= tasks or loop.var.name not in names or not (loop.lo.is_const and loop.hi.is_const):
            break
        found.append(loop.var.name)
        count *= int(loop.hi) - int(loop.lo)
    return bind(kernel, tuple(found), "parallel")
