"""Whether the loops of threads carry offsets: the additions that the model counts, and those of machine code."""

from __future__ import annotations

from math import ceil

import pytest
from ptx.sass import disassembly, hot_loop, skip_without_disassembler

from convsmith.compiler.cubin import assemble_ptx
from convsmith.compiler.driver import emit, lower
from convsmith.diag.collection import no_collection
from convsmith.ir.intern import one_table
from convsmith.ir.stmt import For
from convsmith.ir.walk import statements_of
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.packed_operands import packed_statement
from convsmith.schedule.planned import plan_for
from convsmith.tune.devices.carried_offsets import saved_additions
from convsmith.tune.devices.device import device_config

LAST = "--stag=axb --wtag=axb --dtag=axb"
CHOSEN = {
    "gradient": (f"--dir=BWD_W {LAST} --accuracy=any mb32ic64ih56oc64oh56kh3ph1", "HMMA", 22, 0.9),
    "stem": (f"--dir=BWD_W {LAST} mb32ic3ih224oc64oh112kh7sh2ph3", "FFMA", 6, 0.95),
    "depthwise": ("--dir=BWD_W --stag=axb --dtag=axb --dt=bf16 g96mb32ic96ih56oc96oh56kh7ph3", "FFMA", 5, 0.95),
}
"""Gradients of weights on sm_80: the opcode of their products, the additions that a step saves, and the maximum of a
hot loop's instructions relative to those without carried offsets.
"""
OTHERS = {
    "rows far apart": ("sm_80", f"{LAST} --dt=bf16 mb32ic256ih14oc1024oh14kh1"),
    "one step": ("sm_80", f"{LAST} --dt=bf16 mb32ic3ih224oc64oh112kh7sh2ph3"),
    "few steps": ("sm_89", f"--dir=BWD_W {LAST} --dt=bf16 mb1ic256ih14oc64oh7kh7ph3sh2"),
    "no asynchronous copies": ("sm_70", CHOSEN["gradient"][0]), "no known constant": ("opencl", CHOSEN["stem"][0]),
}  # fmt: skip


def chosen(line: str, level: str) -> Config:
    return device_config(parse_problem(line), target(level))


@pytest.mark.parametrize("kind", CHOSEN)
def test_additions_of_the_model_are_those_of_the_loops(kind: str) -> None:
    """A copy's loop saves an addition for each turn but the first of those whose addresses a constant spans."""
    line, _, saved, _ = CHOSEN[kind]
    machine = target("sm_80")
    assert machine.device is not None
    with no_collection(), one_table():
        plan = plan_for(parse_problem(line), chosen(line, "sm_80"), machine)
        assert isinstance(plan.config, Config) and plan.config.carry
        k = plan.main
        st = packed_statement(k.statement, k.config, machine)
        assert saved_additions(st, k.loops, k.config, k.nest, machine) == saved
        loops = [s for s in statements_of(lower(plan).kernel.body) if isinstance(s, For) and s.hi.is_const]
    copies = (x for x in loops if not any(isinstance(s, For) for s in statements_of(x.body)))
    turns = {(c.buffer, x.hi.const, c.step) for x in copies for c in x.carried if c.buffer.scope == "global"}
    assert saved == sum(n - ceil(n * step * b.dtype.bytes / machine.device.copy_reach) for b, n, step in turns)


@pytest.mark.parametrize("kind", OTHERS)
def test_other_kernels_compute_the_offsets(kind: str) -> None:
    level, line = OTHERS[kind]
    assert not chosen(line, level).carry


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", CHOSEN)
def test_hot_loops_get_shorter_and_nothing_is_spilled(kind: str) -> None:
    skip_without_disassembler("sm_80")
    line, product, _, most = CHOSEN[kind]
    counts = []
    for carry in (True, False):
        with no_collection(), one_table():
            plan = plan_for(parse_problem(line), chosen(line, "sm_80").changed(carry=carry), target("sm_80"))
            artifact = emit(plan, lower(plan))
        assembled, symbol = assemble_ptx(artifact.notes["ptx"], "sm_80"), artifact.entries["main"].symbol
        assert assembled.uses[symbol].spilled == 0
        counts.append(hot_loop(disassembly(assembled.cubin)[symbol], product).total())
    assert counts[0] <= most * counts[1]
