"""The default config of a kernel whose sizes are known only at the call."""

from __future__ import annotations

from convsmith.diag.errors import UnsupportedError
from convsmith.machine.base import Machine
from convsmith.problem.conv import Conv
from convsmith.problem.fusion import stages_of
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.dynamic import symbolic_dims, through_table
from convsmith.schedule.loops import loops_after_fusing
from convsmith.schedule.lower import transposes
from convsmith.schedule.product_shape import ProductShape
from convsmith.schedule.registers import filled_lanes, registers
from convsmith.statement.offsets import flips, summed
from convsmith.statement.statement import Statement
from convsmith.statement.views import statement
from convsmith.tune.candidates import LONG_EPILOGUE, operations

_TILES = (4, 6), (2, 12), (2, 6), (2, 5), (2, 4), (1, 12), (1, 6), (1, 4), (1, 1)
"""Register tiles, best first: vectors along the lanes, and pixels."""
_TRANSPOSED_TILES = (4, 4), (2, 4), (1, 4), (1, 1)
"""Register tiles of results that are transposed in registers.

Their rows of pixels are stored as whole vectors. With rows of 6, 8 or 12 pixels, whose stores are masked, a kernel
takes twice as long at some sizes of an image.
"""


def dynamic_config(p: Problem, target: Machine, threads: int = 1) -> Config:
    """Return a config with vectors of channels (or of groups of one channel), and as many pixels or rows as fit the
    registers.

    Pixels are read through a table of pointers; gradients by weights have no table and test each term. Stages of a
    chain run one after the other.
    """
    if (stages := stages_of(p)) is not None:
        chained: Config | None = None
        for stage in reversed(stages.problems):
            chained = dynamic_config(stage, target, threads).changed(consumer=chained)
        assert chained is not None
        return chained
    realise = "indirection" if through_table(p) else "mask" if isinstance(p, Conv) else "peel"
    each = statement(p, target, symbolic=True)
    ways: list[tuple[tuple[str, ...], str, Statement]] = [((), "each", each)]
    for flip in flips(p, each) if realise != "mask" else ():
        found = summed(p, each, flip, filled=realise == "indirection")
        if found is not None and all(view.adds != found.a.name for view in found.sums):
            ways.append((flip, "sums", found))
    flip, offsets, st = max(ways, key=lambda way: _terms(way[2], target))
    sizes = st.extents
    lane = "g" if isinstance(p, Conv) and p.g > 1 and p.ic == p.oc == p.g else st.n
    unit = ProductShape.choices(st, target, limited=False)[-1]
    dot = unit.dot and lane == st.n
    terms = ((st.reduce[-1], unit.terms),) if dot else ()
    row = st.of("m")[-1].name
    order = tuple(d.name for d in st.dims if d.kind != "k" and d.name not in (lane, row))
    scattered = transposes(st, lane, row, unit.lanes, target) is not None
    for vectors, pixels in _TRANSPOSED_TILES if scattered else _TILES:
        if lane != st.n and pixels > 4:
            continue  # pixels share only weights
        if row not in symbolic_dims(p) and pixels > sizes[row]:
            continue
        config = Config(
            target.name, lane, register=((row, pixels), (lane, vectors * unit.lanes)), order=(*order, lane, row),
            reduce=st.reduce, instruction=unit.name if dot else "", k_step=terms, realise=realise,
            pack=("wei",) if st.constant else (), offsets=offsets, flip=flip,
            spill_sums=operations(p, st) > LONG_EPILOGUE, threads=threads,
        )  # fmt: skip
        own = ProductShape.of(st, target, config)
        if sizes[lane] <= (vectors - 1) * own.lanes:
            continue
        loops = loops_after_fusing(st, config)
        if registers(loops, config, target, own, filled_lanes(st, loops.dims[lane], own)).fit:
            return config
    raise UnsupportedError(f"dynamic sizes: no config of {p} fits the registers of {target.name}", code="dynamic")


def _terms(st: Statement, target: Machine) -> int:
    """Return the number of products that an instruction on vectors adds up; 0 if it is no dot product."""
    unit = ProductShape.choices(st, target, limited=False)[-1]
    return unit.terms if unit.dot else 0
