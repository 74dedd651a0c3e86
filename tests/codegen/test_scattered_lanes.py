"""Lanes that are stored one by one: LLVM neither merges nor reorders their stores, which is most of the time to compile
them, and the code is the same.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest

from convsmith.codegen import llvm_bind
from convsmith.compiler.driver import lower
from convsmith.ir.intern import interning
from convsmith.machine.base import Machine
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.planned import plan_for

SCATTERED = {
    "gradient of the weights": (
        "--dir=BWD_W --stag=abx --dtag=abx mb1ic32ih9oc32oh9kh3ph1", "--lane=oc --register=ic:3,oc:16",
    ),
    "channels first": ("--stag=abx --dtag=abx mb1ic16ih7oc32oh7kh3ph1", "--lane=oc --register=ow:3,oc:16"),
    "pixels of a stride": (
        "--deconv --stag=abx --dtag=abx mb1ic8ih8iw16oc4oh16ow32kh1kw1sh2sw2ph0pw0", "--lane=ow --register=oc:3,ow:16",
    ),
}  # fmt: skip
LANE = re.compile(r"(%\S+) = extractelement .*\n(?:.*\n)?\s+store( volatile)? \S+ \1,")


def text(line: str, words: str, machine: Machine) -> str:
    problem = parse_problem(line).canonical()
    with interning():
        return lower(plan_for(problem, Config.parse(f"--target={machine.name} {words}"), machine)).text


def mnemonics(module: str, machine: Machine) -> Counter[str]:
    assembly = llvm_bind.assembly(module, machine.triple, machine.cpu, machine.features)
    return Counter(word[0] for line in assembly.splitlines() if (word := line.split()) and line.startswith("\t"))


@pytest.mark.parametrize("level", ["avx512", "avx2", "aarch64"])
@pytest.mark.parametrize("kind", SCATTERED)
def test_lanes_that_are_not_adjacent_are_stored_in_order(kind: str, level: str) -> None:
    machine = replace(target(level), has_masked_stores=False)
    module = text(*SCATTERED[kind], machine)
    stores = LANE.findall(module)
    assert len(stores) > 32 and all(volatile for _, volatile in stores)
    assert "store volatile" not in re.sub(LANE, "", module)


@pytest.mark.parametrize("level", ["avx512", "avx2"])
@pytest.mark.parametrize("kind", SCATTERED)
def test_the_order_costs_no_instruction(kind: str, level: str) -> None:
    machine = replace(target(level), has_masked_stores=False)
    module = text(*SCATTERED[kind], machine)
    plain = mnemonics(module.replace("store volatile", "store"), machine)
    assert sum(mnemonics(module, machine).values()) <= sum(plain.values())


def test_devices_store_through_their_caches() -> None:
    machine = target("opencl")
    problem = parse_problem(SCATTERED["channels first"][0]).canonical()
    config = Config.parse("--target=opencl --lane=ow --group=ow:4 --realise=mask")
    with interning():
        module = lower(plan_for(problem, config, machine)).text
    assert "store " in module and "volatile" not in module
