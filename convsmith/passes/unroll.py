"""Replace the loops bound as ``unrolled`` by their iterations, one after the other."""

from __future__ import annotations

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Index, Var, as_index
from convsmith.ir.stmt import Block, For, Invoke, Kernel, Stmt, Store, block
from convsmith.ir.walk import Rewriter, Substitute
from convsmith.passes.scope import each_body

BUDGET = 20_000


class _Unroll(Rewriter):
    def __init__(self, budget: int) -> None:
        super().__init__()
        self.budget = budget
        self.made = 0

    def For(self, loop: For) -> Stmt:
        if loop.kind != "unrolled":
            return self._For(loop)
        if not (loop.lo.is_const and loop.hi.is_const):
            raise ConfigError(f"unroll: loop {loop.var} runs {loop.lo} .. {loop.hi}, no constants", code="bounds")
        out: list[Stmt] = []
        for i in range(loop.lo.const, loop.hi.const):
            body = _Iteration(loop.var, as_index(i)).stmt(loop.body)
            out.append(self.stmt(body))
            last = out[-1]
            if isinstance(last, (Store, Invoke)):
                self.made += 1
            if self.made > self.budget:
                raise ConfigError(
                    f"unroll: more than {self.budget} statements; loop {loop.var} runs {loop.hi.const} times",
                    code="unroll-budget",
                )
        out = [s for s in out if not (isinstance(s, Block) and not s.stmts)]
        return block(*out)


class _Iteration(Substitute):
    def __init__(self, var: Var, value: Index) -> None:
        super().__init__({var: value})


def unroll(kernel: Kernel, budget: int = BUDGET) -> Kernel:
    """Unroll all loops of kind ``unrolled``; more than ``budget`` statements is a ConfigError."""
    return each_body(kernel, lambda s: _Unroll(budget).stmt(s))
