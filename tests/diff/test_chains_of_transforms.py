"""Stages of chains that run alone use transforms: the results are within their bound, on any number of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import convsmith as cs
from convsmith.codegen.artifact import host_launch
from convsmith.machine.registry import target
from convsmith.measure.verification import verify_kernel
from convsmith.problem import parse_problem
from convsmith.problem.fusion import stages_of
from convsmith.tune.chains import joints
from convsmith.tune.stage_configs import StageConfigs

TWICE = (
    "--stag={tag} --dir=FWD_B --attr-post-ops=relu mb2ic16ih28oc32oh28kh3ph1 -> --dtag={tag} mb2ic32ih28oc16oh28kh3ph1"
)
MIXED = (
    "--stag=axb --attr-post-ops=relu mb1ic24ih30oc48oh30kh1 -> --attr-post-ops=relu mb1ic48ih30oc24oh30kh3ph1 -> "
    "--dtag=axb --attr-post-ops=sum:src mb1ic24ih30oc24oh30kh1"
)
"""Chains whose 3x3 stages are faster by a transform."""


@pytest.mark.sampled(6)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("line", [TWICE.format(tag="axb"), TWICE.format(tag="abx"), MIXED], ids=["axb", "abx", "mixed"])
def test_stages_alone_use_transforms(line: str, threads: int) -> None:
    kernel = cs.compile(line, target="avx2", threads=threads)
    assert any(stage.tiles_at("winograd") for stage in kernel.config.stages)
    assert len(kernel.transforms) == sum(bool(stage.tiles_at("winograd")) for stage in kernel.config.stages)
    entries = kernel.artifact.entries
    assert all(entries[name].launch == host_launch(threads) for name in ("stage1", "main"))
    for real in (False, True):
        verdict = verify_kernel(kernel, real=real)
        assert verdict.ok, verdict.detail


def test_any_stage_alone_may_have_a_transform() -> None:
    line = TWICE.format(tag="axb")
    both = cs.compile(line, target="avx2", threads=1).config.stages
    strict = str(parse_problem(line).without_transforms())
    plain = cs.compile(strict, target="avx2", threads=1).config.stages
    assert verify_kernel(cs.compile(strict, target="avx2", threads=1)).detail == "exact"
    for configs in ((both[0], plain[1]), (plain[0], both[1])):
        kernel = cs.compile(line, config=" / ".join(map(str, configs)))
        assert len(kernel.transforms) == 1 and verify_kernel(kernel).ok


@pytest.mark.parametrize("tag", ["axb", "abx"])
def test_the_keyword_accuracy_holds_for_every_stage(tag: str) -> None:
    line = TWICE.format(tag=tag)
    kernel = cs.compile(line, target="avx2", threads=1, accuracy="strict")
    assert not kernel.transforms and kernel.problem == parse_problem(line).without_transforms()
    assert verify_kernel(kernel).detail == "exact"
    some = TWICE.format(tag=tag).replace("-> ", "-> --accuracy=strict ")
    assert cs.compile(some, target="avx2", threads=1, accuracy="strict").problem == kernel.problem
    with pytest.raises(cs.UsageError, match="says --accuracy=strict, the keyword any; legal is one of them"):
        cs.compile(some, accuracy="any")
    every = cs.compile(line, target="avx2", threads=1, accuracy="any").problem
    assert str(every).count("--accuracy=any") == 2


@pytest.mark.parametrize(
    ("keyword", "value", "option"),
    [("bias", True, "--dir=FWD_B"), ("activation", "relu", "--attr-post-ops"), ("wei_tag", "abx", "--wtag")],
)
def test_keywords_of_one_stage_are_refused(keyword: str, value: Any, option: str) -> None:
    with pytest.raises(cs.UsageError, match=f"{keyword} is of one stage; legal in a chain is {option} in its line"):
        cs.compile(MIXED, **{keyword: value})


def test_infinite_weights_meet_no_stored_zeros() -> None:
    kernel = cs.compile(TWICE.format(tag="axb"), target="avx2", threads=1)
    assert kernel.artifact.limits.keys() == {"wei_1", "wei_2"}
    arrays = {a.name: np.zeros(a.shape, np.float32) for a in kernel.arguments if a.role == "in"}
    arrays["wei_2"][0, 0] = np.inf
    result = kernel.run(**arrays)["dst"]
    assert np.isnan(result[:, 0]).all() and not result[:, 1:].any()


def test_fusing_gives_way_to_a_transform() -> None:
    chain = parse_problem("--stag=axb mb1ic64ih112oc64oh112kh3ph1 -> --dtag=axb mb1ic64ih112oc64oh112kh3ph1")
    found = []
    for problem in (chain, chain.without_transforms()):
        stages = stages_of(problem)
        assert stages is not None
        found += joints(stages, StageConfigs(target("avx512")))
    assert [joint.fused for joint in found] == [False, True]
    assert found[0].why.startswith("a transform saves products of stage 1 and 2")
