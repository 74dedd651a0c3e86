"""Let loops carry pointers near the elements that all lanes of a vector share.

A load into all lanes of a scalable vector has a constant offset of few elements, none of them before its address. For
other elements LLVM computes an address before each load.
"""

from __future__ import annotations

from collections.abc import Iterator

from convsmith.ir.index import Index, Var
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stages import TENSORISED
from convsmith.ir.stmt import Carried, For, Kernel, Stmt
from convsmith.ir.value import Load, Value
from convsmith.ir.walk import walk
from convsmith.passes.contracts import FLATTENED, stages
from convsmith.passes.scope import each_body


def _away(v: Load, pointer: Carried) -> int | None:
    """Return the elements from a pointer to the one that all lanes load; None for other loads."""
    if v.lanes is None or v.lanes.stride != 0 or v.buffer is not pointer.buffer:
        return None
    distance = v.index[0] - pointer.var
    return distance.const if distance.is_const else None


class _Near(Rewriter):
    """Reads the elements at ``places``, from a pointer."""

    def __init__(self, pointer: Carried, places: dict[int, Index]) -> None:
        super().__init__()
        self.pointer, self.places = pointer, places

    def visit_Load(self, v: Load) -> Value:
        away = _away(v, self.pointer)
        return self._Load(v) if away is None else Load(v.buffer, (self.places[away],), v.lanes)


class _NearPointers(Rewriter):
    def __init__(self, reach: int) -> None:
        super().__init__()
        self.reach = reach

    def visit_For(self, loop: For) -> Stmt:
        body, carried = self.stmt(loop.body), list(loop.carried)
        for pointer in loop.carried:
            found = sorted({*self.distances(body, pointer)})
            far = [x for x in found if not 0 <= x < self.reach]
            made: list[Carried] = []
            places: dict[int, Index] = {}
            start = 0
            for x in found:
                if not made or x - start >= self.reach:
                    start, name = x, Var(f"{pointer.var.name}.n{len(made)}")
                    made.append(pointer._replace(var=name, init=pointer.init + x))
                places[x] = made[-1].var + (x - start)
            if len(made) < len(far):
                body = _Near(pointer, places).stmt(body)
                carried += made
        return For(loop.var, loop.lo, loop.hi, body, loop.kind, tuple(carried))

    def distances(self, body: Stmt, pointer: Carried) -> Iterator[int]:
        """Yield the elements from a pointer to each element that all lanes of a load share."""
        for v in walk(body):
            if isinstance(v, Load) and (away := _away(v, pointer)) is not None:
                yield away


@stages(*FLATTENED, ensures=TENSORISED)
def near_pointers(kernel: Kernel, reach: int) -> Kernel:
    """Carry further pointers, so that elements that all lanes load are fewer than ``reach`` elements behind one.

    A loop carries them if it loads more elements that are beyond its pointer's reach.

    Before::

        kernel k(a: f32[96], dst: f32[4])
          for j in 0 .. 4 carrying a.j: a = 32 step 1:
            dst[0]{4} = fma(a[a.j - 32]{4:0}, a[a.j - 16]{4:0}, a[a.j]{4:0} + dst[0]{4})

    After ``near_pointers(40)``::

        kernel k(a: f32[96], dst: f32[4])
          for j in 0 .. 4 carrying a.j: a = 32 step 1, a.j.n0: a = 0 step 1:
            dst[0]{4} = fma(a[a.j.n0]{4:0}, a[a.j.n0 + 16]{4:0}, a[a.j.n0 + 32]{4:0} + dst[0]{4})
    """
    return each_body(kernel, _NearPointers(reach).stmt)
