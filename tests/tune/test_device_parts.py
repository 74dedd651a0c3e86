"""Parts of a reduction that groups share: they pay where their sums and the second kernel take less than idle units."""

from __future__ import annotations

from math import prod

import pytest

from convsmith.frontend.explain_device import parts_lines
from convsmith.ir.intern import one_table
from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.schedule.plan import Plan
from convsmith.schedule.planned import plan_for
from convsmith.statement.views import statement
from convsmith.tune.costs.features import time
from convsmith.tune.devices.device import device_config
from convsmith.tune.devices.device_features import parts_features

LAST = "--stag=axb --wtag=axb --dtag=axb --dt=bf16"
LAYER = f"{LAST} mb1ic256ih14oc256oh14kh3ph1"
LEVELS = ("sm_80", "sm_90a", "xe_hpc")


def planned(line: str, machine: Machine) -> Plan:
    """Return the plan of the default config."""
    return plan_for(parse_problem(line), device_config(parse_problem(line), machine), machine)


@pytest.mark.parametrize(("level", "shared"), [("sm_80", ("kh", "kw")), ("sm_90a", ("ic",))])
def test_groups_share_the_reduction_of_one_image(level: str, shared: tuple[str, ...]) -> None:
    """The default config of a layer of few tiles gives nearly all units one."""
    machine = target(level)
    assert machine.device is not None
    with one_table():
        plan = planned(LAYER, machine)
    parts = dict(plan.decided.tiles_at("split"))
    tiles, units = plan.main.nest.groups, machine.device.units.count
    assert tuple(parts) == shared and tiles // prod(parts.values()) < units <= 1.1 * tiles


@pytest.mark.parametrize("level", LEVELS)
def test_no_part_pays_for_a_dear_kernel(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the second kernel takes as long as a million multiply-adds of each unit, there are no parts."""
    machine = target(level)
    for unit in ("thread", "engine"):
        monkeypatch.setitem(machine.prices, f"{unit}_launch", 1000 * machine.prices[f"{unit}_launch"])
    with one_table():
        assert not device_config(parse_problem(LAYER), machine).tiles_at("split")


@pytest.mark.parametrize("level", ("opencl", "sm_80"))
def test_parts_hold_whole_steps_and_vectors(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a kernel is free, a reduction has as many parts as it has steps that are shared evenly."""
    machine = target(level)
    for name in ("thread_launch", "thread_cached_byte", "thread_stored_byte"):
        monkeypatch.setitem(machine.prices, name, 0.0)
    for shape in ("mb1ic31iw17oc32ow20kw1pw1", "mb4ic8iw16oc16ow16kw3pw1", "mb6ic16iw40oc16ow40kw3pw1"):
        problem = parse_problem(f"--dir=BWD_W --stag=axb --dtag=axb {shape}")
        config = device_config(problem, machine)
        sizes = {d.name: d.size for d in statement(problem, machine).of("k")}
        for loop, parts in config.tiles_at("split"):
            assert not sizes[loop] // parts % config.group_size(loop)
            assert not sizes[loop] // parts % dict(config.tiles_at("vectors")).get(loop, 1)


def test_many_tiles_and_short_reductions_have_no_parts() -> None:
    for line in (f"{LAST} mb32ic256ih56oc256oh56kh3ph1", f"{LAST} mb1ic16ih7oc16oh7kh3ph1"):
        for level in LEVELS:
            assert not device_config(parse_problem(line), target(level)).tiles_at("split"), (level, line)


def test_parts_are_stored_and_loaded_and_take_a_launch() -> None:
    """Parts that fit the last cache take less; one part is the result."""
    machine = target("sm_90a")
    assert machine.device is not None
    st = statement(parse_problem(LAYER), machine)
    assert parts_features("engine", 1, st, machine) == ()
    few, many = (time(parts_features("engine", n, st, machine), machine) for n in (4, 1000))
    nbytes = 2 * 256 * 14 * 14 * dtype(st.acc).bytes
    assert few["launch of sums"] == many["launch of sums"] == machine.device.costs.launch
    moved = machine.device.units.memory_bytes
    assert few["parts of sums"] == pytest.approx(4 * nbytes / moved / machine.device.costs.cached)
    assert many["parts of sums"] == pytest.approx(1000 * nbytes / moved)


def test_explain_says_what_is_split_and_what_it_gains() -> None:
    with one_table():
        (head, text), (_, gain) = parts_lines(planned(LAYER, target("sm_90a")))
        none = list(parts_lines(planned(f"{LAST} mb32ic256ih56oc256oh56kh3ph1", target("sm_90a"))))
        line = "--dir=BWD_W --dt=bf16:f32:bf16 --stag=axb --dtag=axb mb4ic64ih8oc64kh1"
        config = device_config(parse_problem(line), target("sm_80")).changed(split=(("mb", 2),), join="atomic")
        (_, added), *others = parts_lines(plan_for(parse_problem(line), config, target("sm_80")))
    assert head == "parts" and text == (
        "ic in 4 parts, each of which stores its sums, which a kernel adds up: 128 tiles instead of 32 for 132 units"
    )
    before, after = (float(gain.split(word)[0].split()[-1].replace(",", "")) for word in (" without parts", " cycles"))
    assert after < before and "2,000 of them to start that kernel" in gain
    assert none == others == [] and "mb in 2 parts, each of which adds its sums to the result" in added
