"""Schedules that users write as functions: right whatever they do, or refused where they do it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

import convsmith as cs
from convsmith.compiler import service
from convsmith.schedule.custom import KernelSchedule
from convsmith.schedule.library.finish import finish
from tests.cli.commands import run

ScheduleFunction = Callable[[KernelSchedule], object]
ONE_BY_ONE = "mb1ic5ih4oc20oh4kh1ph0"


def nothing(s: KernelSchedule) -> None:
    """Leave the naive nest as it is."""


def product(s: KernelSchedule) -> None:
    """A register tile of pixels by vectors of channels, whose weights are packed."""
    lanes = s.lanes
    pixels = s.fuse((s.loop("oh"), s.loop("ow")))
    channels, tile = s.tile(s.loop("oc"), 2 * lanes, "ot")
    vectors, lane = s.tile(tile, lanes, "vl")
    around, inner = s.tile(pixels, 3)
    s.reorder(channels, around, inner, vectors, lane)
    s.fission(inner, vectors, lane, room=((lane, lanes),))
    s.sink(inner, vectors, lane)
    s.pack("wei", room=((lane, lanes),))
    s.round_up(vectors, lane)
    s.unroll(inner, vectors, lane)
    finish(s, (lane,))


def made(line: str, schedule: ScheduleFunction, target: str = "avx2", bias: bool = False) -> cs.CompiledKernel:
    """Return the kernel of a line in channels last that a function schedules."""
    return cs.compile(line, schedule=schedule, target=target, threads=1, src_tag="axb", dst_tag="axb", bias=bias)


@pytest.mark.parametrize("schedule", [nothing, product])
@pytest.mark.parametrize(
    "line", [ONE_BY_ONE, "mb2ic3ih6oc17oh6kh3ph1", "--attr-post-ops=relu mb1ic4ih9oc8oh4kh3sh2ph0"]
)  # fmt: skip
def test_schedule_is_exact(line: str, schedule: ScheduleFunction) -> None:
    assert made(line, schedule, bias=True).verify().ok


def test_stale_handle_is_refused_with_what_replaced_it() -> None:
    def twice(s: KernelSchedule) -> None:
        oc = s.loop("oc")
        s.tile(oc, 8)
        s.tile(oc, 4)

    with pytest.raises(cs.ConfigError, match=r"tile: loop oc \(of 20\) is no more: tile\(oc, 8, oc.o, oc.i\) made"):
        made(ONE_BY_ONE, twice)


def test_cache_knows_a_kernel_by_its_rewrites(monkeypatch: pytest.MonkeyPatch) -> None:
    def tiled(size: int) -> ScheduleFunction:
        return lambda s: s.tile(s.loop("oc"), size)

    text = made(ONE_BY_ONE, tiled(4)).ir()
    monkeypatch.setattr(service, "_compile", None)
    assert made(ONE_BY_ONE, tiled(4)).ir() == text  # of another function that does the same
    with pytest.raises(cs.InternalError):
        made(ONE_BY_ONE, tiled(5))


def test_function_of_a_file_and_its_text(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def tiled(s):\n    s.tile(s.loop('oc'), 4)\n")
    text = f"--target=avx2 --schedule={file}:tiled"
    kernel = cs.compile(ONE_BY_ONE, config=text, threads=1)
    assert str(kernel.config) == text
    with pytest.raises(cs.UsageError, match="has no function 'tilde'; legal are tiled"):
        cs.compile(ONE_BY_ONE, config=f"--schedule={file}:tilde")
    verified = run("verify", ONE_BY_ONE, "--target", "avx2", "--schedule", f"{file}:tiled")
    assert "1 of 1 right" in verified.output


def test_kernel_can_be_pickled() -> None:
    again = pickle.loads(pickle.dumps(made(ONE_BY_ONE, product)))
    assert again.verify().ok
