"""The config of a product whose weights come anew in each call: they are packed next to their use, or read in place.

A kernel packs its weights once for many calls. If each call brings other weights, packing all of them ahead of the
product writes and reads as many bytes beyond the caches once more, which takes longer than a product of few rows. The
reduction is then cut into parts, of which the first-level cache keeps a block of the weights as wide as a register
tile. Tiles of rows read the block in place if they are few, and otherwise a copy of it. The sums have the same terms in
the same order.
"""

from __future__ import annotations

from math import prod

from convsmith.compiler.memory import flaw_within
from convsmith.ir.index import Var, is_true
from convsmith.machine.base import Machine
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.loops import Loops
from convsmith.statement.statement import Statement, view_steps
from convsmith.tune.expected import model_of
from convsmith.tune.features import Section, cycles
from convsmith.tune.model import Model

__all__ = ["config_of_plain_weights"]

TILES_IN_PLACE = 2
"""Maximum number of tiles of rows that read the weights in place."""
MIN_GAIN = 1.25
"""Minimum ratio of the cycles of a call that packs all weights first to those of a call that does not, from which a
kernel of its own is worth compiling.
"""


def config_of_plain_weights(problem: Problem, config: Config, target: Machine) -> Config | None:
    """Return the config for calls of ``problem`` that bring other weights than the calls before; None if the kernel of
    ``config``, which packs all weights, is expected to be about as fast.
    """
    if target.device is not None or config.consumer is not None or not _is_plain(config):
        return None
    model, loops = model_of(problem, config, target)
    st, lane = model.st, config.lane
    if not _is_product(model, loops, config):
        return None
    elements = prod(st.b.layout.shape)
    tiles = prod(-(-loops.extents[n] // config.size(n)) for n in loops.of("m"))
    (terms,) = loops.of("k")
    depth = max(1, target.l1.kept // (config.size(lane) * model.bytes))
    other = config.changed(
        order=(lane, *(n for n in config.order if n != lane)),
        cache=((terms, depth),) if depth < loops.extents[terms] else (),
        pack=tuple(n for n in config.staged("pack") if n != st.b.name),
        pack_at=((st.b.name, lane),) if tiles > TILES_IN_PLACE else (),
        stream=(),
    )
    product = model.cycles(loops, config)
    ahead, near = (
        cycles((Section(1, (("packing", ((event, elements),)),)),), target) for event in ("pack_far", "pack_near")
    )
    if product + ahead < MIN_GAIN * (product + near) or flaw_within(problem, other, target) is not None:
        return None
    return other


def _is_plain(config: Config) -> bool:
    """Return whether a config has neither transforms, parts of sums nor phases, and copies nothing but packed operands.
    """
    levels = config.tiles_at("winograd") or config.tiles_at("split") or config.tiles_at("k_step")
    copies = config.staged("resident") or config.staged("unfold") or config.staged_at("pack_at")
    return not (levels or copies or config.phases) and config.realise == "peel"


def _is_product(model: Model, loops: Loops, config: Config) -> bool:
    """Return whether the statement is a product of matrices of one type, with vectors along rows of packed weights that
    exceed the second-level cache, and one loop over the terms.
    """
    st: Statement = model.st
    if not st.constant or len(st.factors) != 2 or st.shifted or st.sums or model.unit.dot or loops.residues:
        return False
    weights = st.b
    is_row = loops.kinds[config.lane] == "n" and view_steps(weights).get(Var(config.lane)) == 1
    is_single = len(loops.of("k")) == len(loops.of("n")) == 1 and not loops.of("batch")
    is_far = prod(weights.layout.shape) * model.bytes > model.target.l2.bytes
    return (
        is_row and is_single and is_far and weights.name in config.staged("pack")
        and st.a.dtype == weights.dtype == st.acc and all(is_true(view.mask) for view in st.factors)
    )  # fmt: skip
