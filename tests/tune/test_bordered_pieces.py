"""Loops over tiles of pixels have as many pieces as the borders of an image make, so that no tap is tested."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from convsmith.cli.main import main
from convsmith.machine.registry import target
from convsmith.problem import parse_problem
from convsmith.tune.candidates import default_config


@pytest.mark.parametrize(
    "line, pieces",
    [
        ("mb1ic8iw256oc16ow256kw11pw5", 8), ("mb1ic8iw256oc16ow256kw11dw4pw25", 11),
        ("mb1ic8iw256oc16ow256kw3dw30pw31", 13), ("mb1ic8iw512oc16ow256kw11sw2dw7pw40", 9),
        ("mb1ic8iw2048oc16ow2048kw11dw99pw500", 8), ("--dir=BWD_D mb1ic16iw256oc8ow256kw11dw4pw25", 11),
        ("--dir=BWD_D --stag=aBx16b --dtag=aBx16b g32mb2ic32iw560oc32ow560kw39pw19", 9),
    ],
)  # fmt: skip
def test_as_many_as_borders_make_and_not_too_many(line: str, pieces: int) -> None:
    config = default_config(parse_problem(line), target("avx2"), 1)
    assert (config.realise, config.pieces) == ("peel", pieces)


@pytest.mark.parametrize(
    "line",
    [
        "mb1ic8iw256oc16ow256kw11dw4pw25", "mb1ic8iw256oc16ow256kw11pw5",
        "--dir=BWD_D --stag=aBx16b --dtag=aBx16b g32mb2ic32iw560oc32ow560kw39pw19",
    ],
)  # fmt: skip
def test_no_tap_is_tested(line: str) -> None:
    options = ["--threads", "1", "--target", "avx2", "--accuracy", "strict"]  # transforms test taps of their sources
    shown = CliRunner().invoke(main, ["show", *line.split(), *options]).output
    assert "vfmadd" in shown and " if " not in shown
