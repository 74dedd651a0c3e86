"""Packed operands of kernels on devices: their order in memory, and the rewrites that pack them."""

from __future__ import annotations

from dataclasses import replace

from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import dense
from convsmith.ir.index import Var
from convsmith.ir.walk import variables_of
from convsmith.layout.layout import Layout
from convsmith.machine.base import Machine
from convsmith.schedule.config import Config
from convsmith.schedule.schedule import Schedule
from convsmith.statement.statement import Dim, Statement, View

__all__ = ["pack_operands", "packed_statement"]


def packed_statement(st: Statement, config: Config, machine: Machine) -> Statement:
    """Return ``st`` with the operands that ``config`` packs in the order in which a group reads them; ConfigError if
    one cannot be packed.
    """
    legal = [v.name for v in st.factors if v.constant and not any(x.adds == v.name for x in st.sums)]
    for name in config.staged("pack"):
        if name not in legal:
            raise ConfigError(
                "pack",
                f"--pack={','.join(config.staged('pack'))}: {machine.name} packs operands that are equal in all calls, "
                f"whose entries no kernel of a call adds up; legal are {', '.join(legal) or 'none here'}",
            )
    if not config.staged("pack"):
        return st
    factors = tuple(_packed(st, v, config) if v.name in config.staged("pack") else v for v in st.factors)
    return replace(st, factors=factors)


def _packed(st: Statement, view: View, config: Config) -> View:
    """Return the packed view, with one dim for each loop that indexes it."""
    order = _order(st, view, config)
    shape = tuple(d.size for d in order)
    coords = tuple(Var(d.name) for d in order)
    return replace(view, layout=Layout(shape, dense(shape)), coords=coords, packed=True)


def _order(st: Statement, view: View, config: Config) -> list[Dim]:
    """Return the dims that index ``view``, outermost first.

    Dims of the reduction have the order of the steps and are inside the channels, so that terms are contiguous; they
    are outside if adjacent threads have adjacent channels.
    """
    moving = [d for d in st.dims if any(Var(d.name) in variables_of(x) for x in view.coords)]
    outer = [d for d in moving if d.kind == "batch"]
    terms = sorted((d for d in moving if d.kind == "k"), key=lambda d: _place(d.name, config.reduce, st.reduce))
    free = sorted((d for d in moving if d.kind in ("n", "m")), key=lambda d: d.name == config.lane)
    is_along_lanes = not config.instruction and any(d.name == config.lane for d in free)
    return [*outer, *terms, *free] if is_along_lanes else [*outer, *free, *terms]


def _place(name: str, first: tuple[str, ...], others: tuple[str, ...]) -> int:
    """Return the position of a loop among the loops named ``first``, followed by the ``others``."""
    return [*first, *(n for n in others if n not in first)].index(name)


def pack_operands(s: Schedule, st: Statement) -> None:
    """Make the naive nest read the packed views of ``st``, which separate kernels pack."""
    for view in st.factors:
        if view.packed:
            s.pack((view.name,), (), False, (), False, tuple(str(x) for x in view.coords))
