"""Clusters of groups on sm_90a: copies that reach all groups, exact as PTX; every planted fault is found; and the
configs that are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from convsmith.codegen.artifact import Artifact
from convsmith.codegen.pipelines import PipelineEmitter
from convsmith.compiler.cubin import assemble_ptx
from convsmith.diag.errors import ConfigError
from convsmith.emulate.ptx.cluster import clusters_of
from convsmith.emulate.ptx.parser import PtxError
from convsmith.ir.dialect import DialectCall
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.planned import plan_for
from ptx.hopper_configs import KINDS, LAST, LEVEL, compiled, forward, hopper_artifact
from ptx.sass import sass, skip_without_disassembler
from ptx.test_hopper_convolutions import check, check_raises, resident

CLUSTERS = [kind for kind in KINDS if "cluster" in kind]
FAULTY = "a cluster of rows"
"""The kernel in which faults are planted: two groups, whose weights both bring a half of, and 9 steps in 2 slots."""


@pytest.mark.sampled(9, wide=2, every="kind")
@pytest.mark.parametrize("count", (2, 4))
@pytest.mark.parametrize("kind", CLUSTERS)
def test_clusters_that_reside_compute_several_tiles(kind: str, count: int) -> None:
    made = KINDS[kind][1].partition("--cluster=")[2].split()[0]
    artifact = resident(kind, count * int(made.rpartition(":")[2]) // 2)
    launch = artifact.entries["main"].launch
    assert launch.cluster and not any(n % size for n, size in zip(launch.grid, launch.cluster))
    check(artifact, KINDS[kind][0], 0)


def test_blocks_of_a_cluster_follow_each_other_along_an_axis() -> None:
    assert clusters_of((2, 3, 1), (2, 1, 1)) == [[0, 1], [2, 3], [4, 5]]
    assert clusters_of((2, 2, 1), (1, 2, 1)) == [[0, 2], [1, 3]]
    with pytest.raises(PtxError, match=r"a grid of \(3, 1, 1\) blocks is not divided"):
        clusters_of((3, 1, 1), (2, 1, 1))


def test_half_of_the_shared_operand_is_brought_by_each_group() -> None:
    ptx, launch = hopper_artifact(FAULTY).notes["ptx"], hopper_artifact(FAULTY).entries["main"].launch
    assert ".reqnctapercluster 2, 1, 1" in ptx and launch.cluster == (2, 1, 1)
    copies = re.findall(r"cp\.async\.bulk\.tensor\.\dd\S*", ptx)
    assert [("multicast" in x, "im2col" in x) for x in copies] == [(False, True), (True, False)]
    boxes = {x.of: x.map.rows for x in launch.maps}
    assert boxes == {"src": 64, "wei": 16}


def test_machine_code_has_a_multicast() -> None:
    skip_without_disassembler(LEVEL)
    (opcodes,) = sass(assemble_ptx(hopper_artifact(FAULTY).notes["ptx"], LEVEL).cubin).values()
    copies = [x for x in opcodes if x.startswith("UTMALDG")]
    assert sum("MULTICAST" in x for x in copies) == 1 and len(copies) == 2
    assert any(x.startswith("UCGABAR") for x in opcodes)


_SHAPE = "mb3ic64ih8oc48oh8kh1"
REFUSED = {
    "sizes": (_SHAPE, "oc:3", "sm_90a has no clusters of 3 groups; legal are 2 and 4"),
    "loops": (_SHAPE, "kh:2", "legal are the loops mb_oh_ow and oc"),
    "tiles": (_SHAPE, "mb_oh_ow:4", "the loop has 3 tiles of 64; legal are more tiles"),
    "rows": ("mb4ic64ih8oc48oh8kh1", "mb_oh_ow:4", "16 rows of a copy of wei have no 4 parts of a multiple of 8"),
    "two loops": (_SHAPE, "oc:2,mb_oh_ow:2", "expected one loop over groups"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_an_illegal_cluster_is_refused_with_the_reason(name: str) -> None:
    shape, value, message = REFUSED[name]
    with pytest.raises(ConfigError, match=re.escape(message)):
        config = Config.parse(f"--target={LEVEL} --pack= --realise=hardware {forward()} --cluster={value}")
        plan_for(parse_problem(f"{LAST} --dt=bf16 {shape}"), config, target(LEVEL))


def test_threads_that_copy_have_no_clusters() -> None:
    words = "--target=sm_80 --lane=oc --realise=mask --group=oc:8,ow:8,ic:8 --pack= --shared=src,wei --cluster=oc:2"
    with pytest.raises(ConfigError, match="groups, whose operands a copy engine brings, --realise=hardware"):
        Config.parse(words)


# -- planted faults
def spelled(change: Callable[[Any, DialectCall, dict[str, Any]], None], monkeypatch: pytest.MonkeyPatch) -> Artifact:
    """Return the kernel of code generation that changes the arguments of operations."""
    spell = PipelineEmitter.spell

    def changed(self: PipelineEmitter, call: DialectCall, **arguments: Any) -> str:
        change(self, call, arguments)
        return spell(self, call, **arguments)

    monkeypatch.setattr(PipelineEmitter, "spell", changed)
    return compiled(*KINDS[FAULTY])


def no_release_to_the_other(monkeypatch: pytest.MonkeyPatch) -> Artifact:
    """Consumers arrive at the barrier of the second group alone."""
    artifact = hopper_artifact(FAULTY)
    text = re.sub(r"^.*mbarrier\.arrive\.shared::cluster.*\n", _every_second(), artifact.notes["ptx"], flags=re.M)
    return replace(artifact, notes={**artifact.notes, "ptx": text})


def _every_second() -> Callable[[re.Match[str]], str]:
    """Return what keeps every second of the lines that it is called for."""
    count = iter(range(1 << 30))
    return lambda found: found[0] if next(count) % 2 else ""


def released_by_one(monkeypatch: pytest.MonkeyPatch) -> Artifact:
    """A slot is free once the consumers of one group have released it."""

    def change(self: Any, call: DialectCall, arguments: dict[str, Any]) -> None:
        if call is self.calls.init and arguments["count"] > 1:
            arguments["count"] //= 2

    return spelled(change, monkeypatch)


def mask_of_one(monkeypatch: pytest.MonkeyPatch) -> Artifact:
    def change(self: Any, call: DialectCall, arguments: dict[str, Any]) -> None:
        if "mask" in arguments and arguments["shared"]:
            arguments["mask"] = 1

    return spelled(change, monkeypatch)


def mask_of_more(monkeypatch: pytest.MonkeyPatch) -> Artifact:
    def change(self: Any, call: DialectCall, arguments: dict[str, Any]) -> None:
        if "mask" in arguments and arguments["shared"]:
            arguments["mask"] = 5

    return spelled(change, monkeypatch)


def count_of_a_part(monkeypatch: pytest.MonkeyPatch) -> Artifact:
    def change(self: Any, call: DialectCall, arguments: dict[str, Any]) -> None:
        if call is self.calls.expect:
            arguments["bytes"] -= 16 * 64 * 2

    return spelled(change, monkeypatch)


def no_meeting_before(monkeypatch: pytest.MonkeyPatch) -> Artifact:
    artifact = hopper_artifact(FAULTY)
    text = artifact.notes["ptx"].replace("barrier.cluster.arrive;", "bar.sync 0;", 1)
    text = text.replace("barrier.cluster.wait;", "", 1)
    return replace(artifact, notes={**artifact.notes, "ptx": text})


def no_meeting_at_the_end(monkeypatch: pytest.MonkeyPatch) -> Artifact:
    artifact = hopper_artifact(FAULTY)
    head, _, tail = artifact.notes["ptx"].rpartition("barrier.cluster.arrive;")
    return replace(artifact, notes={**artifact.notes, "ptx": head + tail.replace("barrier.cluster.wait;", "")})


FAULTS = {
    no_release_to_the_other: "no warp can go on",
    released_by_one: "may still read it|while an asynchronous operation|arrivals at a barrier",
    mask_of_one: "no warp can go on|arrivals|without a barrier|before it is written|while an asynchronous",
    mask_of_more: "the mask 0x5 of a copy names blocks beyond the 2 of the cluster",
    count_of_a_part: "no warp can go on|before its asynchronous copy|before it is written|without a barrier|arrivals",
    no_meeting_before: "there is no barrier|without a barrier|before it is written",
    no_meeting_at_the_end: "ends while others of its cluster may still reach|has ended when another one reaches",
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda x: x.__name__)
def test_a_planted_fault_of_a_cluster_raises(
    fault: Callable[[pytest.MonkeyPatch], Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_raises(fault(monkeypatch), KINDS[FAULTY][0], FAULTS[fault])
