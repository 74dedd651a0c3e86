"""Candidate configs of depthwise convolutions by dot products of taps, with their expected cycles.

A dot product adds up products of adjacent terms, and each channel of a depthwise convolution has taps alone, which lie
apart in memory. Its vectors are the columns of pixels of a padded copy, interleaved in registers. Adjacent pixels of a
tile multiply the same vectors where these have room for the taps of all of them. Rows of the window are a loop: its
sums pass from one iteration to the next, so that no engine moves their additions behind all loads of a tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod

from convsmith.ir.index import Var
from convsmith.ir.instruction import Instruction
from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.copies import pixels_of_terms
from convsmith.schedule.loops import Loops, fused_name, loops_after_fusing
from convsmith.schedule.product_shape import ProductShape, unfit
from convsmith.schedule.registers import registers
from convsmith.statement.statement import Statement, view_steps
from convsmith.tune.costs.code_size import emitted
from convsmith.tune.costs.features import Features, Section, cycles
from convsmith.tune.costs.model import Model

ROWS, COLUMNS, VECTORS = (1, 2), (1, 2, 4), (1, 2, 4)
"""Pixels of a tile along both axes, and its vectors of channels."""


def tap_configs(problem: Problem, st: Statement, target: Machine, threads: int) -> Iterator[tuple[float, int, Config]]:
    """Yield the configs of ``st`` whose instruction adds up the taps of a row, with cycles on one thread and emitted
    multiply-adds; none where the target has no price for interleaved columns.
    """
    row = _row(st, target)
    if row is None or not target.costs.interleave:
        return
    (g,), (above, tap) = st.of("batch"), st.reduce[-3:-1]
    lane = fused_name(g.name, st.n)
    images, *_, rows, columns = [d.name for d in st.of("m")]
    unit = ProductShape.of_row(row)
    plain = Config(
        target.name, lane, fuse=((g.name, st.n),), order=(images, rows, columns, lane), instruction=row.name,
        reduce=(st.reduce[-1], above, tap), k_step=((tap, unit.terms),), realise="pad_copy", pack=(st.b.name,),
        offsets="sums" if st.sums else "each", outline=False, threads=threads,
    )  # fmt: skip
    sizes = st.extents
    for high, wide, vectors in product(ROWS, COLUMNS, VECTORS):
        tile = {rows: high, columns: wide, lane: vectors * unit.lanes}
        config = plain.changed(register=tuple(tile.items()))
        model, loops = Model(problem, st, target, unit), loops_after_fusing(st, config)
        model.fuse(g.name, st.n)
        is_whole = high <= sizes[rows] and wide <= sizes[columns] and not sizes[g.name] % tile[lane]
        if tile[lane] * unit.terms * dtype(st.a.factor).bits % target.vector_bits:
            continue  # its columns would not fill the registers that interleave them
        if not is_whole or not registers(loops, config, target, unit, unit.lanes).fit or unfit(st, row, config):
            continue
        yield cycles(tap_features(model, loops, config), target), emitted(model, loops, config), config


def _row(st: Statement, target: Machine) -> Instruction | None:
    """Return the instruction that adds up most of the taps of a row of a channel, whose neighbours are adjacent in
    memory; None if there is none, or more taps than it adds up.
    """
    kinds = [d for d in st.dims if d.kind != "k" and not d.axis and d.sort != "images"]
    axes = [d for d in st.of("m") if d.axis]
    if len(st.factors) < 2 or len(st.of("batch")) != 1 or not st.constant or st.residues or st.sizes or st.shifted:
        return None
    (g,) = st.of("batch")
    is_depthwise = prod(d.size for d in kinds if d.name != g.name) * st.extents[st.reduce[-1]] == 1
    if not is_depthwise or len(axes) < 2 or len(st.reduce) != 3 or view_steps(st.a).get(Var(g.name)) != 1:
        return None
    taps = st.extents[st.reduce[-2]]
    known = target.vector_rows(st.a.factor, st.b.factor, st.acc)
    return next((x for x in known if x.terms // 2 < taps <= x.terms and not g.size % x.lanes), None)


def tap_features(model: Model, loops: Loops, config: Config) -> Features:
    """Return the features of a config whose instruction adds up taps of channels that are groups of their own: pixels
    are copied by vectors of their own type, and each row of a window interleaves the vectors that its pixels share.

    The copy loads and stores vectors. Engines know the address of a whole register as a part of its load, and compute
    that of a part of a register.
    """
    st, unit, target = model.st, model.unit, model.target
    tile = {n: config.size(n) for n in loops.extents}
    *_, rows, columns = [d.name for d in st.of("m")]
    ((loop, _),) = config.tiles_at("k_step")
    vectors, bits = tile[config.lane] // unit.lanes, tile[config.lane] * dtype(st.a.factor).bits
    number = prod(-(-n // tile[name]) for name, n in loops.extents.items() if loops.kinds[name] != "k")
    steps = view_steps(st.a)
    _, together, away = pixels_of_terms(st, config) or ("", 1, abs(steps[Var(columns)]) // abs(steps[Var(loop)]))
    groups, above = -(-tile[columns] // together), tile[rows] * st.extents[st.reduce[-3]]
    read = min(groups * unit.terms, (groups - 1) * together * away + unit.terms)
    dots = above * tile[columns] * vectors * -(-loops.extents[loop] // unit.terms)
    copied = prod(st.a.layout.shape) / (target.lanes(8) if model.bytes == 1 else target.lanes(model.bytes * 8))
    loads = above * (read * (1 if bits >= target.vector_bits else 2) + together * vectors)
    shuffled = above * groups * bits * unit.terms // target.vector_bits
    return (
        Section(1, (("padded copy", (("l1", 2 * copied),)),)),
        Section(number, (
            ("multiply-adds", ((model.product, dots),)), ("loads", (("l1", loads), ("interleave", shuffled))),
        )),
        Section(number, (("calls", (("turn", 1),)),)),
    )  # fmt: skip
