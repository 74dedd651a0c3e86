"""Whether threads can be started, and code that no GPU takes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from convsmith.codegen.artifact import Argument, Artifact, Entry
from convsmith.diag.errors import UnsupportedError
from convsmith.runtime import threads
from convsmith.runtime.cuda import code_for


def listed(*tasks: set[str]) -> Iterator[set[str]]:
    """The tasks of the process at each look: the last ones from then on."""
    yield from tasks
    while True:
        yield tasks[-1]


def test_a_trial_waits_until_the_system_has_taken_its_threads_off_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = listed({"1"}, {"1", "2", "3"}, {"1", "2", "3"}, {"1", "3"}, {"1"})
    monkeypatch.setattr(threads, "_tasks", lambda: next(looks))
    assert threads._can_start(2)


def test_a_trial_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = listed({"1"}, {"1", "2", "3"})
    monkeypatch.setattr(threads, "_tasks", lambda: next(looks))
    monkeypatch.setattr(threads, "_LONGEST_TRIAL", 0.01)
    assert not threads._can_start(2)


@pytest.mark.parametrize("target", ["avx2", "opencl", "sm_10"])
def test_code_of_other_targets_runs_on_no_gpu(target: str) -> None:
    artifact = Artifact(b"", target, {"main": Entry("k", (Argument("a", "in", "f32", (1,), "a", 1),))}, "k", "")
    with pytest.raises(UnsupportedError, match=f"code for {target}; legal are "):
        code_for(artifact, (9, 0))
