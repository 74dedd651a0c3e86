"""Copies of the source whose bytes are widened to words, for instructions on pairs of words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from emulated import skip_without_emulator

import convsmith as cs
from convsmith.diag.errors import ConfigError
from convsmith.machine.base import Machine
from convsmith.machine.micro_architectures import MICRO_ARCHITECTURES
from convsmith.machine.registry import host_targets, target
from convsmith.problem import parse_problem
from convsmith.problem.conv import Conv
from convsmith.tune.candidates import default_config
from convsmith.tune.stage_configs import StageConfigs

LEVEL = "wasm32+relaxed"
LAST = "--stag=axb --dtag=axb"
SHAPES = (
    "mb1ic6ih7oc12oh7kh1ph0", "mb2ic5ih6oc8oh6kh3ph1", "mb1ic8ih9oc20oh5kh3sh2ph1", "mb1ic3ih9oc8oh4kh3sh2ph0",
)  # fmt: skip


def words(byte: str, level: str = LEVEL) -> str:
    row = f"vpmaddwd_256_{byte}_copied" if level == "avx2" else f"i32x4.dot_i16x8_s_{byte}_copied"
    return f"--target={level} --lane=oc --register=ow:3,oc:8 --instruction={row} --k_step=ic:2"


def zen3() -> Machine:
    """Zen 3 without products of bytes, whose limit some weights are beyond."""
    level = next(row for row in MICRO_ARCHITECTURES if row.name == "znver3").of(target("avx2"))
    return replace(level, instructions=tuple(row for row in level.instructions if not row.limit))


@pytest.mark.sampled(3, "level", "byte", "line")
@pytest.mark.parametrize("line", SHAPES)
@pytest.mark.parametrize("byte", ["u8", "s8"])
@pytest.mark.parametrize("level", [LEVEL, "avx2"])
def test_a_copy_has_words(level: str, byte: str, line: str) -> None:
    """Results are exact with borders, strides, and channels that fill no pair."""
    if level == LEVEL:
        skip_without_emulator(target(LEVEL))
    elif level not in [x.name for x in host_targets()]:
        pytest.skip("this machine has no AVX2")
    problem = parse_problem(f"--dt={byte}:s8:s32 {LAST} {line}")
    kernel = cs.compile(problem, target=level, threads=1, config=f"{words(byte, level)} --realise=pad_copy")
    assert kernel.artifact is not None
    verdict = kernel.verify()
    assert verdict.ok, verdict.detail


def test_loads_of_the_loop_widen_nothing() -> None:
    """The copy widens vectors of bytes: pairs of words are broadcast as they are."""
    problem = f"--dt=u8:s8:s32 {LAST} {SHAPES[0]}"
    kernel = cs.compile(parse_problem(problem), target=LEVEL, threads=1, config=f"{words('u8')} --realise=pad_copy")
    text = kernel.asm()
    assert "i16x8.load8x8_u" in text and "v128.load32_splat" in text and "v128.load16_splat" not in text


@pytest.mark.parametrize("changed", ["", " --realise=pad_copy --pack=src,wei"])
def test_bytes_that_no_copy_widens(changed: str) -> None:
    problem = parse_problem(f"--dt=u8:s8:s32 {LAST} {SHAPES[0]}")
    with pytest.raises(ConfigError, match="words of a copy; legal is --realise=pad_copy"):
        cs.compile(problem, target=LEVEL, threads=1, config=words("u8") + changed)


@pytest.mark.parametrize("level", ["wasm32+relaxed", "wasm32"])
def test_layers_of_many_channels_copy_words(level: str) -> None:
    """Pixels of few results are widened as they are loaded: a copy takes longer than that."""
    many, few = (
        str(default_config(parse_problem(f"--dt=u8:s8:u8 {LAST} {line}").canonical(), target(level), 1))
        for line in ("mb1ic64ih28oc128oh28kh1ph0", "mb1ic32ih112oc8oh112kh1ph0")
    )
    assert "_u8_copied" in many and "--realise=pad_copy" in many
    assert "i32x4.dot_i16x8_s_u8 " in few and "copied" not in few


def test_layers_of_large_weights_copy_words() -> None:
    """Words are multiplied where weights are beyond the limit of products of bytes."""
    many, few = (
        str(default_config(parse_problem(f"--dt=u8:s8:u8 {LAST} {line}").canonical(), zen3(), 1))
        for line in ("mb1ic64ih28oc128oh28kh1ph0", "mb1ic64ih112oc24oh112kh1ph0")
    )
    assert "vpmaddwd_256_u8_copied" in many and "--realise=pad_copy" in many
    assert "vpmaddwd_256_u8 " in few


def test_stages_by_rows_read_bytes() -> None:
    """A copy has whole images, so stages that compute a few rows at a time load bytes; whole ones copy them."""
    configs = StageConfigs(zen3())
    problem = parse_problem(f"--dt=u8:s8:u8 --accuracy=strict {LAST} mb1ic64ih28oc128oh28kh3ph1")
    assert isinstance(problem, Conv)
    assert configs.whole(problem, 1).instruction == "vpmaddwd_256_u8_copied"
    for near in (False, True):
        assert configs.by_rows(problem, near).instruction == "vpmaddwd_256_u8"
    assert not configs.uses_fragments(problem)
