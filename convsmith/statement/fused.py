"""A convolution and the depthwise one among its post-ops as one kernel: two nests, and memory between them.

The second nest has loops of its own: their names are those of its statement with `SUFFIX`. It reads `MIDDLE`, which the
first nest writes, and its other arrays by their names in the whole problem.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index, Var
from convsmith.ir.stmt import Alloc, For, Kernel, Stmt, block
from convsmith.ir.walk import Substitute, substitute
from convsmith.problem.fusion import Fused
from convsmith.statement.naive import naive
from convsmith.statement.statement import Statement, View

MIDDLE = "mid"
"""The array between the two convolutions."""
SUFFIX = "2"
"""Ends the names of the second nest's loops."""


def fused_naive(fused: Fused, first: Statement, second: Statement) -> Kernel:
    """Return the nests of both statements, one after the other, in a kernel that allocates what lies between them."""
    one, two = naive(fused.first, first), naive(fused.second, second)
    result, source = _param(one, first.c.name), _param(two, second.a.name)
    middle = Buffer(MIDDLE, result.dtype, result.shape, result.blocks, "cache")
    arrays = {b.name: b for b in one.params if b is not result}
    moved = {source: middle}
    for b in two.params:
        if b is not source:
            name = fused.names.get(b.name, b.name)
            moved[b] = arrays.setdefault(name, Buffer(name, b.dtype, b.shape, b.blocks, b.scope))
    nests = block(Substitute({}, {result: middle}).stmt(one.body), _Renamed(_variables(second), moved).stmt(two.body))
    return Kernel(one.name, tuple(arrays.values()), Alloc(middle, nests), before=one.before)


def renamed(fused: Fused, second: Statement) -> Statement:
    """Return the second statement with loops and arrays as the kernel of both names them."""
    variables = _variables(second)
    arrays = {**fused.names, second.a.name: MIDDLE}

    def view(v: View) -> View:
        coords = tuple(substitute(x, variables) for x in v.coords)
        masks = tuple(substitute(m, variables) for m in v.masks)
        return replace(v, name=arrays.get(v.name, v.name), coords=coords, masks=masks)

    return replace(
        second, dims=tuple(replace(d, name=d.name + SUFFIX) for d in second.dims),
        factors=tuple(map(view, second.factors)), c=view(second.c), reduce=tuple(n + SUFFIX for n in second.reduce),
    )  # fmt: skip


def _param(kernel: Kernel, name: str) -> Buffer:
    return next(b for b in kernel.params if b.name == name)


def _variables(st: Statement) -> dict[Var, Index]:
    return {Var(d.name): Var(d.name + SUFFIX) for d in st.dims}


class _Renamed(Substitute):
    """Renames loops too."""

    def __init__(self, variables: Mapping[Var, Index], buffers: Mapping[Buffer, Buffer]) -> None:
        super().__init__(variables, buffers)

    def For(self, s: For) -> Stmt:
        var = self.expr(s.var)
        assert isinstance(var, Var)
        return For(var, self.expr(s.lo), self.expr(s.hi), self.stmt(s.body), s.kind)
