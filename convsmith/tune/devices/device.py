"""The default config for a device: tiles that occupy its threads and fit its memories, ranked by a small model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Var
from convsmith.ir.intern import one_table
from convsmith.ir.types import dtype
from convsmith.ir.walk import variables_of
from convsmith.machine.base import Machine
from convsmith.problem.fusion import Stages, stages_of
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.hardware_choice import EngineTile, engine_tiles, legal_tile
from convsmith.schedule.loops import side_by_side
from convsmith.schedule.packed_operands import packable, packed_statement
from convsmith.schedule.plan import decided
from convsmith.statement.diagonal import diagonal, grouped_channels
from convsmith.statement.offsets import summed
from convsmith.statement.statement import Statement, view_steps
from convsmith.statement.views import statement
from convsmith.statement.zero_terms import with_zero_terms
from convsmith.tune.costs.features import cycles
from convsmith.tune.devices.carried_offsets import with_carried_offsets
from convsmith.tune.devices.device_features import kernel_features
from convsmith.tune.devices.device_fragments import DeviceChoice, fragment_choices, stored_zeros
from convsmith.tune.devices.device_parts import MAX_SLOTTED, UNTIMED, engine_cycles, ranked_tiles, shared_by_groups
from convsmith.tune.devices.device_threads import MIN_LANES, thread_choices
from convsmith.tune.devices.l2_blocks import in_l2_blocks
from convsmith.tune.devices.stored_results import with_stored_result
from convsmith.tune.devices.teams import in_turn

MIN_TERMS = 4
"""Minimum number of channels of a group that stands beside others; threads multiply groups of fewer."""
MAX_SIDE_BY_SIDE = 16
"""Maximum number of groups side by side in a product, and so of times that the products of one group are multiplied."""
SEEDS = 16
"""Maximum number of configs of the model from which a search starts."""


def device_config(problem: Problem, machine: Machine, packs: bool = True) -> Config:
    """Return the config that the model expects to be fastest on a machine with groups of threads; it packs operands
    only if ``packs``. ConfigError if no config is legal.
    """
    with one_table():
        stages = stages_of(problem)
        if stages is not None:
            return _of_stages(stages, machine)
        st = statement(problem, machine)
        config = _of_hardware(problem, st, machine, packs)
        if config is not None:
            return config
        found = min(_every(problem, st, machine, packs), key=_rank, default=None)
        if found is None:
            raise ConfigError("no-config", f"no config makes a kernel of {problem} for {machine.name}")
        return _in_parts(problem, st, found, machine)


def _of_stages(stages: Stages, machine: Machine) -> Config:
    """Return the configs of ``stages``, each of which becomes a separate kernel, as one config."""
    found: Config | None = None
    for problem in reversed(stages.problems):
        every = (x for x in _every(problem, statement(problem, machine), machine) if x.config.offsets == "each")
        best = min(every, key=_rank, default=None)
        if best is None:
            raise ConfigError("no-config", f"no config makes a kernel of {problem} for {machine.name}")
        found = best.config.changed(consumer=found)
    assert found is not None
    return found


def device_candidates(problem: Problem, machine: Machine) -> dict[Config, float]:
    """Return the configs that a search begins with and their expected cycles, best first: the config of
    :func:`device_config`, then the `SEEDS` best configs of the model. The cycles are 0 without an estimate.
    """
    if stages_of(problem) is not None:
        return {device_config(problem, machine): 0.0}
    with one_table():
        st = statement(problem, machine)
        found = {} if (config := _of_hardware(problem, st, machine)) is None else {config: 0.0}
        ranked = sorted(_every(problem, st, machine, packs=True), key=_rank)[:SEEDS]
        found |= {_in_parts(problem, st, x, machine): x.cycles for x in reversed(ranked)}
    return dict(sorted(found.items(), key=lambda x: x[1]))


def expected_cycles(problem: Problem, config: Config, machine: Machine) -> float:
    """Return the cycles that the model expects of a config; 0 without an estimate, infinite if the config makes no
    kernel.
    """
    if config.realise == "hardware":
        return 0.0
    with one_table():
        found = decided(problem, config.changed(split=(), join="ordered"), machine)
        if isinstance(found, ConfigError):
            return inf
        k = found.main
        st = packed_statement(k.statement, k.config, machine)
        return cycles(kernel_features(st, k.loops, k.config, k.nest, machine, k.shared), machine)


def _of_hardware(problem: Problem, st: Statement, machine: Machine, packs: bool = True) -> Config | None:
    """Return the config under which a copy engine brings the operands, packed operands if ``packs`` and it cannot bring
    the original ones; None if there is no such config.
    """
    assert machine.device is not None
    if machine.device.engine is None:
        return None
    sums, rounds = summed(problem, st, in_call=True) if st.shifted else None, problem.accuracy == "any"
    found = [_best_by_engine(sums or st, machine, rounds)]
    if packs and st.constant and st.b.name in packable(st):
        found += [_best_by_engine(st, machine, rounds, (st.b.name,))] if isinstance(found[0], ConfigError) else []
        for loop, count in _groups_together(problem, st, machine):
            best = _best_by_engine(diagonal(st, loop, count), machine, rounds, (st.b.name,))
            if isinstance(best, DeviceChoice):
                found.append(best._replace(config=best.config.changed(diagonal=((loop, count),))))
    choices = [x for x in found if isinstance(x, DeviceChoice)]  # `explain` gives the reason where there are none
    return min(choices, key=lambda x: x.cycles).config if choices else None


def _groups_together(problem: Problem, st: Statement, machine: Machine) -> Iterator[tuple[str, int]]:
    """Yield the loop over groups of few channels, with each number of groups that stand side by side in a product of as
    many terms as a row of a copy has.
    """
    assert machine.device is not None
    found = grouped_channels(st)
    if found is None or st.strict:
        return
    group, _, terms = found
    if terms.size < MIN_TERMS:
        return
    nbytes, engine, line = terms.size * dtype(st.a.dtype).bytes, machine.device.engine, machine.l1.line
    rows = engine.widths if engine is not None else (line // 2, line, 2 * line)
    for count in range(2, min(group.size, MAX_SIDE_BY_SIDE) + 1):
        if not group.size % count and nbytes * count in rows:
            yield group.name, count


def _best_by_engine(
    st: Statement, machine: Machine, rounds: bool, pack: tuple[str, ...] = ()
) -> DeviceChoice | ConfigError | None:  # fmt: skip
    """Return the legal config of a copy engine that the model expects to be fastest, with the operands of ``pack``
    packed, or the reason why there is none; None if no instruction has factors of the types of ``st``.
    """
    plain = Config(machine.name, st.of("m")[-1].name, reduce=st.reduce, pack=pack)
    tiles = engine_tiles(packed_statement(st, plain, machine), machine, rounds)
    if isinstance(tiles, ConfigError):
        return tiles
    if not tiles:
        return None
    best = _best_of(tiles, st, machine, pack)
    if isinstance(best, EngineTile) and not best.is_timed:
        timed = _best_of([x for x in tiles if x.is_timed], st, machine, pack)
        least = engine_cycles(timed, st, machine) if isinstance(timed, EngineTile) else inf
        best = best if engine_cycles(best, st, machine) <= UNTIMED * least else timed
    return best if isinstance(best, ConfigError) else DeviceChoice(engine_cycles(best, st, machine), best.config)


def _best_of(
    tiles: Sequence[EngineTile], st: Statement, machine: Machine, pack: tuple[str, ...]
) -> EngineTile | ConfigError:  # fmt: skip
    """Return the legal one of the ``tiles`` that the model expects to be fastest, with the other decisions of the copy
    engine, or the reason why there is none.
    """
    packed = (x._replace(config=x.config.changed(pack=pack)) for x in ranked_tiles(tiles, st, machine))
    ranked = [in_l2_blocks(x, st, machine) for x in packed]
    config = legal_tile(ranked, st, machine)
    if isinstance(config, ConfigError):
        return config
    found = with_stored_result(next(x for x in ranked if x.config == config), st, machine)
    return in_turn(found, ranked[:MAX_SLOTTED], st, machine)


def _every(
    problem: Problem, st: Statement, machine: Machine, packs: bool = False
) -> Iterator[DeviceChoice]:  # fmt: skip
    """Yield all configs of the model; zero points are subtracted from each factor, or from the sums. If ``packs``,
    fragments read packed weights if taps are contiguous in memory.
    """
    sums = summed(problem, st, in_call=True) if st.shifted else None
    columns, rounds = _columns(st), problem.accuracy == "any"
    yield from thread_choices(st, machine, packs and sums is None and st.constant and st.b.name in packable(st))
    if packs and sums is None and st.constant and st.b.name in packable(st):
        for loop, count in _groups_together(problem, st, machine):
            for x in _with_packed(diagonal(st, loop, count), machine, rounds):
                yield x._replace(config=x.config.changed(diagonal=((loop, count),)))
        for zeros in stored_zeros(st, machine, columns, rounds) if not st.strict else ():
            for x in _with_packed(with_zero_terms(st, zeros), machine, rounds):
                yield x._replace(config=x.config.changed(zeros=zeros))
    packs = packs and sums is None and _has_neighbouring_taps(st)
    if sums is not None:
        yield from thread_choices(sums, machine)
    if not packs:
        yield from fragment_choices(sums or st, machine, columns, rounds)
        return
    yield from _with_packed(st, machine, rounds)


def _with_packed(st: Statement, machine: Machine, rounds: bool) -> Iterator[DeviceChoice]:
    """Yield the configs of the model for fragments that read packed weights."""
    plain = Config(machine.name, st.of("m")[-1].name, reduce=st.reduce, pack=(st.b.name,))
    for x in fragment_choices(packed_statement(st, plain, machine), machine, _columns(st), rounds):
        yield x._replace(config=x.config.changed(pack=plain.staged("pack")))


def _has_neighbouring_taps(st: Statement) -> bool:
    """Return whether taps of constant weights are contiguous in memory; fragments read one tap at a time."""
    if len(st.factors) < 2 or not st.constant:
        return False
    nearest = st.b.layout.contiguous
    taps = {Var(d.name) for d in st.of("k") if d.sort == "taps"}
    return nearest is not None and bool(taps & set(variables_of(st.b.coords[nearest.dim])))


def _rank(choice: DeviceChoice) -> tuple[float, str]:
    return choice.cycles, str(choice.config)


def _in_parts(problem: Problem, st: Statement, choice: DeviceChoice, machine: Machine) -> Config:
    """Return the config of ``choice``, with parts of the reduction and carried offsets where the model expects a gain.
    """
    sums = summed(problem, st, in_call=True) if choice.config.offsets == "sums" else None
    own = packed_statement(sums or side_by_side(st, choice.config), choice.config, machine)
    return with_carried_offsets(own, shared_by_groups(own, choice, machine), machine)


def _columns(st: Statement) -> str:
    """Return the loop along which a warp has columns: the contiguous loop of the result, or the largest of its
    channels.
    """
    steps = view_steps(st.c)
    free = [d for d in st.dims if d.kind in ("n", "m")]
    adjacent = [d for d in free if steps.get(Var(d.name)) == 1 and d.size >= MIN_LANES]
    return max(adjacent or st.of("n") or free, key=lambda d: d.size).name
