"""Medians of ratios within a round, alternation, and peers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.problem.conv import Conv
from convsmith.problem.reference import conv_reference
from convsmith.tune import measure as measure_module
from convsmith.tune.measure import Sampler, Spread, alternate, geometric_mean, measure, spread, wait_until_idle
from convsmith.tune.peers import PEERS, installed, peer_call


def test_a_sample_repeats_the_call_until_it_takes_long_enough() -> None:
    calls = []
    sampler = Sampler(lambda: calls.append(0), seconds=1e-3)
    before = len(calls)
    assert sampler.repeats > 100 and 0 < sampler() < 1e-4
    assert len(calls) - before > sampler.repeats


def test_subjects_take_turns_at_being_first() -> None:
    order: list[str] = []
    subjects = {name: (lambda name=name: order.append(name) or 1.0) for name in "abc"}  # type: ignore[misc]
    taken = alternate(subjects, rounds=3, settle=lambda: None)
    assert "".join(order) == "abcbcacab"
    assert taken == {name: [1.0] * 3 for name in "abc"}


def test_the_median_of_ratios_is_taken_within_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that slows down by half in the second round changes times, not ratios."""
    slow = [1.0, 2.0, 1.0]

    class Fake:
        def __init__(self, call: object) -> None:
            self.seconds, self.turn = call, -1  # type: ignore[var-annotated]

        def __call__(self) -> float:
            self.turn += 1
            return self.seconds() * slow[self.turn]  # type: ignore[no-any-return,operator]

    monkeypatch.setattr("convsmith.tune.measure.Sampler", Fake)
    turn = iter(slow)
    found = measure(lambda: 1e-3, 50e6, lambda: 100 / next(turn), {"other": lambda: 3e-3}, rounds=3)
    assert found.of_peak == Spread(0.5, 0.5, 0.5)
    assert found.peers["other"].speedup.median == pytest.approx(3)
    assert found.seconds.median == 1e-3 and found.seconds.high > 1e-3
    assert found.gflops.median == pytest.approx(50)


@pytest.mark.parametrize("spins", [0.0, 0.05, 10.0])
def test_a_sample_waits_for_threads_that_spin(monkeypatch: pytest.MonkeyPatch, spins: float) -> None:
    """On a clock of its own: until ``spins`` seconds have passed, the process uses all the time there is."""
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    clock = SimpleNamespace(perf_counter=lambda: now, process_time=lambda: min(now, spins), sleep=sleep)
    monkeypatch.setattr(measure_module, "time", clock)
    wait_until_idle()
    assert now == pytest.approx(min(spins, measure_module.SETTLE_SECONDS), abs=2e-3)


def test_spread_and_geometric_mean() -> None:
    assert spread([3.0]) == Spread(3, 3, 3)
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0]) == Spread(3, 2, 4)
    assert Spread(3, 2, 4).scaled(2) == Spread(6, 4, 8)
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4)
    assert geometric_mean([]) is None


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize(
    "line",
    [
        "mb2ic4ih9oc6kh3ph1", "mb1ic4ih9oc6kh3sh2ph1dh1", "--dir=FWD_B --attr-post-ops=relu g2mb1ic4iw9oc6kw3",
        "--attr-post-ops=clip:0:6 mb1ic2id5oc3kd3pd1", "mb1ic3ih8oc4oh4kh3sh2ph1",
        "--attr-post-ops=relu:0.5 ic2ih4oc2kh1",
    ],
)  # fmt: skip
def test_peers_compute_the_problem(name: str, line: str) -> None:
    for module in {"torch": ("torch",), "onnxruntime": ("onnxruntime", "onnx")}[name]:
        pytest.importorskip(module)
    problem = Conv.parse(line)
    rng = np.random.default_rng(0)
    x, w, b = (
        rng.integers(-4, 5, s).astype(np.float32) for s in (problem.src_shape, problem.wei_shape, problem.bias_shape)
    )
    bias = b if problem.bias else None
    result: Any = peer_call(name, problem, x, w, bias, 1)()
    np.testing.assert_array_equal(result.numpy(), conv_reference(problem, x, w, bias))


def test_what_a_library_cannot_do_is_said() -> None:
    pytest.importorskip("torch")
    problem = Conv.parse("mb1ic2ih8oc2oh8kh2ph0")
    x, w = np.zeros(problem.src_shape, np.float32), np.zeros(problem.wei_shape, np.float32)
    with pytest.raises(UnsupportedError, match="same pads"):
        peer_call("torch", problem, x, w, None, 1)


def test_an_unknown_library_is_named() -> None:
    with pytest.raises(UsageError, match=r"'xnnpack': legal are torch, onnxruntime"):
        installed("xnnpack")
