"""Convolutions with relaxed sums: transforms where calls that bring their weights are measured to be faster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
ct = pytest.importorskip("convsmith.torch")

from convsmith.diag.settings import settings  # noqa: E402
from convsmith.torch import convolve, steps, transforms  # noqa: E402
from convsmith.torch.choice import Times  # noqa: E402

FASTER, SLOWER = Times(2.0, 1.0, False), Times(1.0, 1.0, False)
"""Times of a direct kernel and one with transforms."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Yield what is timed, by no clock: transforms take half the time."""
    named: list[str] = []
    monkeypatch.setattr(transforms, "kept_times", lambda what, *_: (named.append(what), FASTER)[1])
    for kept in (convolve.prepared, steps._step):
        kept.cache_clear()
    yield named
    for kept in (convolve.prepared, steps._step):
        kept.cache_clear()


def tensors(k: int = 3) -> list[Any]:
    torch.manual_seed(1)
    x, w = torch.randn(2, 64, 14, 14), torch.randn(32, 64, k, k) * 0.1
    return [t.to(memory_format=torch.channels_last).requires_grad_() for t in (x, w)]


def gradients(function: Any, leaves: list[Any], **options: Any) -> list[Any]:
    y = function(*leaves, **options)
    return [y, *torch.autograd.grad(y, leaves, torch.ones_like(y).mul(0.5))]


def test_gradients_by_transforms(asked: list[str]) -> None:
    leaves, before = tensors(), torch.get_rng_state()
    wanted = gradients(torch.nn.functional.conv2d, leaves, padding=1)
    with settings.scope(accuracy="relaxed"):
        for _ in range(2):
            found = gradients(ct.conv2d, leaves, padding=1)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert torch.equal(torch.get_rng_state(), before)
    assert [("--deconv" in what) for what in asked] == [False, True], "each kernel is timed once"
    strict = gradients(ct.conv2d, leaves, padding=1)
    assert len(asked) == 2 and not torch.equal(strict[0], found[0]), "strict sums are others"


def test_what_has_no_transform_is_not_timed(asked: list[str]) -> None:
    with settings.scope(accuracy="relaxed"):
        gradients(ct.conv2d, tensors(1))
        gradients(ct.conv2d, [t.detach().double().requires_grad_() for t in tensors()])
        assert ct.conv2d(torch.zeros(0, 64, 14, 14), tensors()[1]).shape == (0, 32, 12, 12)
    assert not asked


def test_slower_transforms_are_left_out(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transforms, "kept_times", lambda *_: SLOWER)
    leaves = tensors()
    strict = gradients(ct.conv2d, leaves, padding=1)
    with settings.scope(accuracy="relaxed"):
        found = gradients(ct.conv2d, leaves, padding=1)
    assert all(map(torch.equal, found, strict))


def test_infinite_weights(asked: list[str]) -> None:
    x, w = tensors()
    with torch.no_grad():
        w[3, 5, 1, 1] = torch.inf
        with settings.scope(accuracy="relaxed"):
            found = ct.conv2d(x, w, padding=1)
        wanted = torch.nn.functional.conv2d(x, w, padding=1)
    assert torch.equal(found.isinf(), wanted.isinf())


def test_kernels_are_timed_on_tensors_of_their_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    times = []
    for kept in (convolve.prepared, steps._step):
        kept.cache_clear()

    def measured(what: str, target: Any, measure: Any) -> Times:
        times.append(measure(2))
        return SLOWER

    monkeypatch.setattr(transforms, "kept_times", measured)
    with settings.scope(accuracy="relaxed"):
        gradients(ct.conv2d, tensors(), padding=1)
    assert len(times) == 2 and all(t.first > 0 and t.second > 0 for t in times)
