"""Phases of a strided result: which there are, where they differ, and when channels leave room for them."""

from __future__ import annotations

from itertools import pairwise, product

import pytest

from convsmith.arith.evaluate import evaluate
from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Var
from convsmith.ir.intern import interning
from convsmith.machine.x86.levels import LEVELS
from convsmith.problem import parse_problem
from convsmith.problem.conv import Conv
from convsmith.schedule.config import Config
from convsmith.schedule.kernel import kernel_plan
from convsmith.statement.phases import phased, phases
from convsmith.statement.views import statement
from convsmith.tune.candidates import default_config

TARGET = next(t for t in LEVELS if t.name == "avx512")
BOTH = "--deconv mb1ic4ih3iw3oc2oh9ow9kh3kw3sh3sw3"


@pytest.mark.sampled(6)
@pytest.mark.parametrize("pad", range(4))
@pytest.mark.parametrize("taps", [2, 4, 5, 7, 8, 11])
@pytest.mark.parametrize("pixels", [5, 9, 12, 13, 15])
def test_a_run_ends_where_something_differs(pixels: int, taps: int, pad: int) -> None:
    """Within a run, phases meet the same pixels of the source at as many taps, and are met in as many places."""
    stride = 4
    size = (pixels + pad) // stride + 2
    problem = parse_problem(f"--deconv mb1ic2iw{size}oc1ow{pixels}kw{taps}sw{stride}pw{pad}")
    with interning():
        phase = phases(statement(problem, TARGET))["ow"]

    def facts(r: int) -> tuple[int, int, int]:
        return (r + pad) // stride, len(range((r + pad) % stride, taps, stride)), len(range(r, pixels, stride))

    assert (phase.stride, phase.moved, phase.count) == (stride, pad, min(stride, pixels))
    starts = (0, *phase.cuts)
    for a, b in pairwise(starts):
        assert len({facts(r) for r in range(a, b)}) == 1


@pytest.mark.sampled(8)
@pytest.mark.parametrize("pad", range(3))
@pytest.mark.parametrize("dilation", range(5))
@pytest.mark.parametrize("taps", [1, 2, 3, 5])
@pytest.mark.parametrize("stride", [2, 3, 4, 6])
def test_sparse_phases_meet_each_tap_once(stride: int, taps: int, dilation: int, pad: int) -> None:
    """At the pixels of a phase, the taps of its class read the pixels of the source that the stride permits."""
    size, apart = 3 + pad, dilation + 1
    pixels = (size - 1) * stride + (taps - 1) * apart + 1 - 2 * pad
    if pixels < 1:
        pytest.skip("no pixels")
    problem = parse_problem(f"--deconv mb1ic2iw{size}oc1ow{pixels}kw{taps}sw{stride}dw{dilation}pw{pad}")
    with interning():
        st = statement(problem, TARGET)
        phase = phases(st, sparse=True).get("ow")
        assert phase is not None and phase.sparse == ("ow" not in phases(st))
        made = phased(st, ("ow",), sparse=True)
        sizes, met = made.extents, set()
        for r, x, k in product(range(phase.count), range(sizes["ow"]), range(sizes["kw"])):
            at = {Var(n): v for n, v in (("rw", r), ("ow", x), ("kw", k), ("mb", 0), ("ic", 0), ("oc", 0))}
            pixel, tap, source = (int(evaluate(v.coords[-1], at)) for v in (made.c, made.b, made.a))
            if pixel < pixels and tap < taps and (pixel + pad - tap * apart) % stride == 0:
                assert source * stride == pixel + pad - tap * apart
                met.add((pixel, tap))
    pairs = product(range(pixels), range(taps))
    assert met == {(x, k) for x, k in pairs if (x + pad - k * apart) % stride == 0}


@pytest.mark.parametrize(
    ("line", "words", "legal"),
    [
        ("mb1ic4iw5oc4ow5kw3pw1", "--lane=oc --phases=ow", "none here"),
        ("--deconv mb1ic4iw3oc4ow7kw3sw2dw1", "--lane=oc --phases=ow", "none here"),
        (BOTH, "--lane=rw --phases=iw", "oh, ow"),
        (BOTH, "--lane=rw --phases=ow,ow", "oh, ow"),
        (BOTH, "--lane=rw --phases=ow --realise=indirection", "has none"),
    ],
)
def test_what_has_no_phases_is_said(line: str, words: str, legal: str) -> None:
    config = Config.parse(f"--target=avx512 {words}")
    with interning(), pytest.raises(ConfigError, match=legal) as caught:
        kernel_plan(statement(parse_problem(line), TARGET), config, TARGET)
    assert caught.value.code == "phases" and f"--phases={','.join(config.phases)}" in str(caught.value)


@pytest.mark.parametrize(
    ("channels", "layout", "lane"),
    [(1, "abx", "rw"), (1, "axb", "rw"), (3, "abx", "rw"), (3, "axb", "rw_oc"), (16, "axb", "oc"), (64, "abx", "oc")],
)
def test_lanes_that_channels_fill_are_theirs(channels: int, layout: str, lane: str) -> None:
    problem = parse_problem(f"--deconv --stag={layout} --dtag={layout} mb1ic512iw50oc{channels}ow3200kw128sw64")
    assert isinstance(problem, Conv)
    config = default_config(problem, TARGET)
    assert config.lane == lane and bool(config.phases) == lane.startswith("rw")
