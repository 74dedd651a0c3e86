"""One description of the tiles of devices: the first choice enumerates it, and the search steps through it."""

from __future__ import annotations

from math import prod

import pytest

from convsmith.ir.intern import interning
from convsmith.machine.registry import device_targets, target
from convsmith.problem import parse_problem
from convsmith.schedule import hardware_choice
from convsmith.schedule.config import Config
from convsmith.schedule.device_tiles import BY_ENGINE, BY_THREADS, BY_WARPS, TileSpace, space_of_tiles
from convsmith.statement.views import statement
from convsmith.tune.devices import device_fragments, device_threads
from convsmith.tune.devices.device import device_candidates
from convsmith.tune.search.device_space import space_of

LAYER = "--stag=axb --wtag=axb --dtag=axb --dt=bf16 mb4ic64ih14oc64oh14kh3ph1"
PLAIN = "--stag=axb --dtag=axb mb1ic16ih9oc24oh9kh3ph1"
LEVELS = [machine.name for machine in device_targets()]


def numbers(config: Config, line: str) -> tuple[set[int], set[int]]:
    """Return the numbers of units of a thread, a warp or a group of warps, and those across, of all loops."""
    machine = target(config.target)
    row = next((x for x in machine.instructions if x.name == config.instruction), None)
    st = statement(parse_problem(line).canonical(), machine)
    kinds = {d.name: d.kind for d in st.dims}
    own, across = dict(config.tiles_at("register")), dict(config.tiles_at("group"))
    if row is None:
        loops = [n for n in across if kinds[n] != "k"]
        return {own.get(n, 1) for n in loops}, {across[n] // own.get(n, 1) for n in loops}
    columns = own[config.lane]
    rows = prod(size for n, size in own.items() if n != config.lane)
    if config.realise == "hardware":
        (group,) = (size for n, size in across.items() if n in own and n != config.lane)
        return {columns // row.result.shape[1]}, {group // rows}
    high = prod(size for n, size in across.items() if kinds[n] != "k" and n != config.lane)
    shape = row.result.shape
    return {rows // shape[0], columns // shape[1]}, {high // rows, across[config.lane] // columns}


@pytest.mark.sampled(8, "line")
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("line", [LAYER, PLAIN])
def test_candidates_have_the_tiles_of_the_description(line: str, level: str) -> None:
    with interning():
        for config in device_candidates(parse_problem(line).canonical(), target(level)):
            own, across = numbers(config, line)
            space = space_of_tiles(config)
            assert own <= set(space.own) and across <= set(space.across), config
            assert config.realise == "hardware" or not config.staged("shared") or (config.copies, config.buffers) in (
                space.copies
            )  # fmt: skip


@pytest.mark.parametrize("space", [BY_THREADS, BY_WARPS, BY_ENGINE])
def test_a_search_reaches_each_number_of_the_description(space: TileSpace) -> None:
    found, reached = {1}, {1}
    while reached:
        reached = {n for count in reached for n in space.near(count) if n <= max(*space.own, *space.across)} - found
        found |= reached
    assert {*space.own, *space.across} <= found and 0 not in found


def test_the_first_choice_reads_the_description(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without tiles of several units in it, no candidate has any, and steps still lead to them."""
    one = {"own": (1,), "across": (1, 2)}
    monkeypatch.setattr(device_threads, "BY_THREADS", BY_THREADS._replace(own=(1,)))
    monkeypatch.setattr(device_fragments, "BY_WARPS", BY_WARPS._replace(own=(1, 1), across=(1, 2)))
    monkeypatch.setattr(hardware_choice, "BY_ENGINE", BY_ENGINE._replace(**one))
    with interning():
        of = space_of(parse_problem(LAYER).canonical(), target("sm_90a"), 1)
        found = [numbers(config, LAYER) for config in of.seeds]
        assert all(own == {1} for own, _ in found)
        wider = {own for c in of.seeds for near in of.neighbours(c, "group") for own in numbers(near, LAYER)[0]}
        assert max(wider) > 1


@pytest.mark.sampled(11)
@pytest.mark.parametrize("level", LEVELS)
def test_the_dimension_of_copies_has_those_of_the_description(level: str) -> None:
    with interning():
        of = space_of(parse_problem(LAYER).canonical(), target(level), 1)
        for config in of.seeds:
            near = {(c.copies, c.buffers) for c in of.neighbours(config, "copies") if c.barriers == config.barriers}
            ways = set(space_of_tiles(config).copies)
            assert near <= ways and (not config.staged("shared") or ways - {(config.copies, config.buffers)} <= near)


def test_steps_of_a_group_are_whole_instructions() -> None:
    """A tile of a group that a copy engine fills has twice, half or one more of the rows or columns."""
    problem, machine = parse_problem(LAYER).canonical(), target("sm_90a")
    rows = {row.name: row.result.shape for row in machine.instructions if row.result.scope == "fragment"}
    with interning():
        of = space_of(problem, machine, 1)
        (first,) = (c for c in of.seeds if c.realise == "hardware")
        config = max(of.neighbours(first, "group"), key=lambda c: c.group_size(c.lane))
        near = list(of.neighbours(config, "group"))
        height, width = rows[config.instruction]
        sizes = {tuple(c.group_size(n) for n in (c.fuse[-1][0] + "_" + c.fuse[-1][1], c.lane)) for c in near}
        assert len(sizes) == len(near) > 3 and not any(a % height or b % width for a, b in sizes), sizes


@pytest.mark.sampled(4)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("line", ["mb32ic64ih56oc64oh56kh3ph1", "mb32ic256ih14oc1024oh14kh1"])
def test_the_threads_of_a_group_have_the_registers_that_they_are_expected_to_need(line: str, level: str) -> None:
    """Assemblers spill sums where a unit has fewer."""
    machine = target(level)
    assert machine.device is not None
    with interning():
        st = statement(parse_problem(f"--stag=axb --wtag=axb --dtag=axb {line}"), machine)
        found = [x.config for x in device_threads.thread_choices(st, machine)]
    assert found
    for config in found:
        sums = prod(n for _, n in config.tiles_at("register"))
        (threads,) = {prod(config.group_size(d.name) // config.size(d.name) for d in st.dims if d.kind != "k")}
        assert threads * machine.device.costs.registers_of(sums) <= machine.device.units.registers
