"""The problems and option sets that oneDNN tests itself with, in every direction and type, under the default config.

Small problems run on the level that is the default here; the others, and the other levels, with `pytest -m slow`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import convsmith as cs
from convsmith.machine.registry import host_targets
from convsmith.measure.verification import verify_kernel
from convsmith.problem.conv import Conv
from convsmith.problem.lines import parse_problem
from convsmith.problem.problem import Problem

DATA = Path(__file__).parents[1] / "data"
LEVELS = [t.name for t in host_targets()]
SMALL = 2e6
"""Operations of a problem that takes some ten milliseconds."""

TYPES = {
    "FWD_B": ("bf16", "u8:s8:s32", "f16", "s8:s8:f32", "u8:s8:u8", "s8:s8:s8", "f32", "bf16:bf16:f32", "f64"),
    "BWD_D": ("f32", "bf16", "f16", "f32:bf16:bf16", "f64"),
    "BWD_W": ("f32", "bf16", "f16", "bf16:f32:bf16", "f64"),
    "BWD_WB": ("f32", "bf16", "f16", "f64"),
}
"""Types of each direction, which take turns."""


def read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((DATA / name).read_text())
    return content


def listed() -> list[Problem]:
    problems: list[Problem] = []
    for name, kind in (("oneDNN_problems.json", "--conv"), ("oneDNN_deconvolutions.json", "--deconv")):
        content = read(name)
        problems += [parse_problem(f"{kind} {row[content['columns'].index('desc')]}") for row in content["rows"]]
    return problems


LISTED = listed()
ATTRIBUTES = [row[0] for row in read("oneDNN_attr_cases.json")["rows"]]


def check(line: str, isa: str | None = None, threads: int = 1, seed: int = 0) -> None:
    verdict = verify_kernel(cs.compile(line, target=isa, threads=threads), seed)
    assert verdict.ok, f"{verdict.detail}: {line} on {isa or LEVELS[0]}"


def variant(number: int, direction: str, turn: int) -> str:
    problem = LISTED[number]
    kind = "--deconv " if isinstance(problem, Conv) and problem.deconv else ""
    tags = ("", " --stag=axb --dtag=axb", " --dtag=aBx16b")[turn % 3]
    types = TYPES[direction][turn % len(TYPES[direction])]
    return f"{kind}--dir={direction} --dt={types}{tags} {problem.descriptor()}"


def small(number: int) -> bool:
    return LISTED[number].flops_dense <= SMALL


def name_of(number: int) -> str:
    return str(LISTED[number].name or LISTED[number].descriptor())[:60]


@pytest.mark.sampled(84, "direction")
@pytest.mark.parametrize("direction", TYPES)
@pytest.mark.parametrize("number", list(filter(small, range(len(LISTED)))), ids=name_of)
def test_listed_small(number: int, direction: str) -> None:
    check(variant(number, direction, number), threads=1 + number % 2)


@pytest.mark.slow
@pytest.mark.parametrize("direction", TYPES)
@pytest.mark.parametrize("number", range(len(LISTED)), ids=name_of)
def test_listed_on_every_level(number: int, direction: str) -> None:
    for turn, isa in enumerate(LEVELS):
        for types in range(len(TYPES[direction]) if small(number) else 1):
            check(variant(number, direction, number + turn + types), isa)


def line_of(line: str) -> str:
    return line.partition('n"')[0][:100]


@pytest.mark.sampled(138)
@pytest.mark.parametrize("line", [x for x in ATTRIBUTES if parse_problem(x).flops_dense <= 25 * SMALL], ids=line_of)
def test_attributes(line: str) -> None:
    check(line)


@pytest.mark.slow
@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("line", ATTRIBUTES, ids=line_of)
def test_attributes_on_every_level(line: str, isa: str) -> None:
    check(line, isa, threads=2, seed=1)


# -- sizes at the edge
EDGES = read("oneDNN_edge_cases.json")


def edge(sizes: list[int], direction: str) -> Conv:
    mb, g, ic, ih, iw, oc, oh, ow, kh, kw, ph, pw, sh, sw = sizes
    return Conv(
        mb=mb, g=g, ic=ic, oc=oc, i=(ih, iw), o=(oh, ow), k=(kh, kw), p=(ph, pw), s=(sh, sw), d=(0, 0), dir=direction
    )


@pytest.mark.parametrize("direction", TYPES)
@pytest.mark.parametrize("sizes", EDGES["zero_size_legal"], ids=str)
def test_nothing_is_legal(sizes: list[int], direction: str) -> None:
    problem = edge(sizes, direction)
    verdict = verify_kernel(cs.compile(problem, threads=1))
    assert verdict.ok and verdict.total == sum(_count(t.shape) for t in problem.outputs)


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


@pytest.mark.parametrize("direction", TYPES)
@pytest.mark.parametrize("why,sizes", EDGES["must_be_refused"], ids=[why for why, _ in EDGES["must_be_refused"]])
def test_what_is_no_convolution_is_refused(why: str, sizes: list[int], direction: str) -> None:
    with pytest.raises(cs.UsageError) as caught:
        edge(sizes, direction)
    assert caught.value.code in ("bad-dim", "bad-groups")


SHAPES = {
    "negative-back-pads": "mb2ic3ih6iw7oc5oh2ow3kh2kw1sh3sw3ph0pw0",
    "taps-that-never-meet-the-input": "mb2ic3ih3iw2oc5oh3ow4kh5kw7ph2pw4",
    "kernel-larger-than-the-input": "mb1ic3ih2iw3oc5oh3ow3kh7kw5ph3pw2",
    "stride-above-kernel": "mb2ic3ih11iw9oc5oh3ow3kh2kw1sh4sw4ph0pw0",
    "stride-above-kernel-with-pads": "mb1ic3ih9iw9oc5oh4ow4kh3kw2sh4sw5ph2pw4",
    "pads-of-the-kernel": "mb1ic3ih4iw5oc5oh8ow10kh3kw3ph3pw4",
    "only-padding": "mb1ic3ih1iw1oc5oh2ow2kh1kw1sh3sw9ph1pw4",
    "holes-that-jump-over-the-input": "mb1ic3ih3iw4oc5oh3ow4kh3kw3dh4dw6ph5pw7",
    "groups": "g3mb1ic6ih5iw7oc9oh2ow3kh2kw3sh3sw2ph0pw0",
}


@pytest.mark.sampled(27, "isa")
@pytest.mark.parametrize("isa", LEVELS)
@pytest.mark.parametrize("direction", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_at_the_edge(shape: str, direction: str, isa: str) -> None:
    turn = list(SHAPES).index(shape) + LEVELS.index(isa)
    types = TYPES[direction][turn % len(TYPES[direction])]
    exchanged = str.maketrans("io", "oi")
    for kind, text in (("--conv", SHAPES[shape]), ("--deconv", SHAPES[shape].translate(exchanged))):
        check(f"{kind} --dir={direction} --dt={types} {text}", isa)
