"""Split the body of the register loops into initialisation, computation and write-back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import make_buffer
from convsmith.ir.index import as_index
from convsmith.ir.stmt import FENCES, Alloc, Block, For, Kernel, Stmt, block
from convsmith.passes.accesses import sites_of
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.order import meet_outside, require_order
from convsmith.passes.relocate import Relocate
from convsmith.passes.scope import (
    LoopRewriter,
    extents,
    perfect_nest,
    require_loops,
    require_no_effects,
    with_body,
    wrap,
)


class _Fission(LoopRewriter):
    def __init__(self, names: Sequence[str], widths: Mapping[str, int], scope: str, result: bool) -> None:
        super().__init__()
        self.names, self.widths = list(names), widths
        self.scope, self.result = scope, result

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name != self.names[0]:
            return self._For(loop)
        chain, body = perfect_nest(loop)
        if [x.var.name for x in chain] != self.names or not isinstance(body, Alloc):
            raise ConfigError(
                "not-nested",
                f"fission: loops {', '.join(self.names)} must be directly nested around an allocation, "
                f"found {', '.join(x.var.name for x in chain)}",
            )
        if any(x.kind == "parallel" for x in chain):
            raise ConfigError(
                "loop-kind", f"fission: loops {', '.join(self.names)} share {body.buffer}; legal are serial loops"
            )
        if any(x.lo is not as_index(0) for x in chain):
            raise ConfigError("bounds", f"fission: loops {', '.join(self.names)} must start at 0")
        shape = [max(n, self.widths.get(x.var.name, 0)) for x, n in zip(chain, extents(chain, self.ranges))]
        old = body.buffer
        new = make_buffer(old.name, old.dtype, (*shape, *old.shape), self.scope or old.scope)
        front = tuple(x.var for x in chain)
        reindex = Relocate(old, new, lambda index: front + index)
        inner = body.body
        parts = inner.stmts if isinstance(inner, Block) else (inner,)
        kept = len(parts) - 1 if self.result else 1
        if meet_outside(parts, body):
            count = len(chain)
            sites = sites_of(loop, self.ranges)
            require_order(
                f"fission({', '.join(self.names)})", sites,
                lambda path: (path[count], *path[:count], *path[count + 1 :]), self.ranges,
            )  # fmt: skip
        nests = (block(*parts[:kept]), *parts[kept:])
        return Alloc(new, block(*(wrap(chain, reindex.stmt(s)) for s in nests)))


@stages(*LOOPS)
def fission(
    kernel: Kernel, names: Sequence[str], widths: Sequence[tuple[str, int]] = (), scope: str = "", result: bool = False
) -> Kernel:
    """Distribute the register loops over the statements of their body; the accumulator becomes an array of them.

    ``widths`` gives loops with room for more elements than their iterations (a full vector of lanes). The array is in
    ``scope``, by default the scope of the accumulator. With ``result``, only the last statement, which stores the
    results, gets its own loops.

    Before::

        kernel k(a: f32[5, 3], b: f32[3], dst: f32[5])
          for i in 0 .. 5:
            alloc acc: f32[] @register:
              acc[] = 0.0
              for k in 0 .. 3:
                acc[] = acc[] + a[i, k] * b[k]
              dst[i] = acc[]

    After ``fission(("i",))``::

        kernel k(a: f32[5, 3], b: f32[3], dst: f32[5])
          alloc acc: f32[5] @register:
            for i in 0 .. 5:
              acc[i] = 0.0
            for i in 0 .. 5:
              for k in 0 .. 3:
                acc[i] = acc[i] + a[i, k] * b[k]
            for i in 0 .. 5:
              dst[i] = acc[i]
    """
    require_no_effects(kernel, "fission", FENCES)
    require_loops(kernel, names, "fission")
    if not names:
        raise ConfigError("not-nested", "fission: no loop is named; legal are those directly around an allocation")
    body = _Fission(names, dict(widths), scope, result).stmt(kernel.body)
    return with_body(kernel, body)
