"""`gemm_lowp`: products of 8-bit matrices with offsets and gemmlowp's output stages, computed by `Matmul` kernels.

An offset is a negated zero point of the product; output stages become its post-ops. If the result is stored by columns,
the kernel computes the transposed product.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convsmith.diag.errors import UsageError
from convsmith.diag.expect import expect_word, integer, shown
from convsmith.diag.record import record
from convsmith.diag.settings import settings
from convsmith.frontend.arguments import as_numbers
from convsmith.frontend.kernel import CompiledKernel
from convsmith.frontend.numpy_api import KEPT_KERNELS, compile, watched
from convsmith.problem.attributes import Quantity
from convsmith.problem.integer_steps import LIMITS, wrapped
from convsmith.problem.low_precision import check_bits, check_reach, check_rounding, check_seed, drawn
from convsmith.problem.matmul import Matmul
from convsmith.problem.output_stages import AppliedStep, Stage, check_stages, result_type, stage_steps
from convsmith.problem.post_ops import Integer
from convsmith.runtime.arrays import Array, as_array, takes_arrays
from convsmith.runtime.border import Given, Names
from convsmith.runtime.threads import default_threads

__all__ = ["LowPrecisionProduct", "gemm_lowp", "pack_lowp"]

Integers = NDArray[np.int64]

_TYPES: dict[np.dtype[Any], str] = {np.dtype(np.uint8): "u8", np.dtype(np.int8): "s8"}
_MAX_ROWS = 2**40
_NAMES = Names({"src": "lhs", "wei": "rhs", "dst": "out"})
_SWAPPED = Names({"src": "rhs", "wei": "lhs", "dst": "out"})
_ORDERS = ("row", "column")
_CONSTANT = ("s32_shl", "s32_rshift", "s32_and", "s32_rescale", "s32_tanh")
"""Steps that a kernel takes as constants if each parameter is a single number."""


@takes_arrays
def gemm_lowp(
    lhs: Array, rhs: Array, lhs_offset: Any = 0, rhs_offset: Any = 0, *, output_stages: Sequence[Stage] = (),
    bits: tuple[int, int] = (8, 8), rounding: str = "nearest", seed: int = 0, order: str = "row",
    out: Array | None = None, threads: int | None = None,
) -> Array:  # fmt: skip
    """Return the product of lhs (M, K) and rhs (K, N), u8 or s8 each, in any storage order.

    An offset, a number or one per row of lhs or column of rhs, is *added* to the entries. `output_stages` are tuples
    such as `("fixed_point", mult, shift, offset)`, listed in `convsmith.problem.output_stages`; without them the result
    is s32. `bits` below 8 requantise the entries: `rounding` is "nearest", or "probabilistic" with random numbers from
    numpy's `default_rng(seed)`. The result is `out`, or a new array stored by rows or columns according to `order`.

    The result is exact to the bit. UsageError if shapes, types or numbers are not legal, or sums may overflow 32 bits.
    """
    key = _key(lhs, rhs, lhs_offset, rhs_offset, output_stages, bits, (rounding, seed, order, threads), out)
    known = _PLANS.get(key) if key is not None else None
    if known is not None:
        return known.run(lhs, rhs, out)
    plan = _planned(lhs, rhs, lhs_offset, rhs_offset, output_stages, bits, rounding, seed, order, out, threads)
    if key is not None:
        if len(_PLANS) >= KEPT_KERNELS:
            _PLANS.clear()
        _PLANS[key] = plan
    return plan.run(lhs, rhs, out)


@takes_arrays
def pack_lowp(
    rows: int, rhs: Array, lhs_offset: Any = 0, rhs_offset: Any = 0, *, lhs_type: Any = np.uint8,
    output_stages: Sequence[Stage] = (), bits: tuple[int, int] = (8, 8), rounding: str = "nearest", seed: int = 0,
    order: str = "row", threads: int | None = None,
) -> LowPrecisionProduct:  # fmt: skip
    """Return the product `gemm_lowp(lhs, rhs, ...)` as a callable on lhs of `rows` rows; rhs, offsets and stages are
    fixed.

    All work that does not depend on lhs is done here: rhs is packed and summed, and the stages are checked.
    """
    if not 0 <= integer("rows", rows) < _MAX_ROWS:
        raise UsageError(f"rows={shown(rows)} is not legal: expected 0 to {_MAX_ROWS - 1}", code="shape")
    dtype = next((known for known in _TYPES if _names(lhs_type, known)), None)
    if dtype is None:
        raise UsageError(f"lhs_type={shown(lhs_type)} is not legal: expected uint8 or int8", code="dtype")
    _check_rank("rhs", rhs)
    lhs = np.broadcast_to(dtype.type(0), (rows, rhs.shape[0]))
    plan = _planned(lhs, rhs, lhs_offset, rhs_offset, output_stages, bits, rounding, seed, order, None, threads)
    return LowPrecisionProduct(plan, rhs, lhs.shape, lhs.dtype)


def _names(given: Any, dtype: np.dtype[Any]) -> bool:
    """Return whether an argument is `dtype`, its class, or one of its names."""
    if isinstance(given, str):
        return given in (dtype.name, dtype.char, dtype.str, dtype.str[1:])
    return isinstance(given, (type, np.dtype)) and given in (dtype.type, dtype)


def _planned(
    lhs: Array, rhs: Array, lhs_offset: Any, rhs_offset: Any, output_stages: Sequence[Stage], bits: Any,
    rounding: str, seed: int, order: str, out: Array | None, threads: int | None,
) -> _Plan:  # fmt: skip
    """Check all arguments, and return the plan of the product."""
    _check_arrays(lhs, rhs)
    shape = (lhs.shape[0], rhs.shape[1])
    offsets = (_offset("lhs_offset", lhs_offset, shape, 0), _offset("rhs_offset", rhs_offset, shape, 1))
    bits = check_bits(bits)
    check_rounding(rounding)
    check_seed(seed)
    check_stages(output_stages)
    check_reach(lhs, rhs, offsets, bits)
    steps = stage_steps(output_stages, shape)
    rests = drawn((lhs.shape, rhs.shape), bits, seed) if rounding == "probabilistic" else (None, None)
    product = _Product(lhs, rhs, *offsets, steps, result_type(output_stages), bits, rests)
    return product.plan(_by_columns(order, out, shape), threads)


@record(frozen=True)
class _Plan:
    """A product's kernel and its arrays except lhs and rhs; `transposed` if the kernel computes the transposed product.
    """

    kernel: CompiledKernel
    arrays: dict[str, Given]
    transposed: bool

    def run(self, lhs: Array, rhs: Given, out: Array | None) -> Array:
        """Return the product, in `out` or a new array."""
        arrays = dict(self.arrays)
        if self.transposed:
            assert isinstance(rhs, np.ndarray)
            arrays["src"], arrays["wei"] = rhs.T, lhs.T
        else:
            arrays["src"], arrays["wei"] = lhs, rhs
        if out is not None:
            arrays["dst"] = out.T if self.transposed else out
        result = self.kernel.run_as(_SWAPPED if self.transposed else _NAMES, arrays)["dst"]
        return out if out is not None else result.T if self.transposed else result


class LowPrecisionProduct:
    """A product with a fixed rhs, to be called with lhs. Several threads may call it at once."""

    def __init__(self, plan: _Plan, rhs: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._plan, self._shape, self._dtype = plan, shape, dtype
        packs = not plan.transposed and rhs.size and shape[0] and "rounding_wei" not in plan.arrays
        self._rhs: Given = plan.kernel.pack(rhs) if packs else rhs.copy()

    @takes_arrays
    def __call__(self, lhs: Array, *, out: Array | None = None) -> Array:
        """Return the result of `gemm_lowp`, in `out` or a new array. UsageError if lhs has another shape or type."""
        if not isinstance(lhs, np.ndarray) or lhs.shape != self._shape or lhs.dtype != self._dtype:
            given = f"{getattr(lhs, 'dtype', type(lhs).__name__)} of shape {getattr(lhs, 'shape', ())}"
            raise UsageError(f"lhs: {given}; legal is {self._dtype} of shape {self._shape}", code="shape")
        return self._plan.run(lhs, self._rhs, out)


_PLANS: dict[Hashable, _Plan] = {}
"""Plans of earlier calls, keyed by all inputs except the entries of lhs and rhs."""


def _key(
    lhs: Any, rhs: Any, lhs_offset: Any, rhs_offset: Any, stages: Any, bits: Any, words: tuple[Any, ...], out: Any
) -> Hashable:  # fmt: skip
    """Return all inputs that a plan depends on as a key; None if an argument is not hashable, which prevents caching.
    """
    rounding, seed, *_ = words
    drawn_anew = isinstance(rounding, str) and rounding == "probabilistic" and seed is None
    if type(lhs) is not np.ndarray or type(rhs) is not np.ndarray or watched() or drawn_anew:
        return None
    if not isinstance(stages, (list, tuple)):
        return None
    try:
        numbers = tuple(tuple(map(_value, stage)) for stage in stages)
        place = None if out is None else (type(out), out.shape, out.flags.f_contiguous, out.flags.c_contiguous)
        matrices = (lhs.shape, lhs.dtype, _tag(lhs), rhs.shape, rhs.dtype, _tag(rhs))
        given = (_value(lhs_offset), _value(rhs_offset), numbers, tuple(map(_value, bits)), *map(_value, words))
        key = (matrices, given, place, settings.choice)
        hash(key)
    except (TypeError, AttributeError):
        return None
    return key if words[-1] is not None else (*key, default_threads())


def _value(x: Any) -> Hashable:
    """Return a key that tells numbers apart by type and value: 5 and 5.0 are equal, but only 5 is legal."""
    if isinstance(x, np.ndarray):
        return x.dtype.str, x.shape, x.tobytes()
    return type(x), x


@record(frozen=True)
class _Product:
    """A product with offsets (1, 1), or (M, 1) for lhs and (1, N) for rhs, and the steps that follow its sums.

    `rests` are the rounding terms of entries with fewer than 8 `bits`; None rounds to nearest.
    """

    lhs: Array
    rhs: Array
    lhs_offset: Integers
    rhs_offset: Integers
    steps: tuple[AppliedStep, ...]
    dtype: str
    bits: tuple[int, int]
    rests: tuple[Array | None, Array | None]

    def transposed(self) -> _Product:
        """Return the product of the transposed operands, whose result is the transpose."""
        steps = tuple(AppliedStep(alg, tuple(np.atleast_2d(x).T for x in numbers)) for alg, numbers in self.steps)
        left, right = (None if rest is None else rest.T for rest in self.rests)
        return _Product(
            self.rhs.T, self.lhs.T, self.rhs_offset.T, self.lhs_offset.T, steps, self.dtype, self.bits[::-1],
            (right, left),
        )  # fmt: skip

    def plan(self, by_columns: bool, threads: int | None) -> _Plan:
        """Return the plan of this product, or of the transposed one if the result is stored `by_columns`."""
        if by_columns:
            return replace(self.transposed()._plan(threads), transposed=True)
        return self._plan(threads)

    def _plan(self, threads: int | None) -> _Plan:
        arrays: dict[str, Given] = {}
        points = []
        for name, offset, policy in (("src", self.lhs_offset, "per_dim_0"), ("wei", self.rhs_offset, "per_oc")):
            if offset.any():
                values = () if offset.size > 1 else (0.0,)
                points.append(Quantity(name, policy if offset.size > 1 else "common", values, "s32"))
                arrays[f"zero_points_{name}"] = wrapped(-offset).astype(np.int32).reshape(-1)
        post_ops = []
        for n, (alg, numbers) in enumerate(self.steps):
            one = all(x.size == 1 for x in numbers)
            if one and alg in _CONSTANT:
                post_ops.append(Integer(alg, tuple(int(x.item()) for x in numbers)))
            else:
                (operand,) = (np.atleast_2d(x).astype(np.int32) for x in numbers)
                post_ops.append(
                    Integer(alg, mask=sum(1 << axis for axis, size in enumerate(operand.shape) if size > 1))
                )
                arrays[f"post_op_{n}"] = operand
        for name, rest in zip(("src", "wei"), self.rests, strict=True):
            if rest is not None:
                arrays[f"rounding_{name}"] = rest
        rounding = "nearest" if all(rest is None for rest in self.rests) else "probabilistic"
        types = (_TYPES[self.lhs.dtype], _TYPES[self.rhs.dtype], self.dtype)
        tags = (_tag(self.lhs), _tag(self.rhs), "ab")
        problem = _problem(self.lhs.shape, self.rhs.shape, types, tags, tuple(points), tuple(post_ops),
                           self.bits, rounding)  # fmt: skip
        return _Plan(compile(problem, threads=threads), arrays, False)


@lru_cache(KEPT_KERNELS)
def _problem(
    lhs: tuple[int, ...], rhs: tuple[int, ...], types: tuple[str, str, str], tags: tuple[str, str, str],
    points: tuple[Quantity, ...], post_ops: tuple[Integer, ...], bits: tuple[int, int], rounding: str,
) -> Matmul:  # fmt: skip
    stag, wtag, dtag = tags
    return Matmul(src=lhs, wei=rhs, dt=types, stag=stag, wtag=wtag, dtag=dtag, zero_points=points, post_ops=post_ops,
                  bits=bits, rounding=rounding)  # fmt: skip


def _check_rank(name: str, array: Any) -> None:
    array = as_array(name, array)
    if array.ndim != 2:
        raise UsageError(f"{name}: rank is {array.ndim}, shape {array.shape}; legal is 2", code="rank")


def _check_arrays(lhs: Array, rhs: Array) -> None:
    for name, array in (("lhs", lhs), ("rhs", rhs)):
        _check_rank(name, array)
        if array.dtype not in _TYPES:
            raise UsageError(f"{name}: type is {array.dtype}; legal are uint8 and int8", code="dtype")
    if lhs.shape[1] != rhs.shape[0]:
        raise UsageError(
            f"lhs of shape {lhs.shape} has depth {lhs.shape[1]}, rhs of shape {rhs.shape} has depth {rhs.shape[0]}; "
            "legal is the same",
            code="shape",
        )


def _offset(name: str, value: Any, shape: tuple[int, int], axis: int) -> Integers:
    """Return the offset in shape (1, 1), (M, 1) per row or (1, N) per column. UsageError if it is not legal."""
    array = as_numbers(name, value)
    whole = tuple(shape[axis] if n == axis else 1 for n in range(2))
    if array.dtype.kind not in "iu" or array.shape not in ((), (1,), (1, 1), whole, (shape[axis],)):
        line = ("row of lhs", "column of rhs")[axis]
        raise UsageError(
            f"{name}: {array.dtype} of shape {array.shape}; legal are a whole number, and ({shape[axis]},) of them, "
            f"one for each {line}",
            code="offset",
        )
    if array.size and not LIMITS[0] < min(array.flat) <= max(array.flat) <= LIMITS[1]:
        raise UsageError(
            f"{name}={max(array.flat, key=abs)} is not legal: expected {LIMITS[0] + 1} to {LIMITS[1]}", code="offset"
        )
    return array.astype(np.int64).reshape((1, 1) if array.size == 1 else whole)


def _by_columns(order: str, out: Array | None, shape: tuple[int, int]) -> bool:
    expect_word("order", order, _ORDERS, "order")
    if out is None:
        return order == "column"
    if not isinstance(out, np.ndarray) or out.shape != shape:
        given = shown(getattr(out, "shape", out))
        raise UsageError(f"out: expected an array of shape {shape}, got {given}", code="shape")
    return out.flags.f_contiguous and not out.flags.c_contiguous


def _dtype(given: Any) -> np.dtype[Any] | None:
    """Return `given` as a numpy dtype; None if numpy does not accept it."""
    try:
        dtype: np.dtype[Any] = np.dtype(given)
    except (TypeError, ValueError):
        return None
    return dtype


def _tag(matrix: Array) -> str:
    return "ba" if matrix.flags.f_contiguous and not matrix.flags.c_contiguous else "ab"
