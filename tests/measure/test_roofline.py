from __future__ import annotations

import pytest

from convsmith.machine.registry import host_target
from convsmith.measure.ceilings import Figure
from convsmith.measure.roofline import Roofline, bytes_of_arrays, roofline
from convsmith.problem.lines import parse_problem

READ, PEAK = Figure(50.0, "2026-01-01", True), Figure(100.0, "2026-01-01", True)
F32 = ("f32",) * 3


@pytest.mark.parametrize(
    "flops,nbytes,peak,seconds,side",
    [
        (1000, 100, PEAK, 10e-9, "the multiply-adds"),
        (1000, 1000, PEAK, 20e-9, "the bytes"),
        (1000, 1000, None, 20e-9, "the bytes"),
        (0, 1000, PEAK, 20e-9, "the bytes"),
        (1000, 500, PEAK, 10e-9, "the multiply-adds"),
    ],
)
def test_the_longer_of_two_times_binds(
    flops: int, nbytes: int, peak: Figure | None, seconds: float, side: str
) -> None:
    roof = Roofline(flops, nbytes, "L2", READ, F32 if peak else None, peak)
    assert roof.seconds == pytest.approx(seconds) and roof.side == side
    assert roof.bound == pytest.approx(flops / seconds * 1e-9)


def test_the_roofline_of_a_problem_whose_taps_all_meet_padding() -> None:
    problem = parse_problem("mb1ic1ih1iw4oc16oh1ow2kh1kw1sw13ph0pw14")
    roof = roofline(problem, host_target("generic"), 1)
    assert roof.flops == problem.flops_real == 0 and roof.bound == 0 and roof.seconds > 0
    assert roof.nbytes == bytes_of_arrays(problem) == 4 * (4 + 16 + 32)
