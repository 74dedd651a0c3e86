"""Fragments in channels first: results in tiles of pixels or of channels that are not whole, copies of windows."""

from __future__ import annotations

import re

import pytest
from amx import AMX, needs_amx

import convsmith as cs
from convsmith.codegen import llvm_bind
from convsmith.compiler.driver import lower
from convsmith.ir.intern import interning
from convsmith.problem import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.plan import plan
from convsmith.tune.candidates import default_config

FIRST = "--stag=abx --dtag=abx"
SCALED = "--attr-scales=src:common:0.5+wei:per_oc+dst:common:2 --attr-zero-points=src:common:3+dst:common:4"
BF16, INT8 = (
    f"--target=avx512_amx --lane=oc --order=mb,oh,ow,oc --realise=pad_copy --instruction={words}"
    for words in ("tdpbf16ps_16 --k_step=ic:32", "tdpbusd_16 --k_step=ic:64")
)
LINES = [
    (f"--dt=bf16 {FIRST} mb2ic32ih5iw55oc48oh5ow55kh3kw3ph1pw1", BF16),
    (f"--dt=bf16 {FIRST} mb1ic32ih5iw30oc25oh5ow30kh3kw3ph1pw1", BF16),
    (f"--dt=bf16:bf16:f32 {FIRST} --attr-post-ops=sum+relu mb1ic32ih3iw35oc90oh3ow35kh3kw3ph1pw1", BF16),
    (f"--dt=u8:s8:u8 {FIRST} {SCALED} mb1ic64ih5iw55oc90oh5ow55kh3kw3ph1pw1", INT8 + " --offsets=sums"),
    (f"--dt=u8:s8:s32 {FIRST} mb1ic64ih5iw20oc33oh5ow20kh3kw3ph1pw1", INT8),
]


@needs_amx
@pytest.mark.sampled(4, "tile")
@pytest.mark.parametrize("tile", ["ow:32,oc:32", "ow:55,oc:16", "ow:16,oc:48"])
@pytest.mark.parametrize("line", range(len(LINES)))
def test_results_are_exact(line: int, tile: str) -> None:
    problem, words = LINES[line]
    verdict = cs.compile(problem, config=f"{words} --register={tile}", threads=1).verify()
    assert verdict.ok, verdict.detail


@needs_amx
@pytest.mark.sampled(2, "line")
@pytest.mark.parametrize(
    "line",
    [
        f"--dt=bf16 {FIRST} mb1ic3ih64oc64oh32kh7sh2ph3", f"--dt=u8:s8:u8 {FIRST} {SCALED} mb1ic3ih63oc64oh32kh7sh2ph3",
        f"--dt=bf16:bf16:f32 {FIRST} mb2ic4ih32oc40oh32kh3ph1",
    ],
)  # fmt: skip
def test_windows_of_channels_apart_are_exact(line: str) -> None:
    kernel = cs.compile(line, target="avx512_amx", threads=1)
    assert kernel.config.realise == "window_copy"
    verdict = kernel.verify()
    assert verdict.ok, verdict.detail


@pytest.mark.parametrize(("channels", "tile", "scattered"), [(16, "ow:64,oc:16", 0), (25, "ow:32,oc:32", 9)])
def test_whole_vectors_of_a_tail_are_transposed(channels: int, tile: str, scattered: int) -> None:
    """Of 112 pixels in tiles of 64, those of the last tile are not scattered either; of 25 channels, 9 are."""
    problem = parse_problem(f"--dt=bf16 {FIRST} mb1ic32ih5iw112oc{channels}oh5ow112kh3kw3ph1pw1")
    with interning():
        text = lower(plan(problem, Config.parse(f"{BF16} --register={tile}"), AMX)).text
    code = llvm_bind.assembly(text, AMX.triple, AMX.cpu, AMX.features)
    tiles = re.findall(r"^convsmith_tile.*?\tretq", code, re.MULTILINE | re.DOTALL)
    assert max(tile.count("vpextrw") for tile in tiles) == scattered


@pytest.mark.parametrize(
    ("line", "row"),
    [
        ("--dt=bf16 mb1ic3ih224oc64oh112kh7sh2ph3", "tdpbf16ps_12"),
        ("--dt=u8:s8:u8 mb1ic3ih227oc96oh55kh11sh4ph0", "tdpbusd_12"),
    ],
)
def test_windows_are_copied_where_channels_lie_apart(line: str, row: str) -> None:
    with interning():
        config = default_config(parse_problem(f"{FIRST} {line}"), AMX)
    assert config.realise == "window_copy" and config.instruction == row
