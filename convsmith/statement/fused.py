"""Nests for the statements of consecutive stages in one kernel, and the arrays between the stages.

The loops of stage `n`, counted from 1, have `n` appended to the names in their statement; the loops of stage 1 keep
their names. A statement reads the array that the statement before it writes; its other arrays have their names in the
whole problem.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from convsmith.diag.forking import cached_property
from convsmith.diag.record import record
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index, Var
from convsmith.ir.rewrite import Substitute
from convsmith.ir.stmt import Alloc, For, Kernel, Stmt, block
from convsmith.layout.layout import Layout
from convsmith.problem.fusion import Stages, middle, stages_of
from convsmith.problem.problem import Problem
from convsmith.statement.naive import naive
from convsmith.statement.offsets import sums_of
from convsmith.statement.statement import Statement, View, When
from convsmith.statement.views import statement
from convsmith.statement.winograd import Winograd


def in_whole_blocks(st: Statement) -> Statement:
    """Return ``st`` with the extents of its result rounded up to whole blocks, so that the statement writes no padding.
    """
    layout = Layout(st.c.layout.padded_shape, st.c.layout.blocks)
    return replace(st, c=replace(st.c, layout=layout))


def own_statement(problem: Problem, n: int) -> Statement:
    """Return the statement of ``problem``, or of its stage ``n`` (from 0) with the names that its own problem gives."""
    stages = stages_of(problem)
    return statement(problem if stages is None else stages.problems[n])


def stage_statement(problem: Problem, n: int) -> Statement:
    """Return the statement of ``problem``. If it has several stages, return the statement of stage ``n`` (from 0) with
    the loops and arrays named as in a kernel of that stage alone.
    """
    stages, own = stages_of(problem), own_statement(problem, n)
    return own if stages is None else FusedStatements(stages, n, (own,)).renamed(n)


def stage_name(n: int) -> str:
    """Return the name of the statement of stage ``n`` (from 0), and of a preceding kernel whose last stage it is."""
    return f"stage{n + 1}"


def suffix(n: int) -> str:
    """Return the suffix of the names of the loops of stage ``n`` (from 0)."""
    return str(n + 1) if n else ""


@record(frozen=True)
class FusedStatements:
    """The statements of consecutive ``stages``, from stage ``start`` (from 0) on, as nests of one kernel.

    ``own`` holds them with the names of their own problems. ``when`` says when the kernel runs. A stage alone may be
    the product of a ``winograd`` program.
    """

    stages: Stages
    start: int
    own: tuple[Statement, ...]
    when: When = "main"
    winograd: Winograd | None = None

    @property
    def last(self) -> int:
        """The number of the last stage."""
        return self.start + len(self.own) - 1

    @property
    def numbers(self) -> range:
        """The numbers of the stages."""
        return range(self.start, self.last + 1)

    def name(self, n: int, array: str) -> str:
        """Return the name in the kernel of an ``array`` of stage ``n``."""
        return self.stages.names[n].get(array, array + suffix(n))

    def arrays(self, n: int) -> dict[str, str]:
        """Return the names that arrays of stage ``n`` have in the kernel."""
        st = self.own[n - self.start]
        return {v.name: self.name(n, v.name) for v in (*st.factors, st.c, *st.sums)}

    def renamed(self, n: int) -> Statement:
        """Return the statement of stage ``n`` with loops and arrays as the kernel names them."""
        return self._all_renamed[n - self.start]

    @cached_property
    def _all_renamed(self) -> tuple[Statement, ...]:
        found = []
        for n, st in enumerate(self.own, start=self.start):
            when = self.when if n == self.last else "loop"
            name = "conv" if (n, when) == (self.last, "main") else stage_name(n)
            found.append(replace(self._in_kernel(n, st), when=when, name=name))
        return tuple(found)

    @cached_property
    def sums(self) -> tuple[tuple[int, Statement], ...]:
        """The statements that make sums of entries, with their stages; arrays have the names of that stage."""
        if self.winograd is not None:
            return ()
        return tuple(
            (n, st) for n in self.numbers for st in sums_of(self.stages.problems[n], self.own[n - self.start])
        )  # fmt: skip

    @property
    def statements(self) -> tuple[Statement, ...]:
        """All statements in the order in which they run, with the kernel's names of loops and arrays."""
        sums = (replace(self._in_kernel(n, st), name=self.name(n, st.name)) for n, st in self.sums)
        return (*sums, *map(self.renamed, self.numbers))

    def naive(self, before: Sequence[Kernel] = ()) -> Kernel:
        """Return the nests of all statements, one after the other, in a kernel that allocates the arrays between them.

        The kernels ``before`` write arrays that the nests read.
        """
        if self.winograd is not None:
            return self._transformed(self.winograd.naive(), before)
        params: dict[str, Buffer] = {}
        nests, middles = [], []
        for n in self.numbers:
            st = self.own[n - self.start]
            # Only results of the statement are read: elements that blocks hold beyond them stay without a value.
            nests.append(self._nest(n, in_whole_blocks(st) if n < self.last else st, params))
            if n < self.last:
                middles.append(params[middle(n)])
        body = nests.pop()
        for nest, between in zip(reversed(nests), reversed(middles)):
            body = Alloc(between, block(nest, body))
        sums = []
        for n, st in self.sums:
            own: dict[str, Buffer] = {}
            nest = self._nest(n, st, own)
            sums.append(Kernel(self.name(n, st.name), tuple(own.values()), nest))
        used = tuple(b for name, b in params.items() if name not in {m.name for m in middles})
        return Kernel(self.renamed(self.last).name, used, body, before=(*sums, *before))

    def _nest(self, n: int, st: Statement, params: dict[str, Buffer]) -> Stmt:
        """Return the nest of a statement of stage ``n`` as the kernel names it; add its parameters to ``params``."""
        return self._in_params(n, st, naive(self.stages.problems[n], st), params)

    def _transformed(self, kernel: Kernel, before: Sequence[Kernel]) -> Kernel:
        """Return the ``kernel`` of a transform, and the kernel of its weights before it, with the names that loops and
        arrays have in the kernels of all stages.
        """
        n, (st,) = self.start, self.own
        (weights,) = kernel.before
        params: dict[str, Buffer] = {}
        body = self._in_params(n, st, kernel, params)
        own: dict[str, Buffer] = {}
        nest = self._in_params(n, st, weights, own)
        first = Kernel(self.name(n, weights.name), tuple(own.values()), nest)
        return Kernel(self.renamed(n).name, tuple(params.values()), body, before=(first, *before))

    def _in_params(self, n: int, st: Statement, kernel: Kernel, params: dict[str, Buffer]) -> Stmt:
        """Return the body of a ``kernel`` of stage ``n`` with the names that loops and arrays have in the kernel of all
        stages; add its parameters to ``params``.
        """
        known = {t.name: t.layout for t in self.stages.whole.tensors}
        moved: dict[Buffer, Buffer] = {}
        for b in kernel.params:
            name = self.name(n, b.name)
            shape, blocks = b.shape, b.blocks
            if name in known:
                shape, blocks = known[name].padded_shape, known[name].blocks
            inside = name in {middle(m) for m in range(self.numbers[0], self.last)}
            made = Buffer(name, b.dtype, shape, blocks, "cache" if inside else b.scope)
            moved[b] = params.setdefault(name, made)
        return _Renamed(self._variables(st, n), moved, suffix(n)).stmt(kernel.body)

    def _variables(self, st: Statement, n: int) -> dict[Var, Index]:
        return {Var(d.name): Var(d.name + suffix(n)) for d in st.dims}

    def _in_kernel(self, n: int, st: Statement) -> Statement:
        """Return a statement of stage ``n`` with loops and arrays as the kernel names them."""
        variables = self._variables(st, n)

        def view(v: View) -> View:
            adds = self.name(n, v.adds) if v.adds else ""
            beside = tuple(self.name(n, name) for name in v.beside)
            return replace(v.at(variables), name=self.name(n, v.name), adds=adds, beside=beside)

        return replace(
            st, dims=tuple(replace(d, name=d.name + suffix(n)) for d in st.dims),
            factors=tuple(map(view, st.factors)), c=view(st.c), sums=tuple(map(view, st.sums)),
            reduce=tuple(name + suffix(n) for name in st.reduce),
        )  # fmt: skip


class _Renamed(Substitute):
    """Renames loops, buffers and the accumulator."""

    def __init__(self, variables: Mapping[Var, Index], buffers: Mapping[Buffer, Buffer], suffix: str) -> None:
        super().__init__(variables, buffers)
        self._suffix = suffix

    def visit_Alloc(self, s: Alloc) -> Stmt:
        new = replace(s.buffer, name=s.buffer.name + self._suffix)
        self._buffers = {**self._buffers, s.buffer: new}
        return Alloc(new, self.stmt(s.body))

    def visit_For(self, s: For) -> Stmt:
        var = self.expr(s.var)
        assert isinstance(var, Var)
        return For(var, self.expr(s.lo), self.expr(s.hi), self.stmt(s.body), s.kind)
