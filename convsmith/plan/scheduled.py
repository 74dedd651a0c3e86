"""The statement that a config schedules, and the schedules of the statements that only add up entries."""

from __future__ import annotations

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Var
from convsmith.ir.types import S32
from convsmith.ir.walk import variables_of
from convsmith.machine.base import Machine
from convsmith.passes.manager import Step
from convsmith.plan.config import Config
from convsmith.plan.schedule import schedule
from convsmith.problem.problem import Problem
from convsmith.statement.offsets import MOST, Summing, of_fewer_bits, summed
from convsmith.statement.parts import parted
from convsmith.statement.statement import Statement
from convsmith.statement.views import statement

VECTORS, PIXELS = 4, 8
"""Vectors of sums, or pixels whose lanes are added up together, held at once."""


def scheduled(problem: Problem, config: Config, target: Machine) -> Statement:
    """The statement that the config schedules: with parts of its own where it splits a reduction."""
    st = statement(problem, target)
    if of_fewer_bits(st):
        need = [view.name for view in (st.a, st.b) if view.fewer is not None or view is st.b]
        if config.offsets != "sums" or not set(need) <= set(config.pack):
            raise ConfigError(
                "bits", f"entries of fewer bits are made while packing: legal are --offsets=sums and "
                f"--pack={','.join(need)}",
            )  # fmt: skip
    if config.offsets == "sums":
        found = summed(problem, st, config.flip, config.pack, config.realise == "indirection")
        if found is None:
            words = "--offsets=sums" + (f" --flip={','.join(config.flip)}" if config.flip else "")
            raise ConfigError(
                "offsets",
                f"{words}: legal where source or weights have zero points or are "
                "flipped (s8 sources and u8 weights can be), the zero point of the source is common to its channels, "
                f"and at most {MOST} sums of weights are needed; else --offsets=each",
            )
        if st.b.name not in config.pack:
            raise ConfigError("offsets", f"--offsets=sums: needs --pack={st.b.name}, beside which the sums are packed")
        st = found
    return parted(st, config.split)


def summing_steps(summing: Summing, target: Machine, threads: int) -> list[Step]:
    """Vectors along what lies side by side in memory: of sums, or of terms that are added up at the end."""
    st, lanes = summing.statement, target.lanes(S32.bits)
    sizes = {d.name: d.size for d in st.dims}
    lane = _lane(summing, sizes, lanes)
    if lane in st.reduce:
        last = st.of("m")[-1]
        tile = {last.name: min(last.size, PIXELS)}
    else:
        tile = {lane: lanes * min(-(-sizes[lane] // lanes), VECTORS)}
    config = Config(target.isa, lane, register=tuple(tile.items()), pack=(), outline=False, threads=threads)
    return schedule(st, config, target)


def _lane(summing: Summing, sizes: dict[str, int], lanes: int) -> str:
    """A dim along which elements are neighbours and all are there, or else the longest of the result.

    Lanes beyond the last term read as zero, which is no zero once it is flipped.
    """
    masked = {v.name for v in variables_of(summing.given.mask)} | set(summing.reduce if summing.given.flipped else ())
    near = {b.dim for b in summing.given.layout.blocks if b.stride == 1 and b.size > 1}
    for dim in near:
        for v, step in summing.given.coords[dim].terms:
            if isinstance(v, Var) and step == 1 and v.name not in masked and sizes.get(v.name, 0) * 2 >= lanes:
                return v.name
    free = [d for d in summing.statement.of("m") if d.name not in masked]
    return max(free, key=lambda d: d.size).name
