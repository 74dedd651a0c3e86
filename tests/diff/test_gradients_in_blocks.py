"""Gradients of weights on vectors of pairs: both factors of a block of pixels are packed before they are read."""

from __future__ import annotations

import pytest
from guarded import Compiled, check_result, expected

from convsmith.compiler.driver import build_artifact
from convsmith.ir.instruction import Instruction
from convsmith.ir.intern import interning
from convsmith.machine.base import Machine
from convsmith.machine.registry import host_targets
from convsmith.passes.manager import run_steps
from convsmith.problem import parse_problem
from convsmith.problem.data import random_arrays
from convsmith.schedule import copy_nest
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan


def pairs(level: Machine) -> Instruction | None:
    """Return the instruction of a level that adds up pairs of products of bf16, if it has one."""
    return next((row for row in level.vector_rows("bf16", "bf16", "f32") if row.terms == 2), None)


LEVELS = [t for t in host_targets() if t.name == "avx512_bf16" and pairs(t) is not None]
LAST, FIRST = (f"--dir=BWD_W --dt=bf16 --stag={t} --dtag={t}" for t in ("axb", "abx"))
CASES = [
    (f"{FIRST} mb2ic19iw90oc35ow90kw5pw8dw3", "--lane=oc --order=kw,oc,ic --reduce=mb,ow --cache=ow:34", "ow"),
    (f"{FIRST} mb2ic19ih9iw41oc35oh9ow41kh3kw3ph1pw1",
     "--lane=oc --order=kw,oc,ic,kh --reduce=mb,oh,ow --cache=oh:3", "oh"),
    (f"{FIRST} mb3ic35ih5iw34oc19oh3ow32kh3kw3ph0pw0",
     "--lane=ic --order=kw,oc,ic,kh --reduce=mb,oh,ow --cache=mb:1", "mb"),
    (f"{LAST} --wtag=axb mb2ic35ih9iw41oc19oh9ow41kh3kw3ph1pw1",
     "--lane=ic --order=kw,oc,ic,kh --reduce=mb,oh,ow --cache=oh:3", "oh"),
    (f"{FIRST} g2mb2ic8iw90oc34ow90kw7pw3", "--lane=oc --order=kw,g,oc,ic --reduce=mb,ow --cache=ow:34", "g"),
]  # fmt: skip


def config_of(words: str, place: str, level: Machine) -> Config:
    row, lane = pairs(level), words.split()[0].removeprefix("--lane=")
    assert row is not None
    other = "ic" if lane == "oc" else "oc"
    return Config.parse(
        f"--target={level.name} {words} --register={other}:6,{lane}:{2 * row.lanes} --instruction={row.name} "
        f"--k_step=ow:2 --realise=pad_copy --pack_at=src+{place},diff_dst+{place}"
    )


@pytest.mark.parametrize("level", LEVELS, ids=lambda t: t.name)
@pytest.mark.parametrize(("line", "words", "place"), CASES)
def test_blocks_of_both_factors(
    line: str, words: str, place: str, level: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of odd length and borders leave pairs of which one element is absent; the copies have zeros there, and all
    products are made by the instruction.
    """
    monkeypatch.setattr(copy_nest, "SHORT_COPY", 0)
    problem, config = parse_problem(line), config_of(words, place, level)
    arrays = random_arrays(problem)
    compiled = Compiled(problem, build_artifact(problem, config, level))
    check_result(problem, compiled(arrays), expected(problem, arrays))
    with interning():
        made = plan(problem.canonical(), config, level)
        text = str(run_steps(made.program.naive(), made.pipeline))
    assert config.instruction in text and any(row.name in text for row in level.transpositions)
    assert "* cast(f32" not in text
