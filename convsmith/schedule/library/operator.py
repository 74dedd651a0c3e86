"""The schedule of the nests of an operator of a network: vectors along adjacent elements of the result."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from convsmith.ir.index import Index, Var, as_index
from convsmith.ir.rewrite import substitute
from convsmith.ir.value import Binary, Load
from convsmith.ir.walk import loops_of, variables_of, walk
from convsmith.machine.transpositions import square_transposition
from convsmith.passes.flatten import offset
from convsmith.schedule.custom import KernelSchedule
from convsmith.schedule.library.finish import finish
from convsmith.schedule.loops import Loop
from convsmith.statement.operator import Operator
from convsmith.statement.statement import Statement

VECTORS = 4
"""Vectors of sums of a tile, whose latencies overlap."""
SUMS = 8
"""Vectors of sums whose latencies overlap: a tile of fewer of them has several partial ones of each."""
ROWS = 4
"""Vectors of sums of adjacent terms of a row: those of the next rows overlap with them too."""
PEELED = 3
"""Pieces of a loop whose first and last iterations read beyond an array."""
STRAIGHT = 32
"""Terms of a reduction that become straight-line code."""


def operator(s: KernelSchedule, vectors: bool = True) -> None:
    """Compute the result in the order of memory, by vectors of its adjacent elements if ``vectors`` is set; a reduction
    has a few of them at a time. A sum of adjacent elements has a partial sum in each lane. Windows that reach beyond an
    array are computed apart. Threads share the outer loops.
    """
    rows = _compute_at_rows(s)
    nests = [(st, *_in_memory_order(s, st, rows or ())) for st in s.statements]
    inner: list[Loop] = []
    lanes: list[Loop] = []
    transposed: dict[Loop, Loop] = {}
    for st, around, lane in nests:
        s.reorder(*around, *([] if lane is None else [lane]))
        if vectors and (term := _adjacent_term(s, st)) is not None:
            steps, part = s.tile(term, s.lanes, "kl")
            parts = _tiled(s, steps, ROWS)
            s.rfactor(part, s.lanes)
            _keep_apart(s, parts)
            lanes.append(part)
            continue
        if lane is None or not vectors:
            continue
        side = _side(s, st)
        if (read := _transposed_loop(s, st, around, lane, side)) is not None:
            across, part = s.tile(read, side, "tv")
            along, near = s.tile(lane, side, "ot")
            around[:] = [*(x for x in around if x is not read), across, along]
            s.reorder(*around, part, near)
            transposed[part] = near
            lanes.append(part)
            continue
        row, count = _sharing_loop(s, st, around, lane), min(VECTORS, -(-lane.extent // s.lanes))
        if row is not None:
            count = _vectors(lane.extent, row.extent, s.lanes, s.machine.registers)
        tiles, tile = s.tile(lane, count * s.lanes, "ot")
        made = [*s.tile(tile, s.lanes, "vl")]
        if row is not None:
            outer, within = s.tile(row, _rows(row.extent, s.machine.registers, count), "rs")
            around[:] = [*(x for x in around if x is not row), tiles, outer]
            s.reorder(*around, within)
            made.insert(0, within)
        if st.of("k"):
            parts = _tiled_term(s, st, SUMS // (count if row is None else SUMS))
            s.fission(*made, room=((made[-1], s.lanes),))
            s.sink(*made)
            _keep_apart(s, parts)
        inner += made
        lanes.append(made[-1])
    if several := [x for _, around, _ in nests for x in around if x.extent > 1]:
        s.peel(*several, pieces=PEELED)
    s.simplify(unit_loops=False)
    left = s.loops()
    firsts = [x for _, around, _ in nests for x in [x for x in around if x in left][:1]]
    if not getattr(s.problem, "in_order", False):
        s.parallel(*(firsts if rows is None else rows))
    terms = [x for st, *_ in nests if prod(d.size for d in st.of("k")) <= STRAIGHT for x in left if _is_of(x, st)]
    s.unroll(*(x for x in inner if x in left), *terms)
    finish(s, [x for x in lanes if x in left], transposed={x: near for x, near in transposed.items() if x in left})


def _inner(s: KernelSchedule) -> list[str]:
    """Return the names of the inner arrays of the operator, in the order in which its nests write them."""
    inner = {t.name for t in s.problem.inner} if isinstance(s.problem, Operator) else {}
    return [st.c.array for st in s.statements if st.c.array in inner]


def _compute_at_rows(s: KernelSchedule) -> Sequence[Loop] | None:
    """Compute inner arrays for the elements of a tile of the outermost dims of the result at a time, right before their
    use; return the loops over tiles that have several iterations. None if there are no inner arrays.

    Inner arrays are private to a thread, so threads share these loops alone.
    """
    inner = _inner(s)
    if not inner:
        return None
    assert isinstance(s.problem, Operator)
    tiles = [(s.loop(d.name), size) for d, size in zip(s.statements[-1].of("m"), s.problem.around)]
    rows = [s.tile(x, size)[0] if size > 1 else x for x, size in tiles]
    s.simplify()  # after it, places of elements within a tile are those of its loops
    rows = [x for x in rows if x.extent > 1]
    if rows:
        for name in reversed(inner):
            s.compute_at(name, rows[-1], rolling=False)
    return rows


def _adjacent_term(s: KernelSchedule, st: Statement) -> Loop | None:
    """Return the loop over the terms of a sum if they are adjacent in memory, and there is a vector of them."""
    terms = st.of("k")
    if len(terms) != 1 or terms[0].size < s.lanes:
        return None
    loop = s.loop(terms[0].name)
    (nest,) = (x for x in loops_of(s.kernel.body) if x.var.name == loop.name)
    reads = [x for x in walk(nest.body) if isinstance(x, Load) and nest.var in variables_of(x)]
    adjacent = [[b.dim for b in x.buffer.blocks if b.stride == 1 and b.size > 1] for x in reads]
    is_adjacent = all(any(x.index[n] is nest.var for n in dims) for x, dims in zip(reads, adjacent))
    sums = [x for x in walk(nest.body) if isinstance(x, Binary) and isinstance(x.a, Load) and x.a.buffer.in_registers]
    return loop if reads and is_adjacent and [x.op for x in sums] == ["add"] else None


def _tiled_term(s: KernelSchedule, st: Statement, most: int) -> tuple[Loop, Loop] | None:
    """Tile the innermost loop over the terms of a reduction for at most so many partial results, if it has enough terms
    for several; return the loop over tiles and the loop over partial results.
    """
    terms = st.of("k")
    if prod(d.size for d in terms) <= STRAIGHT:
        return None
    return _tiled(s, s.loop(terms[-1].name), most)


def _tiled(s: KernelSchedule, loop: Loop, most: int) -> tuple[Loop, Loop] | None:
    """Tile a loop over terms for at most so many partial results, if there are terms for several."""
    parts = min(most, loop.extent // 2)
    return s.tile(loop, parts, "ks") if parts > 1 else None


def _keep_apart(s: KernelSchedule, parts: tuple[Loop, Loop] | None) -> None:
    """Give each iteration of the second loop of `parts` a partial result; the last, shorter tile of terms is a nest."""
    if parts is not None:
        s.rfactor(parts[1], parts[1].extent, apart=True)
        s.peel(parts[0])


def _side(s: KernelSchedule, st: Statement) -> int:
    """Return the rows of the square tiles of the result that the machine transposes; 0 if there are none."""
    sides = dict.fromkeys((s.lanes, s.machine.lanes(32)))
    rows = () if s.machine.vectors.scalable else s.machine.transpositions
    return next((n for n in sides if square_transposition(rows, st.c.dtype, n)), 0)


def _transposed_loop(
    s: KernelSchedule, st: Statement, around: Sequence[Loop], lane: Loop, side: int
) -> Loop | None:  # fmt: skip
    """Return the loop of `around`, of at least `side` iterations, along which all arrays that are read are adjacent or
    constant, while one of them is scattered along `lane`; None if there is none, or no tiles are transposed.
    """
    if st.of("k") or not side:
        return None
    (nest,) = (x for x in loops_of(s.kernel.body) if x.var.name == lane.name)
    reads = [offset(x.buffer, x.index) for x in walk(nest.body) if isinstance(x, Load)]

    def steps(loop: Loop) -> set[Index]:
        return {substitute(at, {Var(loop.name): Var(loop.name) + 1}) - at for at in reads}

    near = {as_index(0), as_index(1)}
    if steps(lane) <= near:
        return None
    return next((x for x in reversed(around) if x.extent >= side and as_index(1) in steps(x) <= near), None)


def _sharing_loop(s: KernelSchedule, st: Statement, around: Sequence[Loop], lane: Loop) -> Loop | None:
    """Return the innermost loop of `around` whose iterations share the vectors of the terms of a sum, such as a loop
    over samples whose products have the same weights; None if there is none.
    """
    (nest,) = (x for x in loops_of(s.kernel.body) if x.var.name == lane.name)
    terms = [x for x in loops_of(nest.body) if any(x.var.name == d.name for d in st.of("k"))]
    reads = [x for n in terms[:1] for x in walk(n.body) if isinstance(x, Load) and not x.buffer.in_registers]
    names = [{v.name for v in variables_of(x)} for x in reads]
    vectors = [x for x in names if lane.name in x]
    shared = [x for x in around if x.extent > 1 and vectors and not any(x.name in own for own in vectors)]
    return next((x for x in reversed(shared) if any(x.name in own for own in names)), None)


def _vectors(extent: int, rows: int, lanes: int, registers: int) -> int:
    """Return the vectors of a tile of sums whose iterations share them, of at most `VECTORS`: those with the fewest
    loads for each product, where a vector of each is loaded once for all rows, and a factor for all vectors.
    """
    whole = -(-extent // lanes)

    def loads(count: int) -> tuple[float, int]:
        tiles, row = -(-whole // count), _rows(rows, registers, count)
        return (count + row) * tiles / row, -count

    return min(range(1, min(VECTORS, whole) + 1), key=loads)


def _rows(extent: int, registers: int, vectors: int) -> int:
    """Return the iterations of a tile whose sums of `vectors` vectors each, their factors and one factor that all lanes
    share fit the registers: the tiles are as few as possible, and of nearly equal size.
    """
    most = max(1, (registers - vectors - 1) // vectors)
    return -(-extent // -(-extent // most))


def _is_of(loop: Loop, st: Statement) -> bool:
    """Return whether a loop is one of the reduction of a statement."""
    return any(loop.of == d.name for d in st.of("k"))


def _fastest(x: Index) -> Var | None:
    """Return the variable of the smallest step in a coordinate; None if no variable has a step of its own."""
    steps = [(abs(step), v.name, v) for v, step in x.terms if isinstance(v, Var)]
    return min(steps)[-1] if steps else None


def _in_memory_order(s: KernelSchedule, st: Statement, rows: Sequence[Loop]) -> tuple[list[Loop], Loop | None]:
    """Return the loops over the result, within ``rows``, in the order of its memory, outermost first, and the one over
    its adjacent elements apart from the others, if there is one.
    """
    within = {x.of: x for x in s.loops() if x not in rows}
    loops = {d.name: within[d.name] for d in st.of("m") if d.name in within}
    owners = [_fastest(x) for x in st.c.coords]
    order: list[Loop] = []
    for b in st.c.layout.blocks:
        v = owners[b.dim]
        if v is not None and v.name in loops and loops[v.name] not in order:
            order.append(loops[v.name])
    order = [*(x for x in loops.values() if x not in order), *order]
    contiguous = st.c.layout.contiguous
    last = None if contiguous is None else owners[contiguous.dim]
    lane = None if last is None else loops.get(last.name)
    return [x for x in order if x is not lane], lane
