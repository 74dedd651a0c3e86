"""Teams of warps of sm_90a that compute the tiles of a group in turn: exact as PTX, without spills; every planted fault
is found; the configs that are refused, and those that the model takes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from convsmith.codegen import pipelines
from convsmith.codegen.artifact import Artifact
from convsmith.codegen.pipelines import PipelineEmitter
from convsmith.compiler.cubin import assemble_ptx
from convsmith.diag.errors import ConfigError
from convsmith.ir.stmt import Turn
from convsmith.machine.registry import target
from convsmith.passes import take_turns
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.tune.devices.device import device_config
from ptx.hopper_configs import KINDS as HOPPER
from ptx.hopper_configs import LAST, LEVEL, compiled, forward, stored
from ptx.sass import skip_without
from ptx.test_hopper_convolutions import check, check_raises

TEAMS = " --teams=2"
KINDS = {
    "tiles": (f"{LAST} --dt=bf16 mb3ic64ih8oc40oh8kh1", forward() + TEAMS),
    "steps beyond the slots": (f"{LAST} --dt=bf16 mb3ic64ih8oc16oh8kh3ph1", forward(slots=2) + TEAMS),
    "one slot": (f"{LAST} --dt=bf16 mb3ic64ih8oc16oh8kh1", forward(slots=1) + TEAMS),
    "slots of a number that is no power of two":
        (f"--dir=FWD_B {LAST} --dt=bf16 --attr-post-ops=relu mb3ic64ih8oc16oh8kh3ph1", forward(slots=5) + TEAMS),
    "two groups of warps": (f"{LAST} --dt=f16 mb7ic64ih8oc16oh8kh1",
                            forward(m=128, row="wgmma_m64n16k16_f16") + TEAMS),
    "three teams": (f"{LAST} --dt=bf16 mb7ic64ih8oc16oh8kh1", forward() + " --teams=3"),
    "bytes and a residual": (f"{LAST} --dt=s8:s8:s32 --attr-post-ops=sum mb3ic128ih8oc24oh8kh1",
                             forward(k=128, row="wgmma_m64n16k32_s8") + TEAMS),
    "registers that teams take": (f"{LAST} --dt=bf16 mb4ic16ih8oc256oh8kh1",
                                  forward(n=256, k=16, slots=2, row="wgmma_m64n128k16_bf16") + " --teams=3"),
    **{kind: (HOPPER[kind][0], HOPPER[kind][1] + TEAMS) for kind in (
        "backward by data and a stride", "backward by data, a stride and rounds without steps")},
    "tiles in blocks": (f"{LAST} --dt=bf16 mb4ic64ih8oc40oh8kh1", forward() + " --l2=mb_oh_ow:128" + TEAMS),
    "stored tiles": (f"{LAST} --dt=bf16 mb3ic64ih8oc40oh8kh3ph1", stored(forward(slots=2)) + TEAMS),
    "stored tiles of two groups of warps": (f"{LAST} --dt=f16 mb7ic64ih8oc16oh8kh1",
                                            stored(forward(m=128, row="wgmma_m64n16k16_f16")) + TEAMS),
    "tiles of three teams, stored in parts": (f"{LAST} --dt=bf16 mb7ic64ih8oc64oh8kh1", stored(forward(
        n=64, slots=2, row="wgmma_m64n64k16_bf16")) + " --store_parts=2 --teams=3"),
}  # fmt: skip
FAULTY = "steps beyond the slots"
"""The kernel in which faults are planted: three tiles of 9 steps in 2 slots, which one group computes."""
STORED = "stored tiles of two groups of warps"
"""The kernel in which faults of stores are planted."""


def made(kind: str, count: int = 1) -> Artifact:
    """Return the kernel of a kind for a device with so many units, on each of which one group resides."""
    machine = target(LEVEL)
    assert machine.device is not None
    units = replace(machine.device.units, count=count, shared=1)
    return compiled(*KINDS[kind], replace(machine, device=replace(machine.device, units=units)))


@pytest.mark.sampled(8, wide=2, every="kind")
@pytest.mark.parametrize("count", (1, 2))
@pytest.mark.parametrize("kind", KINDS)
def test_teams_compute_tiles_in_turn(kind: str, count: int) -> None:
    artifact, words = made(kind, count), KINDS[kind][1]
    warps = int(re.findall(r"--group=\w+:(\d+)", words)[0]) // 64 * int(words.split("--teams=")[1])
    launch = artifact.entries["main"].launch
    assert (launch.grid, launch.group) == ((count, 1, 1), (128, warps + 1, 1))
    for seed in range(2):
        check(artifact, KINDS[kind][0], seed)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "registers" not in kind])
def test_teams_assemble_without_spills_and_warnings(kind: str) -> None:
    skip_without(LEVEL)
    assembled = assemble_ptx(made(kind).notes["ptx"], LEVEL)
    assert not assembled.warnings
    assert all((use.spilled, use.filled, use.stack) == (0, 0, 0) for use in assembled.uses.values())


# -- planted faults
def _with_turn(emit: Callable[[Any, Turn], None], monkeypatch: pytest.MonkeyPatch) -> Artifact:
    monkeypatch.setitem(pipelines._SIGNALS, Turn, emit)
    return made(FAULTY)


def turn_is_not_awaited(monkeypatch: pytest.MonkeyPatch) -> Artifact:
    """A team begins its steps whatever the team before it has received."""
    emit = pipelines._SIGNALS[Turn]
    return _with_turn(lambda self, s: emit(self, s) if s.part == "pass" else None, monkeypatch)


def turn_is_not_passed(monkeypatch: pytest.MonkeyPatch) -> Artifact:
    emit = pipelines._SIGNALS[Turn]
    return _with_turn(lambda self, s: emit(self, s) if s.part == "take" else None, monkeypatch)


def turn_is_passed_at_once(monkeypatch: pytest.MonkeyPatch) -> Artifact:
    """A team passes its turn before its first step."""
    emit = pipelines._SIGNALS[Turn]

    def both(self: Any, s: Turn) -> None:
        if s.part == "take":
            emit(self, s)
            emit(self, Turn("pass"))

    return _with_turn(both, monkeypatch)


def first_team_waits(monkeypatch: pytest.MonkeyPatch) -> Artifact:
    """All teams wait for the same phase."""
    put = PipelineEmitter.put

    def same(self: Any, text: str) -> str:
        return put(self, "zext i1 false to i32" if text.startswith("zext i1") and text.endswith("to i32") else text)

    monkeypatch.setattr(PipelineEmitter, "put", same)
    return made(FAULTY)


def released_by_all_teams(monkeypatch: pytest.MonkeyPatch) -> Artifact:
    """A slot is free once the warps of both teams have released it."""
    spell = PipelineEmitter.spell

    def doubled(self: Any, call: Any, **arguments: Any) -> str:
        if call is self.calls.init and arguments["count"] > 1:
            arguments["count"] *= 2
        return spell(self, call, **arguments)

    monkeypatch.setattr(PipelineEmitter, "spell", doubled)
    return made(FAULTY)


def one_warp_passes(monkeypatch: pytest.MonkeyPatch) -> Artifact:
    """A turn is passed once one warp of a team has received its copies."""
    artifact = made(FAULTY)
    text = artifact.notes["ptx"]
    *_, first, second = re.finditer(r"mbarrier\.init\.shared\.b64\s+\[[^]]+\], (\S+);", text)
    for found in (second, first):
        text = text[: found.start(1)] + "1" + text[found.end(1) :]
    return replace(artifact, notes={**artifact.notes, "ptx": text})


def teams_meet_at_one_barrier(monkeypatch: pytest.MonkeyPatch) -> Artifact:
    """The warps of all teams that store meet at one hardware barrier."""
    spell = PipelineEmitter.spell

    def same(self: Any, call: Any, **arguments: Any) -> str:
        return spell(self, call, **arguments | {"number": 1})

    monkeypatch.setattr(PipelineEmitter, "spell", same)
    return made(STORED)


def teams_store_from_one_tile(monkeypatch: pytest.MonkeyPatch) -> Artifact:
    """The teams write their tiles to the same elements of shared memory."""
    monkeypatch.setattr(take_turns._TakeTurns, "_with_own_tiles", lambda self, body, team: body)
    return made(STORED)


def tiles_are_not_awaited(monkeypatch: pytest.MonkeyPatch) -> Artifact:
    """A team waits for a barrier, but not until the engine has read its tile."""
    monkeypatch.setattr(pipelines, "wait_for_stores", lambda self, pending: self.consumers_meet())
    return made(STORED)


OVERTAKES = (
    "may still read it|while an asynchronous|before its asynchronous|before it is written|without a barrier|arrivals"
)
FAULTS = {
    turn_is_not_awaited: OVERTAKES,
    turn_is_not_passed: "no warp can go on",
    turn_is_passed_at_once: OVERTAKES,
    first_team_waits: "no warp can go on",
    released_by_all_teams: "no warp can go on",
    one_warp_passes: f"{OVERTAKES}|no warp can go on",
}
FAULTS_OF_STORES = (teams_meet_at_one_barrier, teams_store_from_one_tile, tiles_are_not_awaited)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda x: x.__name__)
def test_a_planted_fault_of_teams_raises(
    fault: Callable[[pytest.MonkeyPatch], Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_raises(fault(monkeypatch), KINDS[FAULTY][0], FAULTS[fault])


@pytest.mark.parametrize("fault", FAULTS_OF_STORES, ids=lambda x: x.__name__)
def test_a_planted_fault_of_stores_raises(
    fault: Callable[[pytest.MonkeyPatch], Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_raises(fault(monkeypatch), KINDS[STORED][0], "store|barrier|while|before it is written|no warp can go on")


REFUSED = {
    "one tile": ("mb1ic64ih8oc16oh8kh1", forward() + TEAMS, "a group computes one tile; legal is --teams=1"),
    "resident weights": ("mb3000ic64ih8oc16oh8kh1", forward() + " --resident=wei" + TEAMS,
                         "--teams=2: legal is none of --resident="),
    "clusters": ("mb300ic64ih8oc32oh8kh1", forward() + " --cluster=oc:2" + TEAMS, "none of --cluster="),
    "threads": ("mb300ic64ih8oc512oh8kh1", forward(m=256, n=256, slots=2, row="wgmma_m64n256k16_bf16") + TEAMS,
                "1152 threads"),
    "number": ("mb300ic64ih8oc16oh8kh1", forward() + " --teams=5", "--teams=5: expected 1 to 4"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_illegal_teams_are_refused_with_the_reason(name: str) -> None:
    shape, words, message = REFUSED[name]
    with pytest.raises(ConfigError, match=re.escape(message)):
        compiled(f"{LAST} --dt=bf16 {shape}", words)


def test_threads_that_copy_have_no_teams() -> None:
    words = "--target=sm_80 --lane=oc --realise=mask --group=oc:8,ow:8,ic:8 --pack= --shared=src,wei --teams=2"
    with pytest.raises(ConfigError, match="teams multiply what a copy engine brings: --realise=hardware"):
        Config.parse(words)


@pytest.mark.parametrize(("shape", "teams"), [
    ("mb32ic256ih56oc256oh56kh3ph1", 2),  # six tiles of a group, which are stored in a quarter of their products' time
    ("mb32ic256ih14oc256oh14kh3ph1", 1),  # one tile of a group
    ("mb32ic64ih56oc256oh56kh1", 1),  # bound by the bytes of its result
])  # fmt: skip
def test_the_model_takes_teams_where_products_hide_the_stores(
    shape: str, teams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("convsmith.tune.devices.teams.TEAMED", 1.0)
    monkeypatch.setattr("convsmith.tune.devices.stored_results.IN_PARTS", 0.0)
    assert default_teams(shape) == teams


def test_the_model_keeps_groups_that_were_timed_where_teams_gain_little() -> None:
    assert default_teams("mb32ic256ih56oc256oh56kh3ph1") == 1


def default_teams(shape: str) -> int:
    return device_config(parse_problem(f"{LAST} --dt=bf16 {shape}").canonical(), target(LEVEL)).teams
