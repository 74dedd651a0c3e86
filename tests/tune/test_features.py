"""Features count events without the price of any; one function times them by the prices of a machine."""

from __future__ import annotations

from dataclasses import fields, replace
from math import inf

import pytest

from convsmith.machine.base import Machine
from convsmith.machine.prices import LIMITS
from convsmith.machine.registry import known_targets
from convsmith.problem.lines import parse_problem
from convsmith.schedule.config import Config
from convsmith.tune.candidates import candidates
from convsmith.tune.costs.expected import expected_features
from convsmith.tune.costs.features import Section, cycles, overlapped, time, times

LEVELS = {level.name: level for level in known_targets("generic")}
AVX512 = LEVELS["avx512"]
ADD, L1 = AVX512.prices["multiply_add"], AVX512.prices["l1"]
PRODUCTS, LOADS = ("multiply-adds", (("multiply_add", 24),)), ("loads", (("l1", 40), ("l1", 2)))


def test_causes_of_a_section_overlap_and_sections_follow_one_another() -> None:
    both = time((Section(3, (PRODUCTS, LOADS)),), AVX512)
    assert sum(both.values()) == pytest.approx(3 * overlapped(24 * ADD, 42 * L1))
    apart = time((Section(3, (PRODUCTS,)), Section(3, (LOADS,)), Section(2, (LOADS,))), AVX512)
    assert apart == {"multiply-adds": pytest.approx(3 * 24 * ADD), "loads": pytest.approx(5 * 42 * L1)}
    assert max(24 * ADD, 42 * L1) * 3 < sum(both.values()) < sum(apart.values())


def test_the_longest_cause_hides_the_others_at_an_infinite_norm() -> None:
    long, short = ("long", (("multiply_add", 9),)), ("short", (("multiply_add", 8),))
    assert time((Section(2, (short, long), overlap=inf),), AVX512) == {"long": pytest.approx(18 * ADD)}


def test_a_section_is_slowed_down_by_the_fraction_that_a_ratio_applies_to() -> None:
    clash = AVX512.prices["clash"]
    (slow,) = time((Section(1, (PRODUCTS,), (("clash", 0.25),)),), AVX512).values()
    assert slow == pytest.approx(24 * ADD * (1 + 0.25 * (clash - 1)))


def test_kernels_that_follow_one_another_take_the_sum_of_their_cycles() -> None:
    kernel = Section(3, (PRODUCTS, LOADS)), Section(1, (("calls", (("call", 2),)),))
    assert cycles(times(kernel, 5), AVX512) == pytest.approx(5 * cycles(kernel, AVX512))


KINDS = [
    ("--stag=axb --dtag=axb mb1ic64ih14oc64oh14kh3ph1", "avx512"),
    ("mb1ic64ih14oc64oh14kh3ph1", "avx2"),
    ("--stag=axb --dtag=axb g64mb1ic64ih14oc64oh14kh3ph1", "avx2"),
    ("mb1ic256ih14oc256oh14kh1ph0", "avx512"),
    ("--dir=BWD_D --stag=axb --dtag=axb mb1ic16ih28oc32oh14kh3sh2ph1", "avx512"),
    ("--dir=BWD_W mb2ic32ih14oc32oh14kh3ph1", "avx2"),
    ("--dt=bf16 --stag=axb --dtag=axb mb1ic3ih32oc32oh16kh7sh2ph3", "avx512_amx"),
    ("--dt=bf16 --dir=BWD_W --stag=axb --dtag=axb mb2ic64ih14oc64oh14kh3ph1", "avx512_amx"),
    ("--dt=u8:s8:s32 --stag=axb --dtag=axb mb1ic64ih14oc64oh14kh3ph1", "avx512_vnni"),
]
"""Register tiles of vectors, transforms, windows, strided channels, gradients, copies of windows, packed factors."""


def dearer(level: Machine) -> Machine:
    """Return the level with every price 1.5 times as high."""
    now = {x.name: getattr(level.costs, x.name) for x in fields(level.costs) if x.type in ("float", "int")}
    other = {name: 1.5 * value for name, value in now.items() if name not in LIMITS}
    return replace(level, costs=replace(level.costs, **other))


@pytest.mark.parametrize(("line", "name"), KINDS)
def test_features_hold_no_price(line: str, name: str) -> None:
    """Otherwise a fit of the prices would have to count them again."""
    problem, level = parse_problem(line), LEVELS[name]
    for choice in candidates(problem, level, 1)[:8]:
        features = expected_features(problem, choice.config, level)
        assert features and features == expected_features(problem, choice.config, dearer(level)), choice.config
        assert cycles(features, dearer(level)) > cycles(features, level)


@pytest.mark.parametrize(("line", "name"), [x for x in KINDS if "amx" in x[1]])
def test_a_config_has_the_cycles_of_the_candidate_that_it_was(line: str, name: str) -> None:
    """A config does not say which nests it came from; copies of windows and packed factors are counted from it."""
    problem, level = parse_problem(line), LEVELS[name]
    found = [x for x in candidates(problem, level, 1) if x.config.instruction]
    assert any(x.config.realise == "window_copy" or len(x.config.packed) == 2 for x in found)
    for choice in found:
        features = expected_features(problem, choice.config, level)
        assert cycles(features, level) == pytest.approx(choice.cycles, rel=1e-6), choice.config
        terms = time(features, level)
        is_near = bool(choice.config.staged_at("pack_at"))
        assert (terms.get("padded copy", 0) > 0) == (choice.config.realise in ("window_copy", "pad_copy"))
        assert (terms.get("packing", 0) > 0) == (len(choice.config.packed) == 2)
        assert (terms.get("sums between blocks", 0) > 0) == is_near


@pytest.mark.parametrize("tile", ["kh_kw_ic:64", "oc:32", "oc:32,kh_kw_ic:128"])
def test_tiles_of_terms_and_of_lanes_copy_no_window_again(tile: str) -> None:
    fused = "--lane=oc --fuse=oh+ow,kh+kw,kh_kw+ic --register=oh_ow:32,oc:32 --order=mb,oh_ow,oc --reduce=kh_kw_ic"
    config = Config.parse(f"--target=avx512_amx {fused} --instruction=tdpbssd_16 --k_step=kh_kw_ic:64 "
                          f"--realise=window_copy")  # fmt: skip
    tiled = Config.parse(f"{config} --cache={tile}")
    problem, level = parse_problem("--dt=s8:s8:s32 --stag=axb --dtag=axb mb1ic64ih8oc64oh8kh3ph1"), LEVELS["avx512_amx"]
    copied = (time(expected_features(problem, c, level), level)["padded copy"] for c in (config, tiled))
    assert next(copied) == next(copied) > 0
