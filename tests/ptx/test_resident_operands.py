"""Operands that stay in shared memory while a group of sm_90a computes several tiles: exact as PTX and in the
interpreter of the IR, copied in the first round alone, and refused with the reason.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest
from devices import DeviceOracle

from convsmith.codegen.artifact import Artifact
from convsmith.compiler.cubin import assemble_ptx
from convsmith.compiler.driver import emit, lower
from convsmith.diag.collection import no_collection
from convsmith.diag.errors import ConfigError
from convsmith.emulate.ptx.parser import PtxError
from convsmith.interp.memory import InterpError
from convsmith.ir.intern import interning, one_table
from convsmith.ir.parse import parse_kernel
from convsmith.machine.base import Machine
from convsmith.machine.registry import target
from convsmith.passes.manager import run_steps
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.plan import Plan
from convsmith.schedule.planned import plan_for
from convsmith.tune.devices.device import device_config
from ptx.hopper_configs import LAST, LEVEL, forward
from ptx.sass import skip_without
from ptx.test_hopper_convolutions import check

KINDS = {
    "weights": (f"{LAST} --dt=bf16 mb3ic64ih8oc16oh8kh3ph1", forward() + " --resident=wei"),
    "weights, one slot": (f"{LAST} --dt=s8:s8:s32 mb3ic128ih8oc16oh8kh1",
                          forward(k=128, slots=1, row="wgmma_m64n16k32_s8") + " --resident=wei"),
    "weights of clusters": (f"{LAST} --dt=bf16 mb4ic64ih8iw8oc32oh8ow8kh1kw3ph0pw1",
                            forward() + " --resident=wei --cluster=oc:2"),
    "weights of rows": (f"{LAST} --dt=bf16 mb4ic64ih8oc16oh8kh1", forward() + " --resident=wei --cluster=mb_oh_ow:2"),
    "stored tiles": (f"{LAST} --dt=bf16 mb3ic64ih8oc16oh8kh1",
                     forward().replace("src,wei", "src,wei,dst") + " --resident=wei"),
    "weights of columns": (f"{LAST} --dt=bf16 mb3ic64ih8oc32oh8kh3ph1",
                           forward() + " --resident=wei --order=mb_oh_ow,oc"),
    "weights of groups side by side": (
        "--stag=axb --dtag=axb --dt=bf16 g8mb3ic32ih8oc32oh8kh3ph1",
        forward(k=16) + " --pack=wei --diagonal=g:4 --resident=wei --order=mb_oh_ow,g,oc",
    ),
}  # fmt: skip

ROW_OF_TAPS = (f"{LAST} --dt=bf16 mb2ic64ih8iw9oc16oh8ow8kh1kw2", forward() + " --resident=wei")
"""Two tiles, of two parts of the sum each: a problem that the interpreter computes in seconds."""


def with_units(count: int) -> Machine:
    """Return a device with so many units, on each of which one group resides."""
    machine = target(LEVEL)
    assert machine.device is not None
    units = replace(machine.device.units, count=count, shared=1)
    return replace(machine, device=replace(machine.device, units=units))


def made(line: str, words: str, count: int) -> Plan:
    config = Config.parse(f"--target={LEVEL} --pack= --realise=hardware {words}")
    return plan_for(parse_problem(line), config, with_units(count))


@cache
def artifact(kind: str, count: int = 2) -> Artifact:
    with no_collection(), one_table():
        plan = made(*KINDS[kind], count)
        return emit(plan, lower(plan))


@pytest.mark.sampled(8, wide=2, every="kind")
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", KINDS)
def test_kernels_are_exact(kind: str, seed: int) -> None:
    check(artifact(kind), KINDS[kind][0], seed)


def test_kernels_assemble_without_spills_and_warnings() -> None:
    skip_without(LEVEL)
    for kind in ("weights", "weights of clusters"):
        found = assemble_ptx(artifact(kind).notes["ptx"], LEVEL)
        assert not found.warnings
        assert all((use.spilled, use.filled, use.stack) == (0, 0, 0) for use in found.uses.values())


@cache
def text() -> str:
    with interning():
        plan = made(*ROW_OF_TAPS, 1)
        return str(run_steps(plan.naive(), plan.pipeline)).partition("\npack ")[0] + "\n"


def interpret(kernel: str) -> None:
    with interning():
        plan = made(*ROW_OF_TAPS, 1)
        DeviceOracle(plan, plan.machine).check(parse_kernel(kernel))


def test_the_first_round_copies_the_operand_and_the_others_read_it() -> None:
    copies = re.findall(r"tensor (\w+)\[.*", text())
    lines = re.findall(r"tensor wei_s\[s \* 1024\].* if -x >= 0$", text(), re.M)
    assert copies == ["src_s", "wei_s"] and len(lines) == 1 and "alloc wei_s: bf16[2048]" in text()
    interpret(text())


def test_elements_that_no_round_has_copied_are_missed() -> None:
    with pytest.raises(InterpError, match=r"before it is written|received"):
        interpret(text().replace("if -x >= 0\n", "if x - 1 >= 0\n"))


def test_a_count_of_bytes_that_no_copy_brings_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every round expects the bytes of the first one."""
    found = artifact("weights", 1)
    ptx, count = re.subn(r"selp\.b32(\s+%r\d+), (\d+), \d+,", r"selp.b32\1, \2, \2,", found.notes["ptx"])
    assert count
    with pytest.raises(PtxError, match="no warp can go on"):
        check(replace(found, notes={**found.notes, "ptx": ptx}), KINDS["weights"][0], 0)


REFUSED = {
    "src": (KINDS["weights"][0], "--resident=src", "tiles of a group read different elements; legal are wei"),
    "columns": (f"{LAST} --dt=bf16 mb3ic64ih8oc32oh8kh1", "--resident=wei", "legal are none here"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_operands_that_tiles_move_are_refused(name: str) -> None:
    line, word, message = REFUSED[name]
    with pytest.raises(ConfigError, match=message):
        config = Config.parse(f"--target={LEVEL} --pack= --realise=hardware {forward()} {word}")
        plan_for(parse_problem(line), config, with_units(1))


def test_groups_of_one_tile_and_threads_that_copy_are_refused() -> None:
    line, words = KINDS["weights"]
    with pytest.raises(ConfigError, match="a group computes one tile"):
        config = Config.parse(f"--target={LEVEL} --pack= --realise=hardware {words}")
        plan_for(parse_problem(line), config, target(LEVEL))
    words = "--target=sm_80 --lane=oc --realise=mask --group=oc:8,ow:8,ic:8 --pack= --shared=src,wei --resident=wei"
    with pytest.raises(ConfigError, match="legal with --realise=hardware"):
        plan_for(parse_problem("mb1ic16iw16oc16ow16kw3pw1"), Config.parse(words), target("sm_80"))


@pytest.mark.parametrize(("order", "units"), [("oc,mb_oh_ow", 2), ("mb_oh_ow,oc", 3)])
def test_columns_that_follow_each_other_in_a_group_do_not_stay(order: str, units: int) -> None:
    words = f"--target={LEVEL} --pack= --realise=hardware {forward()} --resident=wei --order={order}"
    with pytest.raises(ConfigError, match="tiles of a group read different elements"):
        plan_for(parse_problem(f"{LAST} --dt=bf16 mb3ic64ih8oc32oh8kh1"), Config.parse(words), with_units(units))


@pytest.mark.parametrize("line", [
    f"{LAST} --dt=bf16 mb32ic64ih56oc64oh56kh3ph1",
    "--stag=axb --dtag=axb --dt=bf16 g32mb32ic128ih56oc128oh56kh3ph1",
])  # fmt: skip
def test_the_default_of_64_channels_keeps_its_weights(line: str) -> None:
    with interning():
        assert device_config(parse_problem(line).canonical(), target(LEVEL)).staged("resident") == ("wei",)
