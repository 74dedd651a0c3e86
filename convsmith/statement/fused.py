"""A convolution and the depthwise one among its post-ops as one kernel: two nests, and memory between them.

The second nest has loops of its own: their names are those of its statement with `SUFFIX`. It reads `MIDDLE`, which the
first nest writes, and its other arrays by their names in the whole problem.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index, Var, is_false
from convsmith.ir.stmt import Alloc, For, Kernel, Stmt, block
from convsmith.ir.walk import Substitute
from convsmith.problem.fusion import Fused
from convsmith.statement.naive import naive
from convsmith.statement.statement import Statement, View

MIDDLE = "mid"
"""The array between the two convolutions."""
SUFFIX = "2"
"""Ends the names of the second nest's loops."""


@dataclass(frozen=True)
class Pair:
    """The ``first`` and ``second`` statement of a fused problem, each with the names of its own problem."""

    fused: Fused
    first: Statement
    second: Statement

    @property
    def is_read(self) -> bool:
        """Whether the second statement reads any row of the first, not padding alone."""
        return not is_false(self.second.a.mask)

    @property
    def arrays(self) -> dict[str, str]:
        """The names that arrays of the second statement have in the kernel."""
        return {**self.fused.names, self.second.a.name: MIDDLE}

    @property
    def variables(self) -> dict[Var, Index]:
        """The variables that loops of the second statement have in the kernel."""
        return {Var(d.name): Var(d.name + SUFFIX) for d in self.second.dims}

    def renamed(self) -> Statement:
        """Return the second statement with loops and arrays as the kernel of both names them."""
        second, arrays, variables = self.second, self.arrays, self.variables

        def view(v: View) -> View:
            return replace(v.at(variables), name=arrays.get(v.name, v.name))

        return replace(
            second, dims=tuple(replace(d, name=d.name + SUFFIX) for d in second.dims),
            factors=tuple(map(view, second.factors)), c=view(second.c),
            reduce=tuple(n + SUFFIX for n in second.reduce),
        )  # fmt: skip

    def naive(self, before: Sequence[Kernel] = ()) -> Kernel:
        """Return the nests of both statements, one after the other, in a kernel that allocates what lies between them.

        The kernels ``before`` write arrays that the first nest reads.
        """
        one, two = naive(self.fused.first, self.first), naive(self.fused.second, self.second)
        (result,) = (b for b in one.params if b.name == self.first.c.name)
        middle = Buffer(MIDDLE, result.dtype, result.shape, result.blocks, "cache")
        params = {b.name: b for b in one.params if b is not result}
        moved: dict[Buffer, Buffer] = {}
        for b in two.params:
            if b.name == self.second.a.name:
                moved[b] = middle
            else:
                name = self.arrays.get(b.name, b.name)
                moved[b] = params.setdefault(name, Buffer(name, b.dtype, b.shape, b.blocks, b.scope))
        first = Substitute({}, {result: middle}).stmt(one.body)
        second = _Renamed(self.variables, moved).stmt(two.body)
        body = Alloc(middle, block(first, second)) if self.is_read else second
        return Kernel(two.name, tuple(params.values()), body, before=tuple(before))


class _Renamed(Substitute):
    """Renames loops and the accumulator too."""

    def __init__(self, variables: Mapping[Var, Index], buffers: Mapping[Buffer, Buffer]) -> None:
        super().__init__(variables, buffers)

    def Alloc(self, s: Alloc) -> Stmt:
        new = replace(s.buffer, name=s.buffer.name + SUFFIX)
        self._buffers = {**self._buffers, s.buffer: new}
        return Alloc(new, self.stmt(s.body))

    def For(self, s: For) -> Stmt:
        var = self.expr(s.var)
        assert isinstance(var, Var)
        return For(var, self.expr(s.lo), self.expr(s.hi), self.stmt(s.body), s.kind)
