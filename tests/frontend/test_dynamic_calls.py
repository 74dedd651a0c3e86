"""Calls of kernels whose sizes are known at the call: empty results, pads, names of dims, bound calls, inspection."""

from __future__ import annotations

import re

import numpy as np
import pytest

import convsmith as cs
from convsmith.frontend.kernel import CompiledKernel

EMPTY = [((0, 3, 5, 5), None), ((2, 3, 2, 2), 0), ((2, 3, 0, 0), None), ((2, 3, 0, 7), ((1, 2), 1)), ((0, 3, 0, 0), 1)]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("options", ["", "--dir=FWD_B --attr-post-ops=relu ", "--stag=abx --dtag=aBx16b "])
@pytest.mark.parametrize("shape, pads", EMPTY)
def test_empty_batches_and_results(options: str, shape: tuple[int, ...], pads: object) -> None:
    """Packed and plain weights serve them, and the result is what the reference makes of it."""
    k = cs.compile(f"{options}mb1ic3ih9oc4kh3ph1", dynamic="mb,ih,iw", threads=1)
    x, w = np.zeros(shape, np.float32), np.ones((4, 3, 3, 3), np.float32)
    bias = np.array([-1, 2, 3, 4], np.float32) if "FWD_B" in options else None
    got = k(x, k.pack(w, bias), pads=pads)  # type: ignore[arg-type]
    front, back = ((pads, pads) if isinstance(pads, int) else (1, 1)) if not isinstance(pads, tuple) else (None, None)
    ends = list(pads) if isinstance(pads, tuple) else [(front, back)] * 2
    ends = [(p, p) if isinstance(p, int) else p for p in ends]
    rows, columns = (n + a + b - 2 for n, (a, b) in zip(shape[2:], ends))
    blocked = "aBx16b" in options
    assert got.shape == ((shape[0], 1, rows, columns, 16) if blocked else (shape[0], 4, rows, columns))
    np.testing.assert_array_equal(got, k(x, w, bias, pads=pads))  # type: ignore[arg-type]
    if got.size and not blocked:
        value = np.zeros(4) if bias is None else np.maximum(bias, 0)
        np.testing.assert_array_equal(got, np.broadcast_to(value[:, None, None], got.shape))
    other = cs.compile("mb1ic3ih9oc4kh2ph1", dynamic="mb,ih,iw", threads=1)
    with pytest.raises(cs.UsageError, match="packed for another kernel"):
        k(x, other.pack(w[..., :2, :2].copy()), pads=pads)  # type: ignore[arg-type]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "pads",
    [1.0, True, "1", (1,), (1, 2, 3), -1, (1, -1), ((1, 2, 3), 1), {1: 2}, (1.0, 1), [[1, 1.0], 1], (True, 1),
     np.array([1.0, 1.0]), np.array(1), object(), ()],
)  # fmt: skip
def test_pads_that_are_no_pads(pads: object) -> None:
    """Refused also after a call with whole numbers that are equal to them, and have their hash."""
    k = cs.compile("mb1ic3ih9oc4kh3ph1", dynamic="mb,ih,iw", threads=1)
    x, w = np.zeros((1, 3, 5, 5), np.float32), np.ones((4, 3, 3, 3), np.float32)
    for legal in (1, (1, 1), ((1, 1), 1), [1, [1, 1]], np.int64(1), np.array([1, 1]), np.ones((2, 2), int), None):
        assert k(x, w, pads=legal).shape == (1, 4, 5, 5)  # type: ignore[arg-type]
    with pytest.raises(cs.UsageError, match=r"expected a whole number of at least 0, or one or \(front, back\)"):
        k(x, w, pads=pads)  # type: ignore[arg-type]


def test_the_named_bound_is_the_least_extent() -> None:
    for line in ("mb1ic3ih9oc4kh3ph1", "mb1ic3ih9oc4oh3kh4sh3ph1", "mb1ic3ih19oc4kh3dh2ph0"):
        k = cs.compile(line, dynamic="mb,ih,iw", threads=1)
        kernel = k.problem.wei_shape[2:]
        w = np.ones((4, 3, *kernel), np.float32)
        for pads in (0, ((1, 0), 2)):

            def rows(extent: int, pads: object = pads, k: CompiledKernel = k, w: np.ndarray = w) -> int:
                return int(k(np.zeros((1, 3, extent, 30), np.float32), w, pads=pads).shape[2])  # type: ignore[arg-type]

            least = k.problem.keff[0] - (1 if pads else 0)
            empty = max(0, least - k.problem.s[0])
            assert [rows(least), rows(least - 1), rows(empty)] == [1, 0, 0]
            for extent in range(empty):
                text = f"expected ih >= {least} (from {empty} on the result is empty)"
                with pytest.raises(cs.UsageError, match=re.escape(text)):
                    rows(extent)


def test_dims_are_a_text_or_names() -> None:
    want = cs.compile("mb1ic3ih9oc4kh3ph1", dynamic="mb,ih", threads=1)
    for names in (["mb", "ih"], ("ih", "mb"), {"mb", "ih"}, " ih , mb ", ["mb,ih"]):
        assert cs.compile("mb1ic3ih9oc4kh3ph1", dynamic=names, threads=1) is want
    for wrong in (True, 3, 1.5, b"mb", [1], ["mb", None], object()):
        with pytest.raises(cs.UsageError, match="legal is a text such as 'mb,ih,iw', or a list of names"):
            cs.compile("mb1ic3ih9oc4kh3ph1", dynamic=wrong)  # type: ignore[call-overload]


@pytest.mark.parametrize("x", [3, None, "x", [[1.0]], object()])
def test_a_source_that_is_no_array_is_refused(x: object) -> None:
    k = cs.compile("mb1ic3ih9oc4kh3ph1", dynamic="mb,ih,iw", threads=1)
    for call in (lambda: k(x, np.ones((4, 3, 3, 3), np.float32)), lambda: k.run(src=x, wei=np.ones((4, 3, 3, 3)))):
        with pytest.raises(cs.UsageError, match="src: expected an array"):
            call()


def test_bound_calls_and_inspection() -> None:
    k = cs.compile("mb1ic3ih9oc4kh3ph1", dynamic="mb,ih,iw", threads=1)
    rng = np.random.default_rng(0)
    w = k.pack(rng.integers(-4, 5, (4, 3, 3, 3)).astype(np.float32))
    for shape, pads in (((2, 3, 6, 7), None), ((1, 3, 5, 4), ((0, 2), 1)), ((0, 3, 5, 4), None)):
        x = rng.integers(-4, 5, shape).astype(np.float32)
        want = k(x, w, pads=pads)
        out = np.empty_like(want)
        again = k.bind(x, w, out, pads)
        for _ in range(2):
            out[...] = -1
            again()
            np.testing.assert_array_equal(out, want)
        x[...] = 1
        again()
        np.testing.assert_array_equal(out, k(x, w, pads=pads))
    assert "define" in k.llvm() and "convsmith_chunk" in k.asm()
    assert k.ir("naive").startswith("kernel ") and k.ir() == str(k.passes()[-1].kernel)
