"""The model of a given config, and the cycles that it expects, by cause."""

from __future__ import annotations

from convsmith.machine.base import Machine
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.copies import has_terms_apart
from convsmith.schedule.loops import Loops, loops_after_fusing
from convsmith.schedule.product_shape import ProductShape
from convsmith.schedule.winograd import scheduled_statement
from convsmith.statement.phases import phases
from convsmith.tune.costs.features import Features, Terms, time
from convsmith.tune.costs.model import Model
from convsmith.tune.tap_products import tap_features
from convsmith.tune.winograd import winograd_features

__all__ = ["expected_features", "expected_terms", "model_of", "with_lanes"]


def model_of(problem: Problem, config: Config, target: Machine) -> tuple[Model, Loops]:
    """Return the model of a legal ``config`` of one statement, with its loops after fusing."""
    target = target.with_vectors(config.vector_registers)
    st = scheduled_statement(problem, config.changed(split=()), target)
    model = Model(problem, st, target, ProductShape.of(st, target, config), tuple(phases(st)[n] for n in config.phases))
    for a, b in config.fuse:
        model.fuse(a, b)
    return model, loops_after_fusing(model.whole, config)


def expected_features(problem: Problem, config: Config, target: Machine) -> Features:
    """Return the features of the kernel of a legal ``config`` on one thread; empty for several statements."""
    if config.consumer is not None:
        return ()
    target = target.with_vectors(config.vector_registers)
    if config.tiles_at("winograd"):
        return winograd_features(problem, config, target)
    model, loops = model_of(problem, config, target)
    groups = [d.name for d in model.st.of("batch") if d.name in loops.dims[config.lane]]
    if has_terms_apart(model.st, model.unit, groups):
        return tap_features(model, loops, config)
    return model.features(loops, with_lanes(config, model, loops))


def expected_terms(problem: Problem, config: Config, target: Machine) -> Terms:
    """Return the cycles of ``config`` by cause; empty without an estimate, as for several statements.

    The causes within a register tile overlap; each gets its share of the norm that combines them.
    """
    target = target.with_vectors(config.vector_registers)
    terms = time(expected_features(problem, config, target), target)
    return {name: cycles for name, cycles in terms.items() if cycles}


def with_lanes(config: Config, model: Model, loops: Loops) -> Config:
    """Return the config with a register tile of one vector along the lanes, unless it has a tile there."""
    if loops.kinds[config.lane] == "k" or config.lane in dict(config.tiles_at("register")):
        return config
    return config.changed(register=(*config.tiles_at("register"), (config.lane, model.filled(config.lane))))
