"""Kinds of nests whose multiply-adds alone take too long are not tried, and that changes no default config."""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import inf
from typing import Any

import pytest
from problems import random_problem

from convsmith.machine.micro_architectures import MICRO_ARCHITECTURES
from convsmith.machine.x86.levels import LEVELS
from convsmith.problem import parse_problem
from convsmith.tune import candidates as module
from convsmith.tune.candidates import candidates, default_config
from convsmith.tune.nests import Nests

LEVEL = {t.name: t for t in LEVELS}
LAYER = "--stag=axb --dtag=axb mb1ic256ih56oc128oh56kh1ph0"


class Tried:
    """The number of kinds of nests that are tried; each choice takes at least as long as its multiply-adds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kinds = 0
        made = module._of_nests

        def noting(nests: Nests, *given: Any) -> Iterator[module._ModelledChoice]:
            self.kinds += 1
            for found in made(nests, *given):
                assert found.choice.cycles >= nests.model.multiplying() * (1 - 1e-9), found.choice.config
                yield found

        monkeypatch.setattr(module, "_of_nests", noting)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(40))
def test_no_config_takes_less_time_than_its_multiply_adds(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    p, tried = random_problem(rng, macs=3_000_000).canonical(), Tried(monkeypatch)
    for name in ("avx2", "avx512_amx"):
        candidates(p, LEVEL[name], 1)
    assert tried.kinds >= 2


@pytest.mark.sampled(6)
@pytest.mark.parametrize("direction", ["FWD_B", "BWD_D", "BWD_W"])
@pytest.mark.parametrize("types", ["bf16", "u8:s8:s32", "f16", "f32"])
@pytest.mark.parametrize("level", ["avx512_amx", "avx512_bf16", "avx2"])
def test_the_default_config_is_the_best_of_all_kinds(
    level: str, types: str, direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if types == "u8:s8:s32" and direction != "FWD_B":
        types = "f64"
    p = parse_problem(f"--dir={direction} --dt={types} {LAYER}").canonical()
    config = default_config(p, LEVEL[level])
    monkeypatch.setattr(module, "HOPELESS_RATIO", inf)
    assert default_config(p, LEVEL[level]) == config


def test_vectors_are_not_tried_where_fragments_multiply_several_times_as_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    p, tried = parse_problem(f"--dt=bf16 {LAYER}").canonical(), Tried(monkeypatch)
    default_config(p, LEVEL["avx512_amx"])
    few, tried.kinds = tried.kinds, 0
    candidates(p, LEVEL["avx512_amx"], 1)
    assert few < tried.kinds


def test_every_kind_is_tried_where_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    p, tried = parse_problem(f"--dt=bf16 --workspace=0 {LAYER}").canonical(), Tried(monkeypatch)
    default_config(p, LEVEL["avx512_amx"])
    few, tried.kinds = tried.kinds, 0
    candidates(p, LEVEL["avx512_amx"], 1)
    assert few == tried.kinds


@pytest.mark.parametrize(
    ("line", "target", "step"),
    [
        ("--dt=bf16 --stag=abx --dtag=abx mb1ic3ih224oc64oh112kh7sh2ph3", "avx512_bf16", ("kw", 2)),
        ("--dt=u8:s8:s32 --stag=abx --dtag=abx mb1ic3ih224oc64oh112kh7sh2ph3", "avx512_vnni", ("kw", 4)),
        ("--dt=bf16 --stag=abx --dtag=abx mb1ic3ih64oc32oh32kh3sh2ph1", "avx512_bf16", ("ic", 2)),  # three taps, too
        ("--dt=bf16 --stag=abx --dtag=abx mb1ic4ih64oc32oh64kh7ph3", "avx512_bf16", ("ic", 2)),  # channels leave none
    ],
)
def test_taps_of_a_row_are_terms_where_channels_leave_more_of_them_empty(
    line: str, target: str, step: tuple[str, int]
) -> None:
    """Seven taps are four pairs, one of 8 products is zero; three channels are two pairs, one of 4 (Zen 5: 0.87)."""
    config = default_config(parse_problem(line), LEVEL[target])
    assert config.tiles_at("k_step") == (step,)


@pytest.mark.parametrize(("line", "lane"), [
    ("--stag=axb --dtag=axb mb1ic64ih112oc3kh9ph4", "ic"),
    ("--stag=axb --dtag=axb mb1ic512ih28oc4kh1ph0", "ic"),
    ("--stag=abx --dtag=abx mb1ic64ih112oc3kh3ph1", "ow"),
    ("--dir=BWD_D --stag=axb --dtag=axb mb1ic3ih448oc64oh224kh7sh2ph2", "oc"),
    ("--deconv --stag=axb --dtag=axb mb1ic128ih56oc3oh224kh4sh4ph0", "ic"),
    ("--stag=axb --dtag=axb mb1ic64ih56oc16kh1ph0", "oc"),
], ids=["9x9", "1x1", "channels-first", "by-data", "deconvolution", "more-channels"])  # fmt: skip
def test_few_channels_of_a_result_have_vectors_along_something_else(line: str, lane: str) -> None:
    """On Zen 5, these kernels of up to four channels take 0.14 to 0.63 of the time of dot products of pairs."""
    machine = next(row for row in MICRO_ARCHITECTURES if row.name == "znver5").of(LEVEL["avx512_bf16"])
    config = default_config(parse_problem(f"--dt=bf16 {line}").canonical(), machine)
    assert config.lane == lane
