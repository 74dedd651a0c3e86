"""A wish gets the best expected config that can have its values, on every CPU that is known, or one error."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pytest

import convsmith as cs
from convsmith.diag.errors import ConfigError, UsageError
from convsmith.ir.intern import interning
from convsmith.machine.base import Machine
from convsmith.machine.micro_architectures import MICRO_ARCHITECTURES, named
from convsmith.machine.registry import device_targets, known_targets
from convsmith.measure.verification import verify_kernel
from convsmith.problem import parse_problem
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.planned import plan_for
from convsmith.schedule.wish import Wish, read_decisions
from convsmith.tune import wishes
from convsmith.tune.compile import choose
from convsmith.tune.wishes import refusal, wished

LAYER = "--stag=axb --dtag=axb mb1ic64ih14oc64oh14kh3ph1"
CHAIN = "mb1ic16ih14oc32oh14kh3ph1 -> mb1ic32ih14oc16oh14kh1ph0"
LINES = {
    "winograd-axb": LAYER,
    "winograd-abx": "mb1ic64ih28oc64oh28kh3ph1",
    "blocked": "--stag=aBx16b --dtag=aBx16b mb1ic64ih14oc64oh14kh3ph1",
    "depthwise": "--stag=axb --dtag=axb g32mb1ic32ih14oc32oh14kh3ph1",
    "one-tap": "--stag=axb --dtag=axb mb1ic64ih14oc128oh14kh1ph0",
    "bytes": "--stag=axb --dtag=axb --dt=u8:s8:s32 mb1ic32ih9oc32oh9kh3ph1",
    "by-data": "--dir=BWD_D --stag=axb --dtag=axb mb1ic32ih14oc32oh14kh3ph1",
    "by-weights": "--dir=BWD_W --stag=axb --dtag=axb mb2ic16ih9oc32oh9kh3ph1",
    "chain": CHAIN,
}
ANYWHERE = (
    "--realise=peel", "--realise=mask", "--winograd=", "--pack=", "--spill_sums=yes", "--pieces=3", "--outline=no",
    "--register=", "--order=", "--reduce=", "--k_step=", "--fuse=", "--split=", "--instruction=",
)  # fmt: skip
"""Wishes that some config of every problem grants."""
FORWARD = (
    "--realise=pad_copy", "--realise=indirection", "--table=row", "--table=column", "--lane=ow", "--lane=ic",
    "--reduce=ic,kh,kw", "--cache=oc:32", "--register=oc:32",
)  # fmt: skip
"""Wishes that some config of every forward convolution with channels grants."""
ELSEWHERE = (
    "--group=oc:32", "--shared=src", "--pad=src:2", "--swizzle=src:2", "--vectors=oc:2", "--buffers=2",
    "--copies=async", "--barriers=split", "--rounds=yes", "--load_ahead=yes",
    "--join=atomic", "--remainder=oc:8", "--lane=rw", "--instruction=dpas", "--flip=src,wei",
)  # fmt: skip
"""Wishes that no config of these problems grants on a CPU."""


@pytest.fixture(autouse=True)
def _ranked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wishes, "_candidates", _candidates)


_candidates = lru_cache(wishes._candidates)
_default = lru_cache(choose)


def level(row: str, isa: str = "avx512") -> Machine:
    return named(row).of(next(t for t in known_targets() if t.name == isa))


def granted(problem: Problem, text: str, target: Machine) -> Config:
    """The first config with the values that a plan accepts."""
    wish = read_decisions(text)
    assert isinstance(wish, Wish)
    refused: dict[Config, ConfigError] = {}
    with interning():
        for config in wished(problem, wish, _default(problem, target, 1, False), target):
            try:
                plan_for(problem, config, target)
            except ConfigError as error:
                refused[config] = error
            else:
                assert wish.missing(config) == 0
                return config
    raise refusal(problem, wish, target, refused)


def legal(name: str) -> Sequence[str]:
    has_all = name not in ("by-weights", "by-data", "depthwise", "bytes", "chain")
    return (*ANYWHERE, *(FORWARD if has_all else FORWARD[:4] if name in ("depthwise", "bytes", "chain") else ()))


@pytest.mark.sampled(8, "row")
@pytest.mark.parametrize("row", [row.name for row in MICRO_ARCHITECTURES])
@pytest.mark.parametrize("name", LINES)
def test_each_option_alone(name: str, row: str) -> None:
    problem, target = parse_problem(LINES[name]).canonical(), level(row)
    for text in legal(name):
        granted(problem, text, target)
    for text in ELSEWHERE:
        with pytest.raises(ConfigError) as found:
            granted(problem, text, target)
        assert str(found.value).startswith(f"no config of {problem} for avx512 can have {text}: ")


@pytest.mark.sampled(9)
@pytest.mark.parametrize("row", [row.name for row in MICRO_ARCHITECTURES])
@pytest.mark.parametrize("name", LINES)
def test_a_default_that_has_the_values_stays(name: str, row: str) -> None:
    problem, target = parse_problem(LINES[name]).canonical(), level(row)
    default = _default(problem, target, 1, False)
    for word in str(default.stages[-1]).split():
        field = word.partition("=")[0]
        if all(word in str(stage).split() for stage in default.stages) and field not in ("--target", "--threads"):
            assert granted(problem, word, target) == default


def test_transforms_give_way_to_the_best_sum_of_products() -> None:
    problem, target = parse_problem(LAYER).canonical(), level("znver4")
    assert _default(problem, target, 1, False).tiles_at("winograd")
    best = next(config for config in _candidates(problem, target, 1) if not config.tiles_at("winograd"))
    assert granted(problem, "--winograd=", target) == best
    smaller = next(
        config for config in _candidates(problem, target, 1) if dict(config.tiles_at("winograd")) == {"oh": 2, "ow": 2}
    )
    assert granted(problem, "--winograd=oh:2,ow:2", target) == smaller
    tabled = granted(problem, "--realise=indirection", target)
    assert tabled.lane == best.lane and not tabled.tiles_at("winograd")


def test_loops_of_other_names_need_a_config_without_tiles() -> None:
    problem, target = parse_problem(LAYER).canonical(), level("znver4")
    assert not any(config.fuse == (("oh", "ow"),) for config in _candidates(problem, target, 1))
    assert granted(problem, "--fuse=oh+ow", target).order == ()


def test_a_chain_has_the_values_in_its_stages() -> None:
    problem, target = parse_problem(CHAIN).canonical(), level("znver4")
    assert [c.lane for c in granted(problem, "--lane=ow", target).stages] == ["ow", "ow"]
    assert [c.realise for c in granted(problem, "--realise=indirection / --realise=mask", target).stages] == [
        "indirection", "mask",
    ]  # fmt: skip
    assert granted(problem, "--compute_at=oh", target).compute_at == "oh"
    with pytest.raises(ConfigError, match="3 statements, the kernel has 2"):
        granted(problem, "--lane=ow / --lane=ow / --lane=ow", target)


@pytest.mark.parametrize("text", ["--lane=ow", "--lane=oc / --lane=ow"])
def test_a_stage_does_not_pack_the_result_of_another(text: str) -> None:
    """Alone, the second convolution packs its source, of which vectors along a row read every other pixel."""
    stages = "mb1ic16ih14oc32oh14kh3ph1", "--stag=axb mb1ic32ih14oc16oh7kh1sh2ph0"
    target = level("znver4")
    assert "src" in granted(parse_problem(stages[1]).canonical(), "--lane=ow", target).staged("pack")
    config = granted(parse_problem(" -> ".join(stages)).canonical(), text, target)
    assert config.stages[1].lane == "ow" and "src" not in config.stages[1].staged("pack")


def test_a_device_has_its_own_fields() -> None:
    problem, target = parse_problem(LAYER).canonical(), next(t for t in device_targets() if t.name == "sm_80")
    assert granted(problem, "--pad= --realise=mask --shared= --copies=wait --buffers=1", target).staged("shared") == ()
    with pytest.raises(ConfigError, match=r"can have --realise=peel: .*legal on"):
        granted(problem, "--realise=peel", target)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("line", [LAYER, CHAIN, LINES["depthwise"], LINES["bytes"]])
@pytest.mark.parametrize("text", ["--realise=indirection", "--realise=mask", "--lane=oc --pack="])
def test_kernels_of_wishes_are_exact(line: str, text: str) -> None:
    text = text.replace("--lane=oc", "--lane=g") if line == LINES["depthwise"] else text
    k = cs.compile(line, threads=1, config=text)
    wish = read_decisions(text)
    assert isinstance(wish, Wish) and wish.missing(k.config) == 0
    assert verify_kernel(k).ok


def test_a_call_says_target_and_threads_or_the_text_does() -> None:
    assert cs.compile(LAYER, threads=1, config="--target=avx2").config == cs.compile(
        LAYER, threads=1, target="avx2"
    ).config  # fmt: skip
    assert cs.compile(LAYER, config="--threads=2 --realise=mask").config.threads == 2
    assert cs.compile(LAYER, config="--threads=2 --realise=mask", threads=1).config.threads == 1
    assert cs.compile(LAYER, target="avx2", config="--realise=mask").config.target == "avx2"
    with pytest.raises(UsageError, match="target='avx2', but the config says --target=avx512"):
        cs.compile(LAYER, target="avx2", config="--target=avx512 --realise=mask")


def test_sizes_of_calls_take_a_wish() -> None:
    k = cs.compile(LAYER, dynamic="mb,ih,iw", threads=1, config="--realise=mask")
    assert k.config.realise == "mask"
    x, w = np.ones((2, 64, 5, 6), np.float32), np.ones((64, 64, 3, 3), np.float32)
    assert k(x, w)[0, 0, 2, 2] == 64 * 9
