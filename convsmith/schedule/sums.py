"""The config of a statement that only adds up entries: vectors along the dim that is contiguous in memory."""

from __future__ import annotations

from math import prod

from convsmith.ir.index import Var
from convsmith.ir.types import dtype
from convsmith.ir.walk import variables_of
from convsmith.machine.base import Machine
from convsmith.schedule.config import Config
from convsmith.schedule.fill import THREADS
from convsmith.statement.statement import Dim, Statement, view_steps

WARP = 32
"""Adjacent threads whose loads are one access if they load adjacent elements."""
VECTORS, PIXELS = 4, 8
"""Vectors of sums, or pixels whose lanes are added up together, of a register tile."""
FACTORS = 2
"""Registers of such a tile beside its sums."""


def config_of_sums(st: Statement, target: Machine, threads: int, unknown: frozenset[str] = frozenset()) -> Config:
    """Return the config of ``st``: vectors of sums, or of terms that are added up at the end; on a device, a thread for
    each sum, and adjacent threads along adjacent elements of the result.

    Lanes do not run along ``unknown`` dims, whose sizes are known only at the call. One thread computes short sums,
    because ``threads`` would meet once more for them.
    """
    if target.device is not None:
        along = _thread_dim(st)
        return Config(target.name, along.name, group=((along.name, min(THREADS, along.size)),), pack=(), realise="mask")
    lanes = target.width(dtype(st.acc))
    sizes = st.extents
    lane = _lane(st, sizes, lanes, unknown)
    saved = prod(sizes.values()) / lanes * (1 - 1 / threads)
    if not unknown and saved < target.costs.meeting:
        threads = 1
    if lane in st.reduce:
        last = st.of("m")[-1]
        tile = {last.name: min(last.size, PIXELS, target.registers - FACTORS)}
    else:
        held = (target.registers - (not target.reads_scalars)) // 2  # each sum has a term beside it
        tile = {lane: lanes * min(-(-sizes[lane] // lanes), VECTORS, held)}
    return Config(target.name, lane, register=tuple(tile.items()), pack=(), outline=False, threads=threads)


def _thread_dim(st: Statement) -> Dim:
    """Return the dim of the result along which threads are adjacent: the contiguous one if a warp, or all sums, are
    along it, otherwise the largest.
    """
    free, steps = [d for d in st.dims if d.kind != "k"], view_steps(st.c)
    enough = min(WARP, max(d.size for d in free))
    return max(free, key=lambda d: (d.size >= enough and steps.get(Var(d.name)) == 1, d.size))


def _lane(st: Statement, sizes: dict[str, int], lanes: int, unknown: frozenset[str]) -> str:
    """Return a dim along which elements are contiguous and all present, or otherwise the longest dim of the result.

    Lanes past the last term read 0, which a flip turns into -128: such lanes must not be summed.
    """
    masked = unknown | {v.name for v in variables_of(st.a.mask)} | set(st.reduce if st.a.flipped else ())
    contiguous = {b.dim for b in st.a.layout.blocks if b.stride == 1 and b.size > 1}
    for dim in contiguous:
        for v, step in st.a.coords[dim].terms:
            if isinstance(v, Var) and step == 1 and v.name not in masked and sizes.get(v.name, 0) * 2 >= lanes:
                return v.name
    free = [d for d in st.of("m") if d.name not in masked]
    return max(free, key=lambda d: d.size).name
