"""Set the kind of loops: serial, unrolled, parallel, or loops over the groups and threads of a device."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from convsmith.diag.errors import ConfigError
from convsmith.ir.stmt import LOOP_KINDS, THREAD_LOOPS, Alloc, Block, For, Kernel, Stmt
from convsmith.ir.walk import loops_of, statements_of, walk
from convsmith.passes.accesses import sites_of
from convsmith.passes.collapse import are_pieces
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.order import in_any_order, require_independent_pieces, require_order
from convsmith.passes.scope import LoopRewriter, perfect_nest, with_body

_AT_ONCE = {"parallel": ("parallel",), "grid": ("grid",), **dict.fromkeys(THREAD_LOOPS, THREAD_LOOPS)}
"""For a kind of loops whose iterations run at once, the kinds of enclosing loops whose iterations run at the same time.
"""


class _Bind(LoopRewriter):
    def __init__(self, names: tuple[str, ...], kind: str) -> None:
        super().__init__()
        self.names, self.kind = names, kind
        self.at_once = _AT_ONCE.get(kind, ())
        self.what = f"bind({', '.join(names)}, {kind})"
        self.is_asked = False
        """Whether the current statement is in a loop that was found to be parallel."""

    def visit_For(self, loop: For) -> Stmt:
        kind = self.kind if loop.var.name in self.names else loop.kind
        asks = kind in self.at_once and loop.kind not in self.at_once and not self.is_asked
        if asks:
            self.require_parallel(loop)
        outer, self.is_asked = self.is_asked, self.is_asked or asks
        body = self.inside(loop)
        self.is_asked = outer
        if body is loop.body and kind == loop.kind:
            return loop
        return For(loop.var, loop.lo, loop.hi, body, kind, loop.carried)

    def visit_Alloc(self, s: Alloc) -> Stmt:
        if self.kind == "parallel" and s.buffer.in_registers:
            for x in loops_of(s.body):
                if x.var.name in self.names and any(getattr(y, "buffer", None) is s.buffer for y in walk(x.body)):
                    raise ConfigError("loop-kind", f"bind: loop {x.var} uses {s.buffer}, registers of one thread")
        return self._Alloc(s)

    def require_parallel(self, loop: For) -> None:
        """Raise ConfigError if a parallel loop would be nested in a serial one, or iterations depend on each other.

        Loops over the threads of a group may be nested in any loop.
        """
        for outer in (*self.around, loop):
            if self.kind in THREAD_LOOPS:
                break
            below = loops_of(outer.body) if isinstance(outer, For) and not self.is_parallel(outer) else ()
            inner = next((x for x in below if self.is_parallel(x)), None)
            if inner is not None:
                raise ConfigError(
                    "loop-kind", f"bind: loop {inner.var} cannot be {self.kind} within {outer.var}, which is not"
                )
        nest = [x for x in loops_of(loop) if self.is_parallel(x)]
        parallel = {x.var for x in nest}
        allocated = any(
            x.var in parallel for s in statements_of(loop) if isinstance(s, Alloc) for x in loops_of(s)
        )

        sites = sites_of(loop, self.ranges, allocated)
        require_order(self.what, sites, lambda path: in_any_order(path, parallel), self.ranges)

    def is_parallel(self, loop: For) -> bool:
        return loop.kind in self.at_once or loop.var.name in self.names

    def visit_Block(self, s: Block) -> Stmt:
        """Require pieces of a loop to be independent, since they run at once, as iterations of the loop do."""
        for a, b in pairwise(s.stmts):
            if not (self.at_once and isinstance(a, For) and isinstance(b, For) and a.var is b.var):
                continue
            if a.var.name in self.names and are_pieces((a, b)):
                pieces = [x for x in s.stmts if isinstance(x, For) and x.var is a.var]
                require_independent_pieces(self.what, pieces, self.ranges)
                break
        return self._Block(s)


def _outermost(kernel: Kernel, names: Sequence[str], tasks: int) -> list[str]:
    """Return the outermost loops of the kernel among ``names``, the fewest that have ``tasks`` iterations together.

    A loop that is not named, or whose bounds are not constant, ends them.
    """
    found: list[str] = []
    count = 1
    for loop in perfect_nest(kernel.body)[0] if isinstance(kernel.body, For) else ():
        if count >= tasks or loop.var.name not in names or not (loop.lo.is_const and loop.hi.is_const):
            break
        found.append(loop.var.name)
        count *= int(loop.hi) - int(loop.lo)
    return found


@stages(*LOOPS)
def bind(kernel: Kernel, loops: Sequence[str], kind: str, tasks: int | None = None) -> Kernel:
    """Give each loop of the names a kind (one of LOOP_KINDS); names that have vanished are passed over.

    An iteration of a parallel loop, or of one over groups or threads, must not touch an element that another one
    writes. If ``tasks`` is given, only the outermost of the loops get the kind, as many as it takes for that number of
    iterations.

    Before::

        kernel k(dst: f32[2, 3])
          for i in 0 .. 2:
            for j in 0 .. 3:
              dst[i, j] = 0.0

    After ``bind(("i",), "unrolled")``::

        kernel k(dst: f32[2, 3])
          for i in 0 .. 2 #unrolled:
            for j in 0 .. 3:
              dst[i, j] = 0.0

    Before::

        kernel k(a: f32[2, 3, 4], b: f32[2, 3, 4])
          for i in 0 .. 2:
            for j in 0 .. 3:
              for k in 0 .. 4:
                b[i, j, k] = a[i, j, k]

    After ``bind(("i", "j", "k"), "parallel", 5)``::

        kernel k(a: f32[2, 3, 4], b: f32[2, 3, 4])
          for i in 0 .. 2 #parallel:
            for j in 0 .. 3 #parallel:
              for k in 0 .. 4:
                b[i, j, k] = a[i, j, k]
    """
    if kind not in LOOP_KINDS:
        raise ConfigError("loop-kind", f"bind: loops have no kind {kind!r}; legal are {', '.join(LOOP_KINDS)}")
    names = loops if tasks is None else _outermost(kernel, loops, tasks)
    return with_body(kernel, _Bind(tuple(names), kind).stmt(kernel.body))
