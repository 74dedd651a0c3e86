"""Results in channels first that are narrower than their sums: tiles are transposed in registers and stored as vectors.
"""

from __future__ import annotations

import pytest

import convsmith as cs
from convsmith.diag.errors import UnsupportedError
from convsmith.ir.intern import interning
from convsmith.machine.registry import target as known_target
from convsmith.problem import parse_problem
from convsmith.schedule.transposed_results import transposes
from convsmith.statement.views import statement

FIRST = "--stag=abx --dtag=abx"
LINES = [
    f"--dt=bf16 {FIRST} mb2ic20ih13oc36oh13kh3ph1",
    f"--dt=f16 {FIRST} mb1ic20ih17oc33oh17kh3ph1",
    f"--dt=u8:s8:u8 {FIRST} mb1ic20ih17oc50oh17kh3ph1",
    f"--dt=u8:s8:s8 {FIRST} --attr-scales=wei:per_oc --attr-post-ops=sum+relu mb1ic20ih17oc50oh17kh3ph1",
    f"--dt=f32:f32:u8 {FIRST} mb1ic20ih17oc50oh17kh3ph1",
]


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("target", ["avx512_bf16", "avx512", "avx2"])
@pytest.mark.parametrize("tile", ["ow:4", "ow:5", "ow:8", "ow:9"])
@pytest.mark.sampled(15, "line")
def test_results_are_exact(line: str, target: str, tile: str) -> None:
    config = f"--lane=oc --register={tile},oc:{known_target(target).lanes(32)}"
    try:
        verdict = cs.compile(line, target=target, config=config, threads=1).verify()
    except UnsupportedError as error:
        pytest.skip(str(error))
    assert verdict.ok, verdict.detail


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize(("target", "lanes"), [("avx512", 16), ("avx2", 8)])
def test_tiles_of_every_type_are_transposed(line: str, target: str, lanes: int) -> None:
    machine = known_target(target)
    with interning():
        row = transposes(statement(parse_problem(line), machine), "oc", "ow", lanes, machine)
    assert row is not None and row.result.dtype == parse_problem(line).dst_type
