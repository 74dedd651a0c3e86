"""The default config: candidates that the target's registers allow, ranked by the model of their cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
from typing import NamedTuple

from convsmith.diag.errors import ConfigError
from convsmith.diag.record import record
from convsmith.ir.intern import one_table
from convsmith.machine.base import Machine
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.config_rows import DEFAULTS
from convsmith.schedule.loops import Loops, fused_chain, loops_after_fusing
from convsmith.schedule.packed_operands import multiplies_words
from convsmith.schedule.product_shape import ProductShape, single_row, unfit
from convsmith.schedule.registers import registers
from convsmith.statement.offsets import flips, of_fewer_bits, summed
from convsmith.statement.statement import Statement
from convsmith.statement.views import statement
from convsmith.tune.arrangements import arranged
from convsmith.tune.copied_blocks import in_copied_blocks
from convsmith.tune.costs.code_size import emitted, operations
from convsmith.tune.costs.copied_parts import split_copies_by_thread
from convsmith.tune.costs.far_lines import is_in_memory
from convsmith.tune.costs.fetches import fetching
from convsmith.tune.costs.model import Model
from convsmith.tune.costs.thread_parts import split_pixels_by_thread
from convsmith.tune.costs.vector_groups import left_empty
from convsmith.tune.gradient_blocks import of_vectors
from convsmith.tune.interleaved import in_pairs, interleaved
from convsmith.tune.nests import Nests
from convsmith.tune.orders import MIN_TRAFFIC_GAIN
from convsmith.tune.packed_gradients import gradient_nests
from convsmith.tune.packed_sources import packed_source_nests
from convsmith.tune.rows_first import with_rows_first
from convsmith.tune.tap_products import tap_configs
from convsmith.tune.unfolded_sources import with_unfolded_source
from convsmith.tune.variants import (
    holding,
    in_blocks,
    nearby,
    nearby_in_blocks,
    streamed,
    with_converted,
    with_copied_rows,
    with_groups_together,
    with_near_channels,
    with_packed_source,
    with_paired_taps,
    with_shared_taps,
    without_padding,
)
from convsmith.tune.window_copies import window_nests
from convsmith.tune.winograd import winograd_configs
from convsmith.tune.within import MemoryBound, smaller

TIE_RATIO = 1.01
"""Ratio of expected cycles below which LLVM's work decides between two configs: the model is no more exact."""
LANE_TIE_RATIO = 1.05
"""Ratio of expected cycles below which the time of memories decides between two lanes of a gradient of the weights."""
MAX_ARRANGED = 3
"""Maximum number of candidates whose traffic between memories is minimised."""
TRANSFORM_GAIN = 1.02
"""Ratio of expected times above which a transform is preferred to a kernel that rounds less."""
HOPELESS_RATIO = 1.25
"""Ratio of the cycles of multiply-adds alone to the best expected cycles above which a kind of nests is not tried."""
COMPILED = 128
"""Multiply-adds and stores that LLVM compiles in the time of a kernel's constant overhead."""
VARIANTS = (
    holding, nearby, nearby_in_blocks, with_converted, with_copied_rows, with_groups_together, with_packed_source,
    with_paired_taps, with_shared_taps, with_unfolded_source,
)  # fmt: skip
"""Functions that return a variant of a config, or None."""


@record(frozen=True)
class Choice:
    """A config with the expected cycles and the number of emitted multiply-adds.

    The cycles are a lower bound, which omits waiting for cache lines, where another choice is better than this bound.
    """

    cycles: float
    emitted: int
    config: Config


class _ModelledChoice(NamedTuple):
    """A choice, with the model and the loops of its config if a model of register tiles made it."""

    choice: Choice
    made_by: tuple[Model, Loops] | None


def candidates(p: Problem, target: Machine, threads: int, count: int = MAX_ARRANGED) -> list[Choice]:
    """Return the configs that make a kernel, best expected first; the first ``count`` have all their decisions. Those
    for vectors that are groups of other numbers of registers name the number.
    """
    if not target.groupings:
        return _of_vectors(p, target, threads, count)
    found: list[Choice] = []
    for machine in (target, *target.groupings):
        try:
            every = _of_vectors(p, machine, threads, count)
        except ConfigError:
            if not found and machine is target.groupings[-1]:
                raise
            continue
        own = 0 if machine is target else machine.vectors.group
        for x in every[:count]:
            cycles = x.cycles * left_empty(p, x.config, machine, target)
            found.append(Choice(cycles, x.emitted, x.config.of_each(vector_registers=own)))
    return sorted(found, key=lambda choice: choice.cycles)


def _of_vectors(p: Problem, target: Machine, threads: int, count: int) -> list[Choice]:
    """Return the candidates for the vectors of ``target``.

    If only one is asked for, of any size, kinds of nests whose multiply-adds alone take longer than the best config are
    left out.
    """
    with one_table():
        each = statement(p, target)
        only = () if of_fewer_bits(each) else (each,)
        ways = (*only, *(way for flip in flips(p, each) if (way := summed(p, each, flip)) is not None))
        units = [ProductShape.choices(st, target) for st in ways]
        st, choices = max(zip(ways, units), key=lambda way: _products_at_once(way[0], way[1][0], target))
        long = operations(p, st) > target.costs.long_epilogue
        if is_in_memory(target, st.a.bytes + st.c.bytes):  # which is slower than products of one term
            choices = [unit for unit in choices if unit.merged == 1]
        kinds = [*(Nests(Model(p, st, target, unit)) for unit in choices)]
        whole = [way for way in ways if not way.shifted] or [each]
        made = (window_nests(p, way, target) for way in (whole if target.scalars is not None else whole[:1]))
        kinds += next((nests for nests in made if nests), [])
        kinds += [*gradient_nests(p, ways[0], target), *packed_source_nests(p, st, target)]
        if _may_be_plain(kinds[0].model):
            kinds.append(Nests(Model(p, st, target, ProductShape.plain(st, target))))
        if along := kinds[0].candidate_phases():
            kinds.append(Nests(Model(p, st, target, ProductShape.plain(st, target), along)))
        found: list[_ModelledChoice] = []
        needs_all = count > 1 or p.workspace is not None  # the best config may need too much memory
        rates_again = any(nests.model.unit.rows > 1 for nests in kinds)
        ratio = inf if needs_all or rates_again else LANE_TIE_RATIO
        for nests in kinds:
            least = min((c.choice.cycles for c in found), default=inf)
            if needs_all or nests.model.multiplying() <= HOPELESS_RATIO * least:
                found += _of_nests(nests, threads, long, least, ratio)
        others = (*winograd_configs(p, each, target, threads), *tap_configs(p, whole[0], target, threads))
        found += [_ModelledChoice(Choice(*config), None) for config in others]
        if not found:
            raise ConfigError("no-config", f"no config makes a kernel of {p} for {target.name}")
        bound = MemoryBound(p, target)
        if p.workspace is not None:
            found = _within(bound, found, max(count, MAX_ARRANGED))
        ranked = _ranked(found, count, bound, target)
        for n, choice in enumerate(ranked[:count]):
            config = split_copies_by_thread(p, choice.config, target, choice.cycles)
            config = split_pixels_by_thread(p, config, target, choice.cycles)
            config = fetching(each, in_copied_blocks(p, each, config, target), target)
            config = with_rows_first(each, config, target)
            if config == choice.config or bound.permits(config):
                ranked[n] = replace(choice, config=config)
        return ranked


def _may_be_plain(model: Model) -> bool:
    """Return whether multiply-adds of one term may be faster than dot products: where residue classes of a copy have
    few channels or taps, or where the result has so few channels that vectors of a dot product have no more products
    for them than vectors along the terms of one sum.
    """
    unit, is_float = model.unit, model.st.acc != "s32"
    is_few = model.sizes[model.n] * unit.terms <= model.lanes and unit.rows == 1 and not model.batch
    return model.copies_classes or (is_few and is_float and unit.dot and model.st.constant)


def _products_at_once(st: Statement, unit: ProductShape, target: Machine) -> float:
    """Return the products that an instruction adds to a sum; pairs of words of which one is zero come before wider
    numbers.
    """
    return unit.terms if unit.dot else multiplies_words(st, target) / 2


def _within(bound: MemoryBound, found: list[_ModelledChoice], count: int) -> list[_ModelledChoice]:
    """Return the first ``count`` choices within the bound, best expected first, or a variant of one that needs less.
    ConfigError if there is none.
    """
    found = sorted(found, key=lambda c: (c.choice.cycles, c.choice.emitted))
    legal = bound.first(found, lambda c: c.choice.config, count)
    if not legal:
        others = smaller(c.choice.config for c in found)
        legal = [_ModelledChoice(Choice(inf, 0, c), None) for c in bound.first(others, lambda config: config, 1)]
    if not legal:
        raise bound.refusal()
    return legal


def _ranked(found: list[_ModelledChoice], count: int, bound: MemoryBound, target: Machine) -> list[Choice]:
    """Return the choices, best first; the traffic between memories is minimised for the first ``count``.

    Among similar choices for a gradient of the weights on one thread, the one whose operands memories deliver fastest
    comes first; of dot products on vectors also one that packs blocks of its factors. Choices on fragments are rated
    again after arranging, because another order keeps other operands in near caches.
    """
    found.sort(key=lambda c: (c.choice.cycles, c.choice.emitted))
    close = [c for c in found if c.choice.cycles <= found[0].choice.cycles * LANE_TIE_RATIO]
    alike = [c for c in close if _is_alone(c)]
    ranked = _least(found, lambda c: _preference(c.choice, target))
    if alike:
        lane = _least(alike, _cycles_near)[0].choice.config.lane
        of_lane = _least([c for c in alike if c.choice.config.lane == lane], _delivered)
        others = _least([c for c in alike if c.choice.config.lane != lane], _delivered)
        apart = [c for c in close if not _is_alone(c)]
        ranked = [*of_lane, *others, *apart, *found[len(close) :]]
    choices = [c.choice for c in ranked]
    rated: dict[int, float] = {}
    lanes: set[str] = set()
    for n, (choice, made_by) in enumerate(ranked):
        if made_by is None:
            continue
        model, loops = made_by
        is_rated = n < len(alike) or model.unit.rows > 1
        if n < (MAX_ARRANGED if is_rated else count) or (n < len(alike) and choice.config.lane not in lanes):
            made = _arranged(model, loops, choice, bound)
            choices[n] = made.choice
            if n < len(alike):
                rated[n] = _delivered(made)
            elif model.unit.rows > 1:
                rated[n] = model.cycles(loops, choices[n].config)
        lanes.add(choice.config.lane)
    best = min(rated, key=lambda n: rated[n], default=0)
    if 0 in rated and rated[best] * MIN_TRAFFIC_GAIN < rated[0]:
        choices.insert(0, choices.pop(best))
    blocks = ranked[len(alike)].choice if len(alike) < len(close) else None
    if alike and blocks is not None and _multiplies_pairs(ranked[0]) and blocks.cycles < rated[best]:
        choices.remove(blocks)
        choices.insert(0, blocks)
    return choices


def _multiplies_pairs(of: _ModelledChoice) -> bool:
    """Return whether a choice adds up products on vectors by dot products. Memories deliver the blocks of its factors
    within the expected cycles.
    """
    assert of.made_by is not None
    unit = of.made_by[0].unit
    return unit.dot and unit.rows == 1


def _preference(choice: Choice, target: Machine) -> float:
    """Return the expected cycles of ``choice``, a little more for a transform, whose results are less exact. Those of a
    transform of bytes are exact, and its products of words take one instruction.
    """
    if not choice.config.tiles_at("winograd"):
        return choice.cycles
    return choice.cycles * (target.costs.word_transform if choice.config.instruction else TRANSFORM_GAIN)


def _arranged(model: Model, loops: Loops, choice: Choice, bound: MemoryBound) -> _ModelledChoice:
    """Return ``choice`` with its config as `arranged` returns it, unless that needs more memory than permitted; the
    cycles include packing operands that this config packs in addition.
    """
    config = arranged(model, loops, choice.config)
    if config != choice.config and not bound.permits(config):
        config = choice.config
    cycles = choice.cycles if config.staged("pack") == choice.config.staged("pack") else model.cycles(loops, config)
    return _ModelledChoice(replace(choice, cycles=cycles, config=config), (model, loops))


def _is_alone(of: _ModelledChoice) -> bool:
    """Return whether a choice is for a gradient of the weights on one thread."""
    return of.made_by is not None and not of.made_by[0].st.constant and of.choice.config.threads == 1


def _delivered(of: _ModelledChoice) -> float:
    """Return the cycles of a choice, including the cycles in which memories deliver the operands of its statement."""
    assert of.made_by is not None
    model, loops = of.made_by
    return model.delivered(loops, of.choice.config, of.choice.cycles)


def _cycles_near(of: _ModelledChoice) -> float:
    """Return the cycles of a choice whose operands are in near caches."""
    assert of.made_by is not None
    model, loops = of.made_by
    return model.cycles(loops, of.choice.config, near=True)


def _least(found: list[_ModelledChoice], cycles: Callable[[_ModelledChoice], float]) -> list[_ModelledChoice]:
    """Return the choices by their cycles; among the first ones, whose cycles are nearly equal, those with less code
    first.
    """
    expected = sorted(((cycles(c), c) for c in found), key=lambda each: each[0])
    close = [c for n, c in expected if n <= expected[0][0] * TIE_RATIO]
    close.sort(key=lambda c: c.choice.emitted // COMPILED)
    return [*close, *(c for _, c in expected[len(close) :])]


def _of_nests(nests: Nests, threads: int, long: bool, best: float, ratio: float) -> Iterator[_ModelledChoice]:
    """Yield the candidates of a kind of ``nests``; a ``long`` epilogue has a loop of its own.

    Candidates are left out that take more than ``ratio`` times the cycles of one before them, or the cycles ``best``.
    """
    model = nests.model
    target, flip, along = model.target, model.flip(), tuple(p.pixel for p in model.phases)
    instruction = model.unit.name
    offsets = "sums" if model.st.sums or of_fewer_bits(model.st) else "each"
    for lane, fuse, joined in nests.lane_choices():
        if threads > 1 and fuse and fuse == nests.joined_rows():
            continue  # threads copy rows of their own
        loops = loops_after_fusing(model.st, Config(target.name, lane, fuse=fuse))
        order, pack, filled = nests.order(loops, lane, threads), nests.packed(lane), model.filled(lane)
        join = fused_chain(joined)[0] if joined else ""
        terms = ((join, model.unit.terms),) if join else nests.shared_terms(lane)
        drain = long and loops.kinds[lane] != "k"
        pieces = max(DEFAULTS["pieces"], nests.cut_apart() if lane == model.k else 0)
        same = Config(
            target.name, lane, fuse=fuse, order=order, instruction=instruction, k_step=terms, phases=along, pack=pack,
            unfold=nests.unfolded, offsets=offsets, flip=flip, spill_sums=drain, pieces=pieces, threads=threads,
        )  # fmt: skip
        configs: list[Config] = []
        for tile in nests.tiles(loops, lane):
            *outer, last = [n for n in model.st.reduce if n not in joined] + [join] * bool(join)
            tiled = [n for n in outer if n in tile] or nests.taps_of_lines(lane, outer)
            reduce = (*(n for n in outer if n not in tiled), last, *tiled)
            realise = nests.realisation(lane, bool(join), loops, tile)
            if realise == "pad_copy" and model.st.shifted:
                continue
            parts = max(pieces, nests.bordered_pieces(tile)) if realise == "peel" else pieces
            config = same.changed(register=tuple(tile.items()), reduce=reduce, realise=realise, pieces=parts)
            if nests.reads_pairs(lane) and not registers(loops, config, target, model.unit, filled).fit:
                config = config.changed(k_step=())
            others = (make(model, loops, config) for make in VARIANTS)
            parts = [] if model.st.constant else [*in_blocks(model, loops, config), *of_vectors(model, loops, config)]
            configs += [config, *(c for c in others if c is not None), *parts]
            configs += [] if model.st.constant else [
                *interleaved(model, loops, config, parts), *in_pairs(model, loops, config, parts)
            ]  # fmt: skip
        of = {c.fuse: loops if c.fuse == fuse else loops_after_fusing(model.st, c) for c in configs}
        configs = [without_padding(model, of[c.fuse], c) for c in configs]
        legal = [c for c in configs if registers(of[c.fuse], c, target, model.unit, filled).fit and serves(model, c)]
        if lane == model.batch:  # the best bounds first, so that few others wait for lines
            legal.sort(key=lambda c: model.cycles_of_windows(loops, c))
        # A lower bound must not be among the close choices, of which delivery decides.
        least, tie = inf, TIE_RATIO if model.st.constant else LANE_TIE_RATIO
        for config in legal:
            fused = of[config.fuse]
            blocks = with_near_channels(model, loops, config) if model.least(fused, config) <= least else ()
            for c in (config, *blocks):
                c = c if c.staged_at("pack_at") else nests.complete(fused, c)
                if (stream := streamed(model, fused, c)) != c.staged("stream"):
                    c = c.changed(stream=stream)
                cycles = model.cycles(fused, c, most=least if lane == model.batch else best * ratio)
                least = min(least, cycles * tie)
                if cycles > best * ratio:
                    continue
                best = min(best, cycles)
                # A copy of an operand is made at a loop, whose place another order would change.
                made_by = None if c.staged_at("pack_at") and (model.st.constant or model.unit.dot) else (model, fused)
                yield _ModelledChoice(Choice(cycles, emitted(model, fused, c), c), made_by)


def serves(model: Model, config: Config) -> bool:
    """Return whether ``config`` can use the model's instruction; fragments need lanes along channels, for example."""
    if not config.instruction:
        return True
    row = model.target.rows[config.instruction]
    return not unfit(model.whole, single_row(row, config, model.target) or row, config)


def default_config(problem: Problem, target: Machine, threads: int = 1) -> Config:
    """Return the config that the model expects to be fastest."""
    return candidates(problem, target, threads, 1)[0].config
