from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from convsmith.diag.errors import UsageError
from convsmith.problem.chain import Chain
from convsmith.problem.conv import Conv
from convsmith.problem.lines import parse_problem
from convsmith.problem.suites import SUITES, suite
from convsmith.problem.suites.spaces import EVERY, SPACES, space, suite_in

Layer = tuple[int, int, int, int, int, bool]  # ic, oc, kernel, input size, stride, depthwise


def resnet50() -> Iterator[Layer]:
    yield 3, 64, 7, 224, 2, False
    channels, size = 64, 56
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            stride = 2 if block == 0 and width > 64 else 1
            yield channels, width, 1, size, 1, False
            yield width, width, 3, size, stride, False
            yield width, 4 * width, 1, size // stride, 1, False
            if block == 0:
                yield channels, 4 * width, 1, size, stride, False
            channels, size = 4 * width, size // stride


def mobilenet_v2() -> Iterator[Layer]:
    yield 3, 32, 3, 224, 2, False
    channels, size = 32, 112
    rows = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for expansion, out, blocks, first_stride in rows:
        for block in range(blocks):
            stride, hidden = first_stride if block == 0 else 1, channels * expansion
            if expansion > 1:
                yield channels, hidden, 1, size, 1, False
            yield hidden, hidden, 3, size, stride, True
            size //= stride
            yield hidden, out, 1, size, 1, False
            channels = out
    yield channels, 1280, 1, size, 1, False


def vgg16() -> Iterator[Layer]:
    channels, size = 3, 224
    for width, layers in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(layers):
            yield channels, width, 3, size, 1, False
            channels = width
        size //= 2


NETWORKS = {
    "resnet50": (resnet50, 23, "rn50"), "mobilenet_v2": (mobilenet_v2, 30, "mbv2"), "vgg16": (vgg16, 9, "vgg16"),
}  # fmt: skip
"""Layers in the order of the network, the number of different ones, and the prefix of their names."""


@pytest.mark.parametrize("name", list(NETWORKS))
def test_a_suite_lists_the_unique_convolutions_of_its_network(name: str) -> None:
    network, count, prefix = NETWORKS[name]
    expected = list(dict.fromkeys(network()))
    problems = suite(name)
    assert len(problems) == count
    layers = []
    for problem in problems:
        ((ic, oc, k, i, s, p), g) = (
            (problem.ic, problem.oc, problem.k[0], problem.i[0], problem.s[0], problem.p[0]),
            problem.g,
        )
        assert problem.mb == 1 and len({*problem.i}) == len({*problem.k}) == len({*problem.s}) == len({*problem.p}) == 1
        assert p == k // 2 and problem.o == ((i + 2 * p - k) // s + 1,) * 2
        assert g in (1, ic) and problem.has_groups == (g > 1)
        layers.append((ic, oc, k, i, s, g > 1))
        suffix = ("_s2" if s == 2 else "") + ("_dw" if g > 1 else "")
        assert problem.name is not None
        assert re.fullmatch(rf"{prefix}_{ic}-{oc}_k{k}_{i}{suffix}", problem.name)
    assert layers == expected


def test_unknown_suite() -> None:
    with pytest.raises(UsageError, match=f"unknown suite 'resnet51': legal are {', '.join(SUITES)}"):
        suite("resnet51")


def test_the_space_of_all_types() -> None:
    ways = suite_in(suite("resnet50"), SPACES[EVERY])
    kinds = {(problem.dir, problem.deconv, problem.dt[0], problem.dtag) for problem in ways}
    assert len(ways) == len(set(ways)) and len(suite("cliffs")) == 1551
    assert {dt for _, _, dt, _ in kinds} == {"f32", "bf16", "u8"}
    assert {tag for *_, tag in kinds} == {"axb", "abx", "aBx16b"}
    assert {(name, deconv) for name, deconv, *_ in kinds} == {
        ("FWD_D", False), ("BWD_D", False), ("BWD_W", False), ("FWD_D", True),
    }  # fmt: skip
    assert not any(problem.dt[0] == "u8" and problem.dir != "FWD_D" for problem in ways)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", SPACES)
def test_a_sample_of_a_space_is_drawn_by_its_seed(name: str) -> None:
    where, problems = SPACES[name], suite("cliffs")
    drawn = suite_in(problems, where, 20, 1)
    assert drawn == suite_in(problems, where, 20, 1) != suite_in(problems, where, 20, 2) and len(set(drawn)) == 20
    low, high = where.work
    assert all(low <= problem.flops_real / 2 < high for problem in drawn)
    assert all(parse_problem(str(problem)) == problem for problem in drawn)


def test_what_spaces_vary() -> None:
    problems = suite("cliffs")
    assert {problem.mb for problem in suite_in(problems, SPACES["batches"], 20)} == {16, 32}
    assert all(isinstance(problem, Chain) for problem in suite_in(problems, SPACES["chains"], 20))
    assert all(p.p == p.pr for p in suite_in(problems, SPACES["dynamic"], 20) if isinstance(p, Conv))
    drawn = suite_in(problems, SPACES["int8"], 20)
    assert all(p.scales and p.zero_points and p.dt == ("u8", "s8", "u8") for p in drawn)
    with pytest.raises(UsageError, match="unknown space 'f23': legal are every, f32"):
        space("f23")
