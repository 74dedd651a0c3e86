"""Elements that a row of a window tile keeps at a time: pixels two taps apart read few of them again."""

from __future__ import annotations

import pytest

from convsmith.machine.registry import known_targets
from convsmith.problem import parse_problem
from convsmith.tune.candidates import default_config
from convsmith.tune.costs.windows import distinct_elements, elements_at_once

BYTES = "--dt=u8:s8:u8 --attr-scales=src:common:0.5+wei:per_oc+dst:common:2"


def kept(pixels: int, taps: int, step: int) -> int:
    """Return the maximum number of elements that are read before a tap ends, and again after it."""
    reads = [{n * step + tap for n in range(pixels)} for tap in range(taps)]
    return max(len(set().union(*reads[: n + 1]) & set().union(*reads[n:])) for n in range(taps))


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("taps", [2, 3, 7, 11])
def test_no_tap_keeps_more_elements(taps: int, step: int) -> None:
    for pixels in range(1, 15):
        assert kept(pixels, taps, step) <= elements_at_once(pixels, taps, step) <= distinct_elements(pixels, taps, step)


def test_depthwise_rows_of_many_taps_with_a_stride_are_straight_code() -> None:
    line = f"{BYTES} --stag=axb --dtag=axb g512mb1ic512ih41oc512oh16kh11sh2ph0"
    (level,) = (t for t in known_targets("intel-server") if t.name == "avx512_vnni")
    tile = dict(default_config(parse_problem(line).canonical(), level).tiles_at("register"))
    assert tile["kw"] == 11 and distinct_elements(tile["ow"], 11, 2) + tile["ow"] * tile["g"] // 16 >= 32
