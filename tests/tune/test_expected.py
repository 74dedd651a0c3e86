"""The cycles that the model expects, by cause, add up to what it ranks configs by; `explain` shows them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import convsmith as cs
from convsmith.ir.intern import interning
from convsmith.machine.registry import known_targets
from convsmith.problem import parse_problem
from convsmith.tune.candidates import candidates
from convsmith.tune.costs.expected import expected_terms
from convsmith.tune.records.database import Database
from convsmith.tune.records.measured import Measured
from convsmith.tune.records.origin import compiler_key, machine_key

TARGETS = {t.name: t for t in known_targets()}
LAST = "--stag=axb --dtag=axb"


@pytest.mark.sampled(3, "target", "line")
@pytest.mark.parametrize("target", ["avx512_amx", "avx2", "generic"])
@pytest.mark.parametrize("line", [
    f"{LAST} mb1ic64ih14oc64oh14kh3ph1", f"{LAST} g64mb1ic64ih14oc64oh14kh3ph1", "mb1ic16ih14oc16oh14kh3ph1",
    f"--dt=s8:s8:s32 {LAST} mb1ic64ih14oc64oh14kh3ph1", "--dt=u8:s8:s32 g4mb1ic64ih14oc64oh14kh1",
    f"--dir=BWD_W {LAST} mb2ic16ih8oc24oh8kh3ph1",
    f"--dir=BWD_D {LAST} mb1ic16ih14oc24oh7kh3sh2ph1", "--matmul 64x48:48x40",
])  # fmt: skip
def test_the_terms_add_up_to_the_cycles(line: str, target: str) -> None:
    """Lines for which windows wait are counted once where a config then has more cycles than another one."""
    problem, level = parse_problem(line).canonical(), TARGETS[target]
    found = candidates(problem, level, 1)
    for choice in (*found[:5], *found[5::7]):
        with interning():
            terms = expected_terms(problem, choice.config, level)
        total, lines = sum(terms.values()), terms.get("lines", 0.0)
        is_bound = total - lines < choice.cycles < total and choice.cycles > found[0].cycles
        assert is_bound or choice.cycles == pytest.approx(total, rel=1e-9)
        assert min(terms.values()) > 0


def test_explain_shows_the_terms_and_the_measurement(tmp_path: Path) -> None:
    kernel = cs.compile("mb1ic64ih14oc64oh14kh1", src_tag="axb", dst_tag="axb", threads=1)
    page = kernel.explain()
    assert "cycles on one thread are expected" in page and "multiply-adds" in page and "\nmeasured" not in page
    line, config = str(kernel.problem.canonical()), str(kernel.config)
    row = Measured(line, config, machine_key(), compiler_key(), kernel.config.target, 1, "ok", 1.0, 12.5e-6, 0.01, 20)
    with Database(tmp_path / "m.db") as database:
        database.put([replace(row, date="2026-01-02")])
    said = "measured      12.50 us, 1.00 of the first choice's time, in 20 samples on 2026-01-02"
    with cs.settings.scope(database=tmp_path / "m.db"):
        assert said in kernel.explain()
