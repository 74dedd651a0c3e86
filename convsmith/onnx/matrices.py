"""Matrix products with the shape rules of numpy.matmul and ONNX, converted to the form of a `Matmul`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from convsmith.diag.errors import UsageError
from convsmith.layout.tags import MAX_DIMS
from convsmith.runtime.arrays import Array

__all__ = ["Product"]

Integers = NDArray[np.int32]


class Product:
    """Operands `a` (..., M, K) and `b` (..., K, N) of equal rank, and the shape of the result.

    As in numpy.matmul, a vector is a row on the left and a column on the right, and its dim is absent from the result.
    """

    def __init__(self, a_name: str, a: Array, b_name: str, b: Array) -> None:
        for name, array in ((a_name, a), (b_name, b)):
            if not 1 <= array.ndim <= MAX_DIMS:
                raise UsageError(
                    f"{name}: rank is {array.ndim}, shape {array.shape}; legal are 1 to {MAX_DIMS}", code="rank"
                )
        left, right = (a if a.ndim > 1 else a[None, :]), (b if b.ndim > 1 else b[:, None])
        rank = max(left.ndim, right.ndim)
        self.a, self.b = (x.reshape((1,) * (rank - x.ndim) + x.shape) for x in (left, right))
        self._ranks = (left.ndim, right.ndim)
        names = f"{a_name} of shape {a.shape} and {b_name} of shape {b.shape}"
        if self.a.shape[-1] != self.b.shape[-2]:
            raise UsageError(
                f"{names}: {a_name} has K={self.a.shape[-1]}, {b_name} has K={self.b.shape[-2]}; legal is the same",
                code="shape",
            )
        for m, n in zip(self.a.shape[:-2], self.b.shape[:-2]):
            if m != n and 1 not in (m, n):
                raise UsageError(
                    f"{names}: batch dims {m} and {n} do not meet; legal are equal ones, or 1", code="shape"
                )
        batch = np.broadcast_shapes(self.a.shape[:-2], self.b.shape[:-2])
        self._shape = (*batch, *self.a.shape[-2:-1][: a.ndim > 1], *self.b.shape[-1:][: b.ndim > 1])

    def rows(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        """Return `values` of `a`, one or one per row, in a shape that broadcasts against the result."""
        return self._along(name, values, self.a.shape, -2, self._ranks[0])

    def columns(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        """Return `values` of `b`, one or one per column, in a shape that broadcasts against the result."""
        return self._along(name, values, self.b.shape, -1, self._ranks[1])

    def points(self, a: Integers, b: Integers) -> tuple[Integers, Integers, NDArray[np.int64] | None]:
        """Return the zero points that a kernel can take (one for `a`, one or N for `b`) and a correction of its sums.

        Let A' and B' be the operands shifted by the kernel's zero points, and p and q the differences of the true zero
        points from them. Then sum (A' - p) * (B' - q) = sum A' * B' - p * sum B' - q * sum A' + K * p * q.
        """
        own_a, own_b = (_middle(x) if x.size > 1 and np.ptp(x) else x.flat[:1] for x in (a, b))
        if b.size == b.shape[-1]:
            own_b = b.reshape(-1)
        p, q = (x.astype(np.int64) - own for x, own in ((a, own_a), (b, own_b)))
        if not (p.any() or q.any()):
            return own_a, own_b, None
        k = self.a.shape[-1]
        rows = self.a.sum(-1, dtype=np.int64, keepdims=True) - k * own_a
        columns = self.b.sum(-2, dtype=np.int64, keepdims=True) - k * own_b
        return own_a, own_b, k * p * q - p * columns - q * rows

    def result(self, dst: Array) -> Array:
        """Return `dst` without the dims of vectors."""
        return dst.reshape(self._shape)

    def _along(self, name: str, values: NDArray[Any], shape: tuple[int, ...], axis: int, rank: int) -> NDArray[Any]:
        if values.size == 1 and values.ndim <= len(shape):
            return values.reshape((1,) * len(shape))
        whole = (1,) * (len(shape) - values.ndim) + values.shape
        if values.ndim == 1:
            whole = (*(1,) * (len(shape) - 2), *((values.size, 1) if axis == -2 else (1, values.size)))
        legal = [size if n in (len(shape) + axis, *range(len(shape) - 2)) else 1 for n, size in enumerate(shape)]
        if values.ndim not in (1, rank) or any(size not in (1, most) for size, most in zip(whole, legal, strict=True)):
            full = tuple(legal[len(shape) - rank :])
            raise UsageError(
                f"{name}: shape is {values.shape}; legal are one number, ({legal[axis]},), and {full} with 1 for any",
                code="shape",
            )
        return values.reshape(whole)


def _middle(values: Integers) -> Integers:
    """Return the midpoint of the range of `values`, which keeps the differences small."""
    return np.array([(int(values.min()) + int(values.max())) // 2], np.int32)
