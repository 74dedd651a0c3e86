"""Numbers of threads: 1 to 1024 wherever one can be said, and an error that names the bound beyond."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from click.testing import CliRunner

import convsmith as cs
from convsmith.cli.main import main
from convsmith.codegen.artifact import Entry, host_launch
from convsmith.runtime.threads import default_threads
from convsmith.schedule.config import Config

LINE = "--stag=axb --dtag=axb mb2ic4ih6oc8oh6kh3ph1"
X = np.arange(2 * 4 * 6 * 6, dtype=np.float32).reshape(2, 4, 6, 6) % 7
W = np.arange(8 * 4 * 9, dtype=np.float32).reshape(8, 4, 3, 3) % 5
BYTES = np.arange(16, dtype=np.uint8).reshape(4, 4)

PLACES: dict[str, Callable[[int], object]] = {
    "compile": lambda n: cs.compile(LINE, threads=n),
    "dynamic": lambda n: cs.compile(LINE, threads=n, dynamic="mb"),
    "conv2d": lambda n: cs.conv2d(X, W, threads=n),
    "gemm_lowp": lambda n: cs.gemm_lowp(BYTES, BYTES, threads=n),
    "config": lambda n: cs.compile(LINE, config=f"--target=generic --lane=oc --threads={n}"),
    "scope": lambda n: cs.settings.scope(threads=n).__enter__(),
    "entry": lambda n: Entry("main", (), host_launch(n)),
}


@pytest.mark.parametrize("count", [0, -1, 1025, 40_000, 100_000, 1 << 70])
@pytest.mark.parametrize("place", list(PLACES))
def test_counts_beyond_the_bounds_are_refused(place: str, count: int) -> None:
    with pytest.raises((cs.UsageError, cs.ConfigError), match=rf"{count}\b.* 1 to 1024"):
        PLACES[place](count)


@pytest.mark.parametrize("command", ["bench", "verify", "explain", "show"])
def test_commands_refuse_them(command: str) -> None:
    result = CliRunner().invoke(main, [command, "mb1ic3ih8oc4oh6kh3ph0", "--threads", "1025"])
    assert result.exit_code == 2 and "1<=x<=1024" in result.output


@pytest.mark.parametrize("count", [2, 3, 17, 1024])
def test_counts_beyond_the_cpus(count: int) -> None:
    k = cs.compile(LINE, threads=count)
    np.testing.assert_array_equal(k(X, W), cs.compile(LINE, threads=1)(X, W))


def test_the_default_keeps_to_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(4096))
    assert default_threads() == Config("generic", "oc", threads=1024).threads
