"""Make clusters of groups that share copies: each brings a part of them to the shared memory of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from convsmith.arith.tensor_maps import part_axis, walked_from
from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Index, Var
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stages import UNROLLED
from convsmith.ir.stmt import Fence, For, Kernel, Let, Meet, Release, Stmt, TensorCopy, block
from convsmith.ir.threads import pipeline_parts
from convsmith.ir.value import Load
from convsmith.ir.walk import statements_of, variables_of
from convsmith.passes.contracts import stages
from convsmith.passes.scope import require_loops, with_body

NAME = "part"
"""Stem of the names of the coordinates of a part."""


class _Multicast(Rewriter):
    """Rewrites the loop over the groups of clusters; ``moved`` are the variables whose values differ between them."""

    def __init__(self, loop: str, together: int) -> None:
        super().__init__()
        self.loop, self.together = loop, together
        self.groups, self.size = Var(loop), 0
        self.moved: set[Var] = set()
        self.shared = self.named = 0

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name == self.loop:
            return self._cluster(loop)
        if loop.kind in ("serial", "signalled") and self.size:
            if not self.moved.isdisjoint(variables_of(loop.lo) | variables_of(loop.hi)):
                raise ConfigError("cluster", f"multicast: groups of {self.loop} run the loop {loop.var} differently")
            if loop.kind == "signalled":
                return self._signalled(loop)
        return self._For(loop)

    def visit_Let(self, s: Let) -> Stmt:
        if not self.moved.isdisjoint(variables_of(s.value)):
            self.moved.add(s.var)
        return self._Let(s)

    def visit_Fence(self, s: Fence) -> Stmt:
        return block() if s.of == "barriers" and self.size else s

    def visit_Release(self, s: Release) -> Stmt:
        return Release(s.step, True) if self.size else s

    def _cluster(self, loop: For) -> Stmt:
        inside = [x for x in statements_of(loop.body) if isinstance(x, For) and x.kind == "grid"]
        if loop.kind != "grid" or inside or loop.lo.terms or loop.lo.const or not loop.hi.is_const:
            raise ConfigError(
                "cluster", f"multicast: the loop {loop.var} is {loop.kind} and runs {loop.lo} .. {loop.hi}; legal is "
                "the innermost loop over groups, a number of times",
            )  # fmt: skip
        self.groups, self.size, self.moved = loop.var, loop.hi.const, {loop.var}
        body = self.stmt(loop.body)
        self.size = 0
        if not self.shared:
            raise ConfigError("cluster", f"multicast: the groups of {loop.var} have no copy of the same elements")
        return For(loop.var, loop.lo, loop.hi, block(Fence("barriers"), Meet(), body, Meet()), "cluster")

    def _signalled(self, loop: For) -> Stmt:
        parts = pipeline_parts(loop)
        assert parts is not None
        outside: list[Let] = []
        inside: list[Let] = []
        for let in parts.lets:
            self.visit_Let(let)
        stepping = {loop.var, *(x.var for x in parts.lets)}
        places: dict[tuple[Index, ...], tuple[Index, ...]] = {}
        copies = [self._part(x, stepping, places, outside, inside) for x in parts.copies]
        made: Stmt = block(*copies, *(self.stmt(x) for x in parts.uses))
        for x in reversed(inside):
            made = Let(x.var, x.value, made)
        made = For(loop.var, loop.lo, loop.hi, parts.around(made), "signalled")
        for x in reversed(outside):
            made = Let(x.var, x.value, made)
        return made

    def _part(
        self, s: TensorCopy, stepping: set[Var], places: dict[tuple[Index, ...], tuple[Index, ...]],
        outside: list[Let], inside: list[Let],
    ) -> TensorCopy:  # fmt: skip
        """Return the copy of a group's part of the elements of ``s``, or ``s`` if the groups copy different elements.
        """
        if not self.moved.isdisjoint(v for i in (*s.dst.index, *s.at, *s.offsets) for v in variables_of(i)):
            return s
        axis = part_axis(s.map, self.size, self.together)
        if axis is None:
            return s
        self.shared += 1
        if axis:
            count = s.map.box[axis] // self.size
            made = replace(s.map, box=(*s.map.box[:axis], count, *s.map.box[axis + 1 :]))
            at = tuple(x + self.groups * count if n == axis else x for n, x in enumerate(s.at))
        else:
            count = s.map.pixels // self.size
            made = replace(s.map, pixels=count)
            if s.at[1:] not in places:
                behind = walked_from(s.map, s.at, self.groups * count)
                steps = not stepping.isdisjoint(v for i in behind for v in variables_of(i))
                places[s.at[1:]] = self._named(behind, inside if steps else outside)
            at = (s.at[0], *places[s.at[1:]])
        (place,) = s.dst.index
        dst = Load(s.dst.buffer, (place + self.groups * made.size,), None)
        return TensorCopy(dst, s.src, made, at, s.offsets, self.size, s.cond)

    def _named(self, values: Sequence[Index], lets: list[Let]) -> tuple[Index, ...]:
        found = []
        for value in values:
            lets.append(Let(Var(f"{NAME}{self.named}"), value, block()))
            found.append(lets[-1].var)
            self.named += 1
        return tuple(found)


@stages(UNROLLED)
def multicast(kernel: Kernel, loop: str, together: int = 1) -> Kernel:
    """Make clusters of the groups of ``loop``, the innermost one over groups, which share the copies of elements that
    all of them read: each group brings a part, a multiple of ``together`` rows, to all.

    A group releases slots to all groups of its cluster. The groups meet before the first copy, because it reaches
    barriers of others, and at the end, because others may still copy to a group.

    Before::

        kernel k(a: f32[8], b: f32[8], c: f32[16])
          for g in 0 .. 2 #grid:
            alloc s: f32[4] @shared:
              alloc t: f32[4] @shared:
                fence barriers
                for i in 0 .. 2 #signalled:
                  tensor s[0] = a[0] dims(2:1, 4:2) box(2, 2) at(0, i * 2)
                  tensor t[0] = b[0] dims(2:1, 4:2) box(2, 2) at(0, g * 2)
                  receive
                  for w in 0 .. 1 #warp:
                    for l in 0 .. 4 #lane:
                      c[g * 8 + i * 4 + l] = s[l] + t[l]
                  release step i

    After ``multicast("g")``::

        kernel k(a: f32[8], b: f32[8], c: f32[16])
          for g in 0 .. 2 #cluster:
            fence barriers
            meet
            alloc s: f32[4] @shared:
              alloc t: f32[4] @shared:
                for i in 0 .. 2 #signalled:
                  tensor s[g * 2] = a[0] dims(2:1, 4:2) box(2, 1) at(0, g + i * 2) to 2 groups
                  tensor t[0] = b[0] dims(2:1, 4:2) box(2, 2) at(0, g * 2)
                  receive
                  for w in 0 .. 1 #warp:
                    for l in 0 .. 4 #lane:
                      c[g * 8 + i * 4 + l] = s[l] + t[l]
                  release step i to cluster
            meet
    """
    require_loops(kernel, (loop,), "multicast")
    return with_body(kernel, _Multicast(loop, together).stmt(kernel.body))
