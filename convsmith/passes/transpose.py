"""Transpose a copy in registers, through two register arrays.

A nest whose reads are contiguous along one loop and whose writes are contiguous along another cannot use vectors for
both. This pass reads into one register array and writes from another, each with vectors along its own loop; between
them is a transposition in registers, for which machines have instructions.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise, product

from convsmith.arith.evaluate import holds
from convsmith.ir.buffer import make_buffer
from convsmith.ir.index import Cond, Index, Var, as_index, conj, parts_of, true
from convsmith.ir.rewrite import replace_value, substitute
from convsmith.ir.stages import FLAT
from convsmith.ir.stmt import Alloc, For, Kernel, Stmt, Store, block
from convsmith.ir.value import Const, Load, Select, Value, const, dtype_of
from convsmith.ir.walk import variables_of, walk
from convsmith.passes.accesses import sites_of
from convsmith.passes.contracts import LOOPS, stages
from convsmith.passes.order import require_order
from convsmith.passes.scope import ScopedRewriter, perfect_nest, require_loops, with_body

TILE = "t"
"""Default name of tiles; the names of their loops are this name and one of the following."""
READ, WRITTEN = ".read", ".write"
"""The vector loops of the reads and of the writes."""
ROW, COLUMN = ".row", ".column"
"""The loops around them, over rows that are read and columns that are written."""


class _Transpose(ScopedRewriter):
    def __init__(self, loops: tuple[str, ...], shape: tuple[int, int], joined: bool, piece: int, name: str) -> None:
        super().__init__()
        self.loops, self.shape, self.joined, self.piece, self.name = loops, shape, joined, piece, name

    def visit_For(self, loop: For) -> Stmt:
        if loop.var.name != self.loops[0]:
            return self._For(loop)
        nest, s = perfect_nest(loop)
        known = all(x.lo is as_index(0) and x.hi.is_const for x in nest)
        if tuple(x.var.name for x in nest) != self.loops or not known or not isinstance(s, Store):
            return loop
        columns, rows, *groups = nest
        if not 1 < int(rows.hi) <= self.shape[0] or not 1 < int(columns.hi) <= self.shape[1]:
            return loop
        if self.piece and int(columns.hi) % self.piece:
            return loop
        values = list(walk(s.value))
        if not all(are_partial(v, columns, groups, rows) for v in values if isinstance(v, Select)):
            return loop
        if not any(isinstance(v, Load) for v in values):
            return loop
        if any(v.buffer is s.buffer for v in values if isinstance(v, Load)):
            what = f"transpose({', '.join(self.loops)})"  # all reads come before all writes
            require_order(what, sites_of(loop, self.ranges), lambda path: (path[-1], *path[:-1]), self.ranges)
        return through_registers(nest, s, self.shape, self.joined, self.piece, self.name)


def through_registers(
    nest: list[For], s: Store, shape: tuple[int, int], joined: bool, piece: int, name: str = TILE,
    part: Value | None = None,
) -> Stmt:  # fmt: skip
    """Return the copy of a tile through registers; its loops are the loops of :func:`transpose`.

    Only ``part`` of the stored value is transposed, by default all of it; the rest is computed where it is written.
    """
    columns, rows, *groups = nest
    height, width = shape
    group = int(groups[0].hi) if groups else 1
    part = s.value if part is None else part
    dtype = dtype_of(part)
    t = make_buffer(f"{s.buffer.name}_t", dtype, (height, width * group), "register")
    result = (1, height * width) if joined else (width, height * group)
    u = make_buffer(f"{s.buffer.name}_u", dtype, result, "register")

    row, x = Var(f"{name}{ROW}"), Var(f"{name}{READ}")
    here: dict[Var, Index] = {rows.var: row, columns.var: x // group, **{g.var: x % group for g in groups}}
    value: Value = substitute(part, here)
    if int(rows.hi) < height:
        value = Select(row < rows.hi, value, const(dtype, 0))
    read, zero = int(columns.hi) * group, const(dtype, 0)
    cond, load, absent = (value.cond, value.yes, value.no) if isinstance(value, Select) else (true(), value, zero)
    if read < width * group and isinstance(load, Load) and absent == zero:
        value, read = Select(conj((cond, x < read)), load, zero), width * group
    reading = _loop(row, height, _loop(x, read, Store(t, (row, x), value)), "unrolled")

    column, y = Var(f"{name}{COLUMN}"), Var(f"{name}{WRITTEN}")
    k, m, r = (Var(f"{name}.{letter}") for letter in "kmr")
    if joined:
        moved = _loop(k, width, _loop(m, height, Store(u, (as_index(0), k * height + m), Load(t, (m, k), None))))
        each = piece or int(columns.hi)
        first = column * each
        at: dict[Var, Index] = {columns.var: first + y // height, rows.var: y % height}
        held = Load(u, (as_index(0), first * height + y), None)
        write = _with_part(s, part, held, at)
        writing = _loop(column, int(columns.hi) // each, _loop(y, each * height, write), "unrolled")
    else:
        if groups:
            inner = _loop(r, group, Store(u, (k, m * group + r), Load(t, (m, k * group + r), None)))
        else:
            inner = Store(u, (k, m), Load(t, (m, k), None))
        moved = _loop(k, width, _loop(m, height, inner))
        at = {columns.var: column, rows.var: y // group, **{g.var: y % group for g in groups}}
        write = _with_part(s, part, Load(u, (column, y), None), at)
        writing = _loop(column, int(columns.hi), _loop(y, int(rows.hi) * group, write), "unrolled")
    return Alloc(t, Alloc(u, block(reading, moved, writing)))


def _with_part(s: Store, part: Value, held: Value, at: Mapping[Var, Index]) -> Store:
    """Return ``s`` at the loops ``at`` with ``held`` in the place of ``part``."""
    value = substitute(replace_value(s.value, part, held), at)
    return Store(s.buffer, tuple(substitute(i, at) for i in s.index), value)


def are_partial(v: Select, columns: For, groups: list[For], rows: For) -> bool:
    """Return whether masked vectors along the columns can be partial loads with zeros in the inactive lanes."""
    along = {columns.var, *(g.var for g in groups)}
    used = [names for names in map(variables_of, parts_of(v.cond)) if names & along]
    is_zero = isinstance(v.yes, Load) and isinstance(v.no, Const) and v.no.value == 0
    is_known = all(names <= along | {rows.var} for names in used)
    return not used or (is_zero and is_known and _are_runs(v.cond, columns, groups, rows))


def _are_runs(cond: Cond, columns: For, groups: list[For], rows: For) -> bool:
    """Return whether the elements of each row that a condition selects by columns, groups and row are adjacent."""
    loops = (rows, columns, *groups)
    tests = [part for part in parts_of(cond) if variables_of(part) and variables_of(part) <= {x.var for x in loops}]
    along = [range(int(x.hi)) for x in loops[1:]]
    for row in range(int(rows.hi)):
        places = (dict(zip((x.var for x in loops), (row, *place))) for place in product(*along))
        present = [all(holds(test, place) for test in tests) for place in places]
        if sum(a != b for a, b in pairwise((False, *present, False))) > 2:
            return False
    return True


def _loop(var: Var, count: int, body: Stmt, kind: str = "serial") -> Stmt:
    return For(var, as_index(0), as_index(count), body, kind)


@stages(*LOOPS, FLAT)
def transpose(
    kernel: Kernel, loops: tuple[str, ...], shape: tuple[int, int], joined: bool = False, piece: int = 0,
    name: str = TILE,
) -> Kernel:  # fmt: skip
    """Transpose innermost nests of ``loops`` (columns, rows, optionally elements of a group) in registers.

    Reads are contiguous along the columns, writes along the rows; a nest has at most ``shape`` (rows, columns)
    iterations. The names of a tile's loops begin with ``name``. ``joined`` states that consecutive columns are
    contiguous in the result too: all, or each ``piece`` of them. A nest of other loops or without constant bounds is
    unchanged, as is a nest without reads, one that masks columns and computes with the loaded values, and one in a row
    of which the elements that exist are not adjacent.

    Before::

        kernel k(a: f32[2, 12], dst: f32[3, 4, 2])
          for i in 0 .. 3:
            for k in 0 .. 4:
              for n in 0 .. 2:
                dst[i, k, n] = a[n, i * 4 + k]

    After ``transpose(("k", "n"), (2, 4))``::

        kernel k(a: f32[2, 12], dst: f32[3, 4, 2])
          for i in 0 .. 3:
            alloc dst_t: f32[2, 4] @register:
              alloc dst_u: f32[4, 2] @register:
                for t.row in 0 .. 2 #unrolled:
                  for t.read in 0 .. 4:
                    dst_t[t.row, t.read] = a[t.row, i * 4 + t.read]
                for t.k in 0 .. 4:
                  for t.m in 0 .. 2:
                    dst_u[t.k, t.m] = dst_t[t.m, t.k]
                for t.column in 0 .. 4 #unrolled:
                  for t.write in 0 .. 2:
                    dst[i, t.column, t.write] = dst_u[t.column, t.write]
    """
    require_loops(kernel, loops, "transpose")
    return with_body(kernel, _Transpose(loops, shape, joined, piece, name).stmt(kernel.body))
