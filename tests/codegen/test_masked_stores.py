"""Lanes two to four elements apart are stored by masked vectors where the machine has them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from convsmith.compiler.driver import lower
from convsmith.frontend.numpy_api import compile as compile_kernel
from convsmith.ir.intern import interning
from convsmith.machine.registry import host_targets, target
from convsmith.measure.verification import verify_kernel
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.planned import plan_for

FIRST = "--deconv --stag=abx --dtag=abx"
STRIDED = {
    "mb1ic8ih8iw18oc4oh16ow36kh1kw1sh2sw2ph0pw0": 2,
    "--dt=f64 mb1ic8ih6iw11oc4oh12ow22kh2kw2sh2sw2ph0pw0": 2,
    "--dt=s8:s8:s32 mb1ic8ih6iw20oc4oh12ow40kh2kw2sh2sw2ph0pw0": 2,
    "--dt=bf16 mb1ic8ih6iw20oc4oh12ow40kh2kw2sh2sw2ph0pw0": 2,
    "--dt=f16 mb1ic8ih6iw20oc4oh18ow60kh3kw3sh3sw3ph0pw0": 3,
    "--dt=u8:s8:u8 g6mb1ic6ih9iw21oc6oh18ow42kh3kw3sh2sw2ph1pw1": 2,
    "mb2ic4ih7iw20oc4oh21ow60kh3kw3sh3sw3ph0pw0": 3,
    "mb1ic8iw19oc8ow76kw4sw4pw0": 4,
    "mb1ic3iw17oc8ow85kw5sw5pw0": 5,
}  # fmt: skip
"""Deconvolutions with the elements between adjacent pixels of a residue class."""
MASKED = [t.name for t in host_targets() if t.has_masked_stores]


@pytest.mark.parametrize("step", [2, 3, 4, 5])
def test_a_vector_has_a_store_for_each_step(step: int) -> None:
    line = next(line for line, n in STRIDED.items() if n == step and "--dt" not in line)
    texts = []
    for machine in (target("avx512"), replace(target("avx512"), has_masked_stores=False)):
        problem = parse_problem(f"{FIRST} {line}").canonical()
        config = Config.parse("--target=avx512 --lane=ow --register=oc:2,ow:16")
        with interning():
            texts.append(lower(plan_for(problem, config, machine)).text)
    masked, single = (text.count("store volatile") for text in texts)
    assert single and (masked == single if step == 5 else masked < single / 2)


@pytest.mark.sampled(12, "level", "threads")
@pytest.mark.parametrize("level", MASKED)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("line", STRIDED)
def test_elements_between_the_lanes_stay(line: str, threads: int, level: str) -> None:
    kernel = compile_kernel(f"{FIRST} {line}", target=level, threads=threads, config="--lane=ow")
    assert verify_kernel(kernel).ok


def test_levels_with_masks_of_their_own_store_so() -> None:
    assert target("avx512").has_masked_stores and target("avx512_fp16").has_masked_stores
    assert not target("avx2").has_masked_stores
