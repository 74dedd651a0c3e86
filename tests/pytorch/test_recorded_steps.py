"""Convolutions that autograd records: gradients of all subsets of the arguments, by kernels that were found before."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

torch = pytest.importorskip("torch")
ct = pytest.importorskip("convsmith.torch")

from convsmith.torch import convolve, steps  # noqa: E402

OPTIONS = {"stride": 2, "padding": 1}


def integers(*shape: int, last: bool = True) -> Any:
    generator = torch.Generator().manual_seed(sum(shape))
    values = torch.randint(-3, 4, shape, generator=generator).float()
    return values.to(memory_format=torch.channels_last) if last and len(shape) == 4 else values


def leaves(due: tuple[bool, ...] = (True, True, True), groups: int = 1) -> list[Any]:
    shapes = ((2, 8, 9, 7), (16, 8 // groups, 3, 3), (16,))
    return [integers(*shape).requires_grad_(wanted) for shape, wanted in zip(shapes, due)]


def gradients(function: Any, tensors: list[Any], **options: Any) -> list[Any]:
    y = function(*tensors, **OPTIONS, **options)
    y.backward(integers(*y.shape))
    taken = [t.grad for t in tensors]
    for t in tensors:
        t.grad = None
    return taken


@pytest.mark.sampled(2, "groups", "due")
@pytest.mark.parametrize("due", [x for x in product((False, True), repeat=3) if any(x)])
@pytest.mark.parametrize("groups", [1, 8])
def test_gradients_that_are_due(due: tuple[bool, ...], groups: int) -> None:
    tensors = leaves(due, groups)
    wanted = gradients(torch.nn.functional.conv2d, tensors, groups=groups)
    for _ in range(3):
        for ours, theirs in zip(gradients(ct.conv2d, tensors, groups=groups), wanted, strict=True):
            assert (ours is None) == (theirs is None)
            assert theirs is None or torch.equal(ours, theirs)


def test_later_steps_find_their_kernels_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = leaves()
    wanted = gradients(ct.conv2d, tensors)
    monkeypatch.setattr(steps, "conv_gradients", lambda *_: pytest.fail("the operators compute a gradient"))
    monkeypatch.setattr(convolve, "kept_kernel", lambda *_: pytest.fail("a kernel is looked up"))
    for ours, theirs in zip(gradients(ct.conv2d, tensors), wanted, strict=True):
        assert torch.equal(ours, theirs)


def test_a_gradient_of_one_value_for_all_pixels() -> None:
    tensors = leaves()
    ours, theirs = (f(*tensors, **OPTIONS).sum() for f in (ct.conv2d, torch.nn.functional.conv2d))
    for a, b in zip(torch.autograd.grad(ours, tensors), torch.autograd.grad(theirs, tensors)):
        assert torch.equal(a, b)


@pytest.mark.parametrize("moved", [2, 16])
def test_tensors_that_hooks_restore_in_another_order(moved: int) -> None:
    tensors = leaves()
    wanted = gradients(torch.nn.functional.conv2d, tensors)
    restored = lambda t: t.contiguous() if t.shape[0] == moved else t  # noqa: E731  # the source, or the weights
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), restored):
        found = gradients(ct.conv2d, tensors)
    for ours, theirs in zip(found, wanted, strict=True):
        assert torch.equal(ours, theirs)


def test_weights_that_change_are_rarely_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    packed, pack = [], convolve._KEPT._pack
    monkeypatch.setattr(convolve._KEPT, "_pack", lambda key, *rest: (packed.append(key), pack(key, *rest))[1])
    x, w = integers(1, 16, 5, 5), integers(32, 16, 3, 3)
    for _ in range(40):
        for _ in range(2):  # the second call would pack
            assert torch.equal(ct.conv2d(x, w), torch.nn.functional.conv2d(x, w))
        w.add_(1)
    assert 1 <= len(packed) <= 2
    for _ in range(70):
        ct.conv2d(x, w)
    assert len(packed) <= 3
    found = [entry for entry in convolve._KEPT._entries.values() if entry.tensor() is w]
    assert all(entry.packed is not None for entry in found)
