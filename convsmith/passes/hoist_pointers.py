"""Hoist loads of pointers out of loops that do not change them.

After unrolling, a remaining loop contains one such load per pixel; each load is hoisted, and its target gets its own
buffer.
"""

from __future__ import annotations

from dataclasses import replace

from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index
from convsmith.ir.rewrite import Rewriter, Substitute
from convsmith.ir.stmt import Block, For, Kernel, Let, PointerLoad, Stmt, block
from convsmith.ir.threads import has_effects
from convsmith.ir.walk import bound_in, variables_of
from convsmith.passes.contracts import ANY, stages
from convsmith.passes.scope import each_body

_Entry = tuple[Buffer, Buffer, tuple[Index, ...], Index]


class _HoistPointers(Rewriter):
    def visit_For(self, loop: For) -> Stmt:
        out = self._For(loop)
        if not isinstance(out, For) or has_effects(out.body):
            return out
        inside = bound_in(out)
        hoisted: dict[_Entry, PointerLoad] = {}
        parts = []
        lets: list[Let] = []
        body = out.body
        while isinstance(body, Let):
            lets.append(body)
            body = body.body
        stmts = body.stmts if isinstance(body, Block) else (body,)
        for s in stmts:
            if isinstance(s, PointerLoad) and not any(
                variables_of(i) & inside for i in (*s.index, s.offset, *s.zero_at)
            ):
                entry = (s.buffer, s.table, s.index, s.offset)
                if entry not in hoisted:
                    name = f"{s.buffer.name}{len(hoisted)}" if len(stmts) > 1 else s.buffer.name
                    hoisted[entry] = replace(s, buffer=replace(s.buffer, name=name))
                s = Substitute({}, {s.buffer: hoisted[entry].buffer}).stmt(s.body)
            parts.append(s)
        if not hoisted:
            return out
        within = block(*parts)
        for let in reversed(lets):
            within = Let(let.var, let.value, within)
        nest: Stmt = For(out.var, out.lo, out.hi, within, out.kind, out.carried)
        for at in reversed(hoisted.values()):
            nest = replace(at, body=nest)
        return nest


@stages(*ANY)
def hoist_pointers(kernel: Kernel) -> Kernel:
    """Hoist loads from pointer tables out of the loops in which they are invariant.

    They also leave the names of indices that such a loop binds around all of its body.

    Before::

        kernel k(a: f32[24], a_row: ptr[6], a_0: f32[4], c: f32[12])
          for x in 0 .. 2:
            for i in 0 .. 4:
              at a_row[x * 2] + 0 in a or a_0[0] as a_at: f32[4]:
                c[i] = c[i] + a_at[i]
              at a_row[x * 2 + 1] + 0 in a or a_0[0] as a_at: f32[4]:
                c[i + 4] = c[i + 4] + a_at[i]

    After ``hoist_pointers()``::

        kernel k(a: f32[24], a_row: ptr[6], a_0: f32[4], c: f32[12])
          for x in 0 .. 2:
            at a_row[x * 2] + 0 in a or a_0[0] as a_at0: f32[4]:
              at a_row[x * 2 + 1] + 0 in a or a_0[0] as a_at1: f32[4]:
                for i in 0 .. 4:
                  c[i] = c[i] + a_at0[i]
                  c[i + 4] = c[i + 4] + a_at1[i]
    """
    return each_body(kernel, lambda s: _HoistPointers().stmt(s))
