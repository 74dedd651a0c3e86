"""The space of configs of a problem of one statement: the model's candidates, and steps along dimensions from them.

A dimension (`tune/search/dimensions.py`) is a name with a function from a config to the changes that replace this one
decision. Every point of the space is reached from the candidates by steps along dimensions. A step may lead to an
illegal config, whose refusal the space returns as a code. The facts that dimensions read, and the models that estimate
configs, are kept by the decisions on which they depend.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import inf, prod

from convsmith.diag.errors import ConfigError
from convsmith.diag.forking import cached_property
from convsmith.ir.index import Var, is_true
from convsmith.ir.walk import variables_of
from convsmith.machine.base import Machine
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.config_rows import Sizes
from convsmith.schedule.loops import Loops, loops_after_fusing
from convsmith.schedule.product_shape import ProductShape
from convsmith.schedule.registers import filled_lanes, register_file, registers
from convsmith.schedule.winograd import scheduled_statement
from convsmith.statement.parts import splits
from convsmith.statement.statement import Statement, view_steps
from convsmith.tune.candidates import candidates, serves
from convsmith.tune.costs.expected import model_of, with_lanes
from convsmith.tune.costs.features import cycles
from convsmith.tune.costs.model import Model
from convsmith.tune.search.config_space import Changes, ConfigSpace
from convsmith.tune.search.dimensions import DIMENSIONS, Point, all_tiles
from convsmith.tune.search.fusions import neighbours_of
from convsmith.tune.winograd import winograd_features

__all__ = ["Space"]


class Space(ConfigSpace):
    """The configs of ``problem``, one statement, on ``target``, a CPU, for a number of threads.

    Register tiles that do not fit the registers, and pairs of loops without constant strides, count as refused.
    """

    def __init__(self, problem: Problem, target: Machine, threads: int, refused: Counter[str] | None = None) -> None:
        super().__init__(problem, target, refused)
        self.threads = threads
        self._points: dict[object, Point | None] = {}
        self._models: dict[object, tuple[Model, Loops] | None] = {}
        self._known_tiles: dict[object, tuple[Sizes, ...]] = {}
        self._known_pairs: dict[object, tuple[tuple[str, str], ...]] = {}

    @cached_property
    def seeds(self) -> list[Config]:
        """The model's candidates."""
        return list(dict.fromkeys(c.config for c in candidates(self.problem, self.target, self.threads)))

    @property
    def dimensions(self) -> tuple[str, ...]:
        return tuple(DIMENSIONS)

    def changes(self, config: Config, dimension: str) -> Iterable[Changes]:
        """Return the changes of ``config`` along a dimension; empty for a config whose loops are illegal."""
        at = self.point(config)
        return () if at is None else DIMENSIONS[dimension](at)

    def cycles(self, config: Config) -> float:
        """Return the cycles that the model expects; infinite for an illegal instruction or transform."""
        if config.tiles_at("winograd"):
            try:
                target = self.target.with_vectors(config.vector_registers)
                return cycles(winograd_features(self.problem, config, target), target)
            except ConfigError:
                return inf
        key = (*_of_loops(config), config.staged("pack") if config.offsets == "sums" else ())
        if key not in self._models:
            try:
                self._models[key] = model_of(self.problem, config, self.target)
            except ConfigError:
                self._models[key] = None
        known = self._models[key]
        if known is None:
            return inf
        model, loops = known
        return model.cycles(loops, with_lanes(config, model, loops)) if serves(model, config) else inf

    def fits(self, config: Config) -> bool:
        """Return whether the register tile of ``config`` fits the registers."""
        at = self.point(config)
        is_fit = at is None or registers(at.loops, config, at.target, at.unit, at.filled).fit
        if not is_fit and config not in self._reasons:
            self._reasons[config] = "registers"
            self.refused["registers"] += 1
        return is_fit

    def point(self, config: Config) -> Point | None:
        """Return the facts of ``config``; None if its loops or its instruction are illegal."""
        key = (
            *_of_loops(config), config.staged("pack"), config.realise, config.tiles_at("k_step"),
            config.tiles_at("split"), config.tiles_at("winograd"), config.tiles_at("block"),
        )  # fmt: skip
        if key not in self._points:
            self._points[key] = self._facts(config)
        known = self._points[key]
        return None if known is None else known._replace(config=config)

    def _facts(self, config: Config) -> Point | None:
        try:
            target = self.target.with_vectors(config.vector_registers)
            st = scheduled_statement(self.problem, config, target)
            unit, loops = ProductShape.of(st, target, config), loops_after_fusing(st, config)
        except ConfigError:
            return None
        if config.lane not in loops.extents:
            return None
        filled = filled_lanes(st, loops.dims[config.lane], unit)
        return Point(
            config, self.problem, target, loops, unit, self._tiles(config, loops, unit, filled, target), filled,
            st.a.name, st.b.name, not is_true(st.a.mask), st.constant, st.extents,
            tuple((d.name, d.size) for d in st.of("k")) if splits(st.whole) else (), self._pairs(config, st, loops),
        )  # fmt: skip

    def _tiles(
        self, config: Config, loops: Loops, unit: ProductShape, filled: int, target: Machine
    ) -> tuple[Sizes, ...]:  # fmt: skip
        """Return the register tiles that fit the registers; the other tiles count as refused."""
        key = (config.lane, tuple(loops.extents.items()), unit, config.tiles_at("k_step"))
        if key not in self._known_tiles:
            room = register_file(target, unit).count
            plain = config.changed(register=(), cache=())
            fitting = []
            for tile in all_tiles(loops, config.lane, unit, filled, room):
                accumulators = prod(size for _, size in tile) // filled
                is_small = unit.rows > 1 or accumulators < room  # a quick test, because most tiles fail it
                if is_small and registers(loops, plain.changed(register=tile), target, unit, filled).fit:
                    fitting.append(tile)
                else:
                    self.refused["registers"] += 1
            self._known_tiles[key] = tuple(fitting)
        return self._known_tiles[key]

    def _pairs(self, config: Config, st: Statement, loops: Loops) -> tuple[tuple[str, str], ...]:
        """Return the adjacent loops with constant strides in memory; other pairs count as refused."""
        key = (config.lane, config.fuse, config.realise)
        if key not in self._known_pairs:
            pairs = neighbours_of(loops, config.lane)
            even = tuple(pair for pair in pairs if _is_even(st, loops, pair, config.realise == "pad_copy"))
            if len(even) < len(pairs):
                self.refused["fuse"] += len(pairs) - len(even)
            self._known_pairs[key] = even
        return self._known_pairs[key]


def _of_loops(config: Config) -> tuple[object, ...]:
    """Return the words of ``config`` that decide the loops of its statement and what an instruction computes."""
    return (
        config.vector_registers, config.lane, config.fuse, config.instruction, config.offsets, config.flip,
        config.phases,
    )  # fmt: skip


def _is_even(st: Statement, loops: Loops, pair: tuple[str, str], is_copied: bool) -> bool:
    """Return whether a step of the outer loop of ``pair`` is one past the end of the inner one in source and result.

    Elements that may be absent, at borders, are at the end of every row: they make loops uneven, unless the source
    ``is_copied`` with its borders.
    """
    outer, inner = loops.dims[pair[0]][-1], loops.dims[pair[1]][0]
    sizes = st.extents
    if not {outer, inner} <= sizes.keys():
        return False  # a loop over residue classes does not step through a dim of the statement
    extent = sizes[inner]
    if not is_copied and {Var(outer), Var(inner)} & set(variables_of(st.a.mask)):
        return False
    views = (view_steps(view) for view in (st.a, st.c))
    return all(steps.get(Var(outer), 0) == extent * steps.get(Var(inner), 0) for steps in views)
