"""Weights that come again are not packed again, and never read from memory after a byte of them has changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import convsmith as cs
from convsmith.problem.conv import Conv
from convsmith.problem.reference import conv_reference
from convsmith.runtime.kept import KeptWeights

Array = np.ndarray[Any, Any]
LINE = "mb1ic5ih6oc20kh3ph1"


def arrays(seed: int = 0) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    shapes = (1, 5, 6, 6), (20, 5, 3, 3), (20,)
    x, w, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in shapes)
    return x, w, b


def check(x: Array, w: Array, b: Array | None = None) -> None:
    y = cs.conv2d(x, w, b, padding=1, threads=1)
    with np.errstate(invalid="ignore"):
        expected = conv_reference(Conv.parse(f"--stag=abx --dtag=abx {LINE}"), x, w)
    np.testing.assert_array_equal(y, expected if b is None else expected + b[:, None, None])


class Packer:
    """Packs by a kernel, and counts how often."""

    def __init__(self) -> None:
        self.kernel, self.count = cs.compile(f"--stag=abx --dtag=abx {LINE}", threads=1), 0

    def __call__(self, kept: KeptWeights, w: Array) -> Any:
        def pack() -> Any:
            self.count += 1
            return self.kernel.pack(w)

        return kept.packed("packing", w, None, pack)


def test_weights_are_packed_into_memory_at_the_second_call_only() -> None:
    kept, pack, (_, w, _) = KeptWeights(1 << 20), Packer(), arrays()
    assert pack(kept, w) is None and not kept.bytes
    first = pack(kept, w)
    assert first is not None and all(pack(kept, w) is first for _ in range(3)) and pack.count == 1
    assert kept.bytes == w.nbytes + first.buffer.nbytes
    assert pack(kept, w.copy()) is None and pack.count == 1


@pytest.mark.parametrize("place", [(0, 0, 0, 0), (7, 3, 1, 2), (19, 4, 2, 2)])
def test_weights_with_a_changed_byte_are_packed_anew(place: tuple[int, ...]) -> None:
    kept, pack, (_, w, _) = KeptWeights(1 << 20), Packer(), arrays()
    w[place] = 0.0
    before = [pack(kept, w) for _ in range(3)]
    w[place] = -0.0
    assert pack(kept, w) is None and not kept.bytes
    after = pack(kept, w)
    assert after is not None and after is not before[-1] and pack(kept, w) is after and pack.count == 2


def test_the_last_ones_used_are_kept_within_the_limit() -> None:
    pack, weights = Packer(), [arrays(seed)[1] for seed in range(3)]
    room = KeptWeights(1 << 20)
    size = [pack(room, weights[0]) for _ in range(2)][-1].buffer.nbytes + weights[0].nbytes
    kept = KeptWeights(2 * size)
    a, b = ([pack(kept, w) for _ in range(2)][-1] for w in weights[:2])
    assert kept.bytes == 2 * size and pack(kept, weights[0]) is a
    assert [pack(kept, weights[2]) for _ in range(2)][-1] is not None and kept.bytes == 2 * size
    assert pack(kept, weights[0]) is a and pack(kept, weights[1]) is None and b is not None


def test_strided_weights_are_not_kept() -> None:
    kept, pack, (_, w, _) = KeptWeights(1 << 20), Packer(), arrays()
    apart = np.repeat(w, 2, axis=3)[..., ::2]
    assert all(pack(kept, apart) is None for _ in range(3))


def test_a_call_sees_every_change_of_weights_and_bias() -> None:
    x, w, b = arrays()
    owner = w
    view = owner[:]
    view.flags.writeable = False
    for n in range(12):
        check(x, view, b if n % 2 else None)
        if n % 3 == 2:
            owner[n, n % 5, 1, 1] += 1
        if n % 4 == 3:
            b[n] -= 2


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_weights_that_stop_being_finite_never_meet_the_padding(bad: float) -> None:
    x, w, _ = arrays()
    for value in (1.0, 1.0, 1.0, bad, bad, bad, 2.0, 2.0):
        w[0, 0, 0, 0] = value
        check(x, w)


def test_weights_in_other_orders_of_memory_at_one_place_are_other_weights() -> None:
    x, w, _ = arrays()
    memory = np.empty(w.size, np.float32)
    first, last = memory.reshape(w.shape), memory.reshape(20, 3, 3, 5).transpose(0, 3, 1, 2)
    for _ in range(3):
        for view in (first, last):
            view[...] = w
            check(x, view)
            check(x, view)
