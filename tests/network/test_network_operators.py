"""Operators of networks: their kernels, and their nests in the interpreter, give what the numpy reference gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from convsmith.compiler.operator import operator_artifact
from convsmith.emulate.emulators import is_native
from convsmith.interp.interp import run
from convsmith.ir.stmt import Alloc
from convsmith.ir.walk import statements_of
from convsmith.machine import registry
from convsmith.network.operators.attention import Attention
from convsmith.network.operators.bitwise import Bitwise
from convsmith.network.operators.choice import COMPARISONS, ChangeType, ChooseByMask, Compare
from convsmith.network.operators.concat import Concat
from convsmith.network.operators.determinant import Elimination
from convsmith.network.operators.division import WholeDivision
from convsmith.network.operators.expand import Expand
from convsmith.network.operators.gather import GatherElements, GatherRows
from convsmith.network.operators.move import Reshape, Transpose
from convsmith.network.operators.norm import GroupNorm, RowNorm
from convsmith.network.operators.on_bytes import CODES, OnBytes
from convsmith.network.operators.pad import MODES, Pad
from convsmith.network.operators.pointwise import BINARY, JoinedOperand, Pointwise
from convsmith.network.operators.pool import Pool
from convsmith.network.operators.pool_places import PoolPlaces
from convsmith.network.operators.power import Power
from convsmith.network.operators.quantise import Dequantise, Quantise
from convsmith.network.operators.range_maximum import RangeMaximum
from convsmith.network.operators.rearrange import Rearrange
from convsmith.network.operators.recurrence import CELLS, GruCell, LstmCell, Recurrence
from convsmith.network.operators.reduce import REDUCTIONS, Reduce
from convsmith.network.operators.resize import ROUNDINGS, Resize
from convsmith.network.operators.sample import WeightedElements
from convsmith.network.operators.slice import Slice
from convsmith.network.operators.softmax import Softmax
from convsmith.network.operators.table import TABLE, ByteTable
from convsmith.problem.post_ops import Eltwise
from convsmith.problem.tensor import Tensor
from convsmith.runtime.arrays import Array, numpy_dtype
from convsmith.runtime.host_kernel import HostKernel
from convsmith.schedule.operator import operator_plan
from convsmith.statement.operator import Operator

S = (2, 19, 6, 5)
_PLACES = ((1, 0, 1), (1, 0, 1), (2, -1, 4), (10, -2, 14))

OPERATORS: dict[str, Operator] = {
    **{
        f"{kind} of windows": Pool(kind, "f32", S, (3, 3), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1))
        for kind in ("max", "mean")
    },
    "mean with its pads": Pool("mean", "f32", S, (4, 3), (3, 3), (2, 2), (1, 1), (1, 1), (2, 1), True),
    "dilated maximum": Pool("max", "f32", S, (4, 3), (2, 2), (1, 1), (2, 2), (0, 0), (0, 0)),
    "mean of an image": Pool("mean", "f32", S, (1, 1), (6, 5), (1, 1), (1, 1), (0, 0), (0, 0)),
    "sum of windows": Pool("sum", "f32", S, (3, 3), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1)),
    "places of maxima": PoolPlaces(Pool("max", "f32", S, (3, 3), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1))),
    "places of dilated maxima": PoolPlaces(Pool("max", "f32", (2, 3, 9), (4,), (2,), (2,), (2,), (0,), (0,))),
    "whole powers": Power("f32", (S, (1, 19, 1, 1))),
    **{
        f"{'remainders' if gives else 'quotients'} of {t}{' below' if floors else ''}":
        WholeDivision(t, (S, (1, 19, 1, 1)), gives, floors)
        for t in ("f32", "s32", "u8", "s8") for gives in (False, True) for floors in (False, True)
        if gives or t != "f32"
    },
    **{f"bits of {t} {alg}": Bitwise(t, (S, (5,)), alg) for t in ("s32", "u8", "s8") for alg in ("and", "or", "xor")},
    "bits shifted up": Bitwise("u8", (S, S), "shl"), "bits shifted down": Bitwise("u8", (S, S), "shr"),
    **{f"{alg} of two": Pointwise("f32", (S, S), alg) for alg in BINARY},
    "channels scaled": Pointwise("f32", (S, (1, 19, 1, 1)), "mul", (Eltwise("relu"),)),
    "pixels moved": Pointwise("f32", ((2, 1, 6, 5), S), "add"),
    "one number": Pointwise("f32", (S, (1,)), "max"),
    "three inputs": Pointwise(
        "f32", (S, S, (19, 1, 1)), "sub", (), ("axb", "axb", "any", "axb"),
        (JoinedOperand("mul", 2, steps=(Eltwise("abs"),)), JoinedOperand("sub", 0, is_first=True)),
    ),
    "steps": Pointwise("f32", (S,), "", (Eltwise("clip", -2, 3), Eltwise("linear", 2, 1))),
    **{f"{kind} of channels": Reduce(kind, "f32", (2, 5, 3, 4), (1,)) for kind in REDUCTIONS},
    **{f"{kind} of a row": Reduce(kind, "f32", (3, 5, 37), (2,)) for kind in REDUCTIONS},
    "sum with steps": Reduce("sum", "f32", (3, 5, 37), (2,), steps=(Eltwise("clip", -2, 3), Eltwise("linear", 2, 1))),
    **{f"{kind} of pixels": Reduce(kind, "f32", (2, 19, 2, 2), (2, 3)) for kind in REDUCTIONS},
    "sum of a large window": Pool("sum", "f32", (2, 19, 9, 6), (1, 1), (9, 6), (1, 1), (1, 1), (0, 0), (0, 0)),
    **{f"{kind} of many rows": Reduce(kind, "f32", (2, 43, 23), (1,)) for kind in REDUCTIONS if kind != "prod"},
    "channels joined": Concat.of("f32", (S, (2, 3, 6, 5), (2, 33, 6, 5)), 1),
    "rows joined": Concat.of("f32", (S, (2, 19, 1, 5)), 2),
    "part": Slice("f32", S, (0, 3, 5, 0), (1, 2, -1, 1), (2, 7, 6, 5)),
    "shuffled channels": Rearrange(
        "f32", (2, 38, 6, 5), ((2,), (2, 19), (6,), (5,)), ((0,), (2, 1), (3,), (4,)), (0, 9, 1, 0), (2, 19, 4, 5),
        ("axb", "axb"),
    ),
    "windows": Rearrange(
        "u8", (2, 6, 8, 4), ((2,), (3, 2), (2, 4), (4,)), ((0, 1, 3), (2, 4), (5,)), (1, 0, 0), (9, 8, 4),
    ),
    "bytes": Slice("u8", S, (0, 0, 0, 1), (1, 1, 1, 1), (2, 19, 6, 4)),
    **{f"{mode} pad": Pad("f32", S, (0, 1, 2, 1), (0, 0, 1, 3), mode, 2.5) for mode in MODES},
    "negative pad": Pad("f32", S, (0, -1, -2, 1), (0, 0, 1, -3), "constant", 2.5),
    **{r: Resize("f32", S, (2, 19, 12, 7), _PLACES, r) for r in ROUNDINGS},
    "linear": Resize("f32", S, (2, 19, 12, 6), ((1, 0, 1), (1, 0, 1), (2, -1, 4), (1, 0, 2)), "linear"),
    "to u8": Quantise("u8", S), "to s8 by channel": Quantise("s8", S, 19, 1),
    "of u8 by channel": Dequantise("u8", S, 19, 1), "of s8": Dequantise("s8", S),
    "transposed": Transpose("f32", S, (3, 1, 0, 2)), "last dim first": Transpose("f32", S, (0, 3, 1, 2)),
    "reshaped": Reshape("f32", 100),
    "chosen": ChooseByMask("f32", (S, S, S)), "chosen by pixel": ChooseByMask("f32", ((2, 1, 6, 5), S, (1,))),
    "bytes chosen": ChooseByMask("u8", ((19, 1, 1), (6, 5), S)),
    **{f"{word} of two": Compare("f32", (S, S), word) for word in COMPARISONS},
    "integers compared": Compare("s32", (S, (5,)), "lt"), "bytes compared": Compare("u8", (S, (1,)), "eq"),
    **{f"{one} to {two}": ChangeType(one, two, S) for one, two in (("u8", "f32"), ("s32", "f32"), ("f32", "f64"),
                                                                     ("u8", "s32"), ("f64", "f32"), ("f32", "u8"))},
    "channels repeated": Expand("f32", (2, 1, 6, 5), S), "a row repeated": Expand("s32", (1, 5), (3, 4, 5)),
    "pixels repeated": Expand("u8", (2, 19, 1, 1), S), "both are true": Pointwise("u8", (S, (19, 1, 1)), "min"),
    "sum of integers": Pointwise("s32", (S, (5,)), "add"),
    "sum of bytes": OnBytes(Pointwise("f32", (S, S), "add", (Eltwise("relu"),)), ("u8", "s8", "u8")),
    "bytes and floats": OnBytes(Pointwise("f32", (S, (1, 19, 1, 1)), "mul"), ("u8", "f32", "s8")),
    "floats of bytes": OnBytes(Pool("mean", "f32", S, (3, 3), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1)), ("s8", "f32")),
    "mean of bytes": OnBytes(Reduce("mean", "f32", (2, 8, 4, 4), (2, 3)), ("u8", "u8")),
    "maximum of bytes": OnBytes(
        Pool("max", "f32", S, (3, 3), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1)), ("s8", "s8"), coded=False
    ),
    "pad of bytes": OnBytes(Pad("f32", S, (0, 1, 2, 1), (0, 0, 1, 3), "constant", 7.0), ("u8", "u8"), coded=False),
    "rows by number": GatherRows("f32", 2, 11, 37, 9), "elements by number": GatherRows("s32", 3, 11, 1, 9),
    "bytes by number": GatherRows("u8", 1, 11, 5, 9),
    "along an axis": GatherElements("f32", (3, 11, 5), (2, 7, 5), 1),
    "along rows": GatherElements("f32", (3, 11), (3, 4), 0),
    "maxima of ranges": RangeMaximum("f32", 11, 3, 7, 5, 4, 3),
    "maxima of columns": RangeMaximum("f32", 2, 3, 20, 1, 4, 2),
    "maxima of wide rows": RangeMaximum("f32", 2, 2, 6, 37, 3, 2),
    "weighted elements": WeightedElements("f32", 2, 3, 11, 7, 4),
    **{
        f"{name} {word}": kind("f32", 3, 2, 9, ((Eltwise("clip", -2, 2),),) * 3, **how)
        for name, kind in CELLS.items() for word, how in (("forwards", {}), ("backwards", {"is_backwards": True}),
                                                          ("with lengths", {"has_lengths": True}))
    },
    "GRU after": GruCell("f32", 3, 2, 5, ((Eltwise("clip", -2, 2),),) * 2, resets_after=True),
    "LSTM of 9 samples": LstmCell("f32", 2, 9, 10, ((Eltwise("clip", -2, 2),),) * 3),
    "LSTM that peeks": LstmCell("f32", 3, 2, 5, ((Eltwise("clip", -2, 2),),) * 3, peeks=True),
    **{f"{n} matrices of {size} rows": Elimination("f32", n, size) for n, size in ((3, 1), (4, 2), (2, 5), (1, 19))},
    "a matrix of doubles": Elimination("f64", 1, 7),
    **{f"{one} to {two} by a table": ByteTable(one, two, S) for one, two in (("u8", "s8"), ("s8", "u8"))},
    "joined bytes": OnBytes(Concat.of("f32", (S, (2, 3, 6, 5)), 1), ("u8", "s8", "u8")),
}  # fmt: skip


NORMS: dict[str, Operator] = {
    **{f"{word} of {n} by {k}": Softmax("f32", (n, k, e), word == "log softmax")
       for word in ("softmax", "log softmax")
       for n, k, e in ((5, 40, 1), (1, 100, 1), (3, 130, 1), (3, 7, 1), (2, 5, 20))},
    "softmax of bytes": OnBytes(Softmax("f32", (5, 40, 1)), ("u8", "f32"), coded=False),
    **{f"rows of {k}": RowNorm("f32", (n, k), 1e-5) for n, k in ((5, 40), (1, 100), (3, 7))},
    "rows without means": RowNorm("f32", (5, 40), 1e-3, ("scale",), centred=False),
    "rows without factors": RowNorm("f64", (5, 40), 1e-3, ()),
    "channels": GroupNorm("f32", S, 1e-5, groups=19), "one group": GroupNorm("f32", (1, *S[1:]), 1e-5, groups=1),
    "groups": GroupNorm("f32", (2, 24, 5, 3), 1e-5, groups=6),
    "rows with steps": RowNorm("f32", (5, 40), 1e-5, steps=(Eltwise("relu"), Eltwise("linear", 2, 1))),
    "groups with a step": GroupNorm("f32", (2, 24, 5, 3), 1e-5, steps=(Eltwise("swish", 1),), groups=6),
    "groups of one pixel": GroupNorm("f32", (3, 8), 1e-5, groups=2),
    "attention": Attention("f32", 2, 3, 20, 24, 8, 12, 0.25, tile=16),
    "attention of one tile": Attention("f32", 1, 2, 9, 7, 5, 3, mask=(1, 2, 7, 1), tile=32),
    "attention with a mask": Attention("f32", 2, 1, 33, 30, 4, 20, -0.5, mask=(2, 1, 30, 33), tile=16),
    "heads within rows": Attention(
        "f32", 2, 3, 40, 17, 8, 16, orders=((0, 2, 1, 3), (2, 0, 3, 1), (0, 2, 1, 3), (0, 2, 1, 3)),
        mask=(1, 1, 17, 40), steps=(Eltwise("relu"),), zeros=True,
    ),
    "parts of one array": Attention(
        "f32", 2, 3, 20, 20, 8, 8, orders=((0, 2, 1, 3),) * 3 + ((0, 1, 2, 3),), tile=16,
        wholes=((2, 9, 20, 8),) * 3, starts=((0, 0, 0, 0), (0, 3, 0, 0), (0, 6, 0, 0)),
    ),
    "parts of heads": Attention(
        "f32", 1, 3, 18, 9, 5, 7, tile=32,
        wholes=((1, 3, 20, 11), (2, 3, 9, 5), (1, 3, 11, 8)), starts=((0, 0, 2, 5), (1, 0, 0, 0), (0, 0, 1, 1)),
    ),
}  # fmt: skip
"""Operators with inner arrays, whose results are rounded."""


def _arrays(op: Operator, seed: int = 0) -> dict[str, Array]:
    """Small whole numbers, and the operator's own constants."""
    rng = np.random.default_rng(seed)
    found: dict[str, Any] = {}
    for t in op.inputs:
        dtype = numpy_dtype(t.dtype)
        low = 0 if t.dtype == "u8" else -8
        high = 9 if dtype == np.float32 else 100
        found[t.name] = rng.integers(low, high, t.shape).astype(dtype)
        if t.name in ("first", "wei", "src") and isinstance(op, Recurrence):  # states stay small whole numbers
            found[t.name] = rng.integers(-1, 2, t.shape).astype(dtype)
        if t.name in ("times", "lengths"):
            found[t.name] = np.arange(t.shape[0], dtype=dtype) + (t.name == "lengths")
        if t.name == "src_1" and isinstance(op, Power):
            found[t.name] = rng.integers(-2, 6, t.shape).astype(dtype)
        if t.name == "maxima" and isinstance(op, PoolPlaces):
            found[t.name] = op.pool.reference(found["src"])
        if t.name == "src" and isinstance(op, Elimination):
            found[t.name] = _exact_matrices(rng, t.shape).astype(dtype)
        if t.name == "places":  # some beyond the array, at both ends
            found[t.name] = rng.integers(-13, 13, t.shape).astype(dtype)
        if t.name == CODES:
            points = rng.integers(0, 100, t.shape)
            found[t.name] = np.where(np.arange(t.shape[0]) % 2, points, rng.choice([0.5, 1.0], t.shape)).astype(dtype)
        elif (t.name == "src_1" and getattr(op, "binary", "") == "div") or t.name == "scale":
            found[t.name] = rng.choice([0.5, 1.0, 2.0], t.shape).astype(dtype)
    return {**found, **op.constants}


def _exact_matrices(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Matrices whose elimination is exact: products of a permutation, of a lower triangle with a diagonal of ones above
    other numbers, and of an upper one with powers of two, the last of which may be 0.
    """
    lower = np.tril(rng.choice([-0.5, 0, 0.5], shape), -1) + np.eye(shape[-1])
    upper = np.triu(rng.integers(-4, 5, shape), 1) * 4.0
    upper[:, np.arange(shape[-1]), np.arange(shape[-1])] = rng.choice([-4, -2, 1, 2], shape[:2])
    upper[-1, -1, -1] *= shape[0] % 2
    return np.stack([x[rng.permutation(shape[-1])] for x in lower @ upper])


def _in_layouts(op: Operator) -> list[Operator]:
    """The operator with arrays of equal and of different layouts, as far as their ranks allow it."""
    images = {t.name for t in op.tensors if len(t.shape) == 4} & {*op.free}
    if not hasattr(op, "tags") or not images:
        return [op]
    first, last = dict.fromkeys(images, "abx"), dict.fromkeys(images, "axb")
    mixed = {name: "axb" if name == "dst" else "abx" for name in images}
    return [op.with_tags(tags) for tags in (first, last, mixed)]


@pytest.mark.sampled(20)
@pytest.mark.parametrize("name", OPERATORS)
def test_kernels_compute_what_the_reference_computes(name: str) -> None:
    for op in _in_layouts(OPERATORS[name]):
        arrays = _arrays(op)
        kernel = HostKernel(operator_artifact(op, registry.target(None, ("f32",) * 3)))
        expected = op.reference(*arrays.values())
        np.testing.assert_array_equal(kernel.run(arrays)["dst"], expected, str(op))


def _in_memory(t: Tensor, x: Array) -> Array:
    """Return the elements of `x` in the order in which the layout of `t` stores them."""
    memory = np.zeros(x.size, x.dtype)
    np.ndarray(x.shape, x.dtype, memory, 0, [n * x.itemsize for n in t.layout.strides])[...] = x
    return memory


@pytest.mark.sampled(32)
@pytest.mark.parametrize("name", OPERATORS)
def test_naive_nests_and_their_rewrites_compute_the_reference(name: str) -> None:
    op = OPERATORS[name]
    arrays = _arrays(op, 1)
    machine = registry.target("generic")
    plan = operator_plan(op, machine, 1)
    assert plan.given is not None
    expected = _in_memory(op.result, op.reference(*arrays.values()))
    for kernel in (op.nests().kernel, plan.given.lowered):
        flat = {t.name: _in_memory(t, arrays[t.name]) for t in op.inputs}
        memory = {b.name: flat.get(b.name, np.zeros(b.size, numpy_dtype(b.dtype.name))) for b in kernel.params}
        run(kernel, memory, {name: row.kernel for name, row in machine.rows.items()})
        np.testing.assert_array_equal(memory["dst"], expected, name)


@pytest.mark.sampled(6, "threads")
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", NORMS)
def test_operators_with_inner_arrays_are_close(name: str, threads: int) -> None:
    for op in _in_layouts(NORMS[name]):
        arrays = _arrays(op)
        kernel = HostKernel(operator_artifact(op, registry.target(None, ("f32",) * 3), threads))
        expected = op.reference(*arrays.values())
        np.testing.assert_allclose(kernel.run(arrays)["dst"], expected, 1e-5, 2e-6, err_msg=str(op))


_IMAGES = (2, 20, 3, 37)
TRANSPOSED: dict[str, Operator] = {
    "to channels last": Transpose("f32", _IMAGES, (0, 1, 2, 3), ("abx", "axb")),
    "from channels last": Transpose("f32", _IMAGES, (0, 1, 2, 3), ("axb", "abx")),
    "of 3 channels": Transpose("f32", (1, 3, 5, 40), (0, 1, 2, 3), ("abx", "axb")),
    "rows": Transpose("f32", (3, 19, 35), (0, 2, 1)), "rows of bytes": Transpose("u8", (3, 19, 35), (0, 2, 1)),
    "sums": Pointwise("f32", (_IMAGES, (1, 20, 1, 1)), "add", tags=("abx", "abx", "axb")),
    "quantised": Quantise("u8", _IMAGES, 1, 0, ("abx", "axb")),
}


@pytest.mark.sampled(6, "level")
@pytest.mark.parametrize("name", TRANSPOSED)
@pytest.mark.parametrize("level", ["generic", "avx2", "avx512"])
def test_elements_that_are_adjacent_elsewhere_are_transposed_in_registers(name: str, level: str) -> None:
    op, machine = TRANSPOSED[name], registry.target(level)
    plan = operator_plan(op, machine, 1)
    assert plan.given is not None and "transpose_" in str(plan.given.lowered)
    arrays = _arrays(op, 1)
    memory = {t.name: _in_memory(t, arrays[t.name]) for t in op.inputs}
    memory["dst"] = _in_memory(op.result, np.zeros(op.result.shape, numpy_dtype(op.result.dtype)))
    run(plan.given.lowered, memory, {row: x.kernel for row, x in machine.rows.items()})
    expected = op.reference(*arrays.values()).reshape(op.result.shape)
    np.testing.assert_array_equal(memory["dst"], _in_memory(op.result, expected.astype(memory["dst"].dtype)))
    if is_native(machine):
        kernel = HostKernel(operator_artifact(op, machine))
        np.testing.assert_array_equal(kernel.run(arrays)["dst"].reshape(expected.shape), expected)


@pytest.mark.parametrize("name", [
    "softmax of 5 by 40", "rows of 40", "groups", "attention of one tile",
    pytest.param("attention", marks=pytest.mark.wide),
])  # fmt: skip
def test_nests_with_inner_arrays_and_their_rewrites_are_close(name: str) -> None:
    op, machine = NORMS[name], registry.target("generic")
    arrays, plan = _arrays(op, 1), operator_plan(op, machine, 1)
    assert plan.given is not None
    expected = _in_memory(op.result, op.reference(*arrays.values()))
    for kernel in (op.nests().kernel, plan.given.lowered):
        flat = {name: x.reshape(-1) for name, x in arrays.items()}
        memory = {b.name: flat.get(b.name, np.zeros(b.size, np.float32)) for b in kernel.params}
        run(kernel, memory, {row: x.kernel for row, x in machine.rows.items()})
        np.testing.assert_allclose(memory["dst"], expected, 1e-5, 2e-6)


@pytest.mark.parametrize("op", [RowNorm("f32", (8, 64), 1e-5), Softmax("f32", (8, 64, 1))])
def test_inner_arrays_hold_one_row(op: Operator) -> None:
    plan = operator_plan(op, registry.target("avx512"), 1)
    assert plan.given is not None
    allocated = (s.buffer for s in statements_of(plan.given.lowered.body) if isinstance(s, Alloc))
    held = [b.size for b in allocated if b.scope == "cache"]
    assert held and max(held) <= 64


@pytest.mark.parametrize(("channels", "parts"), [(16, 8), (40, 2), (64, 2)])
def test_a_few_sums_of_many_terms_have_partial_ones(channels: int, parts: int) -> None:
    op = Pool("sum", "f32", (1, channels, 9, 17), (1, 1), (9, 17), (1, 1), (1, 1), (0, 0), (0, 0), tags=("axb", "axb"))
    plan = operator_plan(op, registry.target("avx512"), 1)
    assert plan.given is not None
    bodies = (plan.given.lowered.body, *(f.body for f in plan.given.lowered.functions))
    held = {s.buffer.shape[0] for body in bodies for s in statements_of(body) if isinstance(s, Alloc)}
    assert held == {parts}


def test_shares_far_below_the_largest_are_zero() -> None:
    op = Softmax("f32", (1, 7, 1))
    x = np.float32([0, -np.inf, -1000, -88.1, -87.2, -60, -1e-3]).reshape(1, 7, 1)
    found: Any = HostKernel(operator_artifact(op, registry.target(None, ("f32",) * 3), 1)).run({"src": x})["dst"]
    assert not found[0, 1:4].any() and found[0, 4, 0] > 0
    np.testing.assert_allclose(found, op.reference(x), 1e-6, 2.0**-126)


@pytest.mark.parametrize("name", ["max of windows", "channels joined", "mean of channels"])
def test_threads_share_an_operator(name: str) -> None:
    op = OPERATORS[name]
    arrays = _arrays(op)
    artifact = operator_artifact(op, registry.target(None, ("f32",) * 3), 2)
    assert artifact.entries["main"].launch.threads == 2
    np.testing.assert_array_equal(HostKernel(artifact).run(arrays)["dst"], op.reference(*arrays.values()))


@pytest.mark.parametrize("alg", ["exp", "logistic", "hardswish", "gelu_erf", "tanh", "pow"])
def test_functions_of_one_element_are_close(alg: str) -> None:
    op = Pointwise("f32", ((1000,),), "", (Eltwise(alg, *((1, 2) if alg == "pow" else ())),))
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    made = HostKernel(operator_artifact(op, registry.target(None, ("f32",) * 3))).run({"src_0": x})["dst"]
    np.testing.assert_allclose(made, op.reference(x), rtol=1e-5, atol=1e-6)


def test_adjacent_elements_are_computed_by_vectors() -> None:
    target = registry.target("avx2")
    op = OPERATORS["max of windows"].with_tags({"src": "axb", "dst": "axb"})
    assert "vectors=True" in str(operator_plan(op, target, 1).config)
    # Whether an element is padding differs between lanes.
    apart = OPERATORS["constant pad"]
    assert "vectors=False" in str(operator_plan(apart, target, 1).config)


@pytest.mark.parametrize(("op", "are_lanes"), [
    (Reduce("sum", "f32", (3, 5, 37), (2,)), True),
    (Reduce("mean_square", "f32", (3, 37), (1,)), True),
    (Reduce("sum", "f32", (3, 5, 3), (2,)), False),
    (Reduce("sum", "f32", (3, 37, 5), (1,)), False),
    (Reduce("max", "f32", (3, 5, 37), (2,)), False),
    (Reduce("sum", "f32", (3, 5, 37), (1, 2)), False),
    (Reduce("sum", "f32", (3, 5, 7, 8), (1,), ("axb", "axb")), False),
    (Reduce("sum", "f32", (3, 37, 7, 8), (1,), ("axb", "axb")), True),
])  # fmt: skip
def test_sums_of_adjacent_terms_have_a_part_in_each_lane(op: Reduce, are_lanes: bool) -> None:
    plan = operator_plan(op, registry.target("avx2"), 1)
    assert plan.given is not None
    assert ("sum(acc[0" in str(plan.given.lowered)) == are_lanes


@pytest.mark.parametrize(("columns", "total"), [
    (24, "sum(acc[0]{8})"), (37, "sum(acc[0, 0]{8} + acc[1, 0]{8})"),
    (256, "sum(acc[0, 0]{8} + acc[1, 0]{8} + (acc[2, 0]{8} + acc[3, 0]{8}))"),
])  # fmt: skip
def test_sums_of_rows_of_several_vectors_have_partial_ones(columns: int, total: str) -> None:
    op = Reduce("sum", "f32", (3, columns), (1,))
    plan = operator_plan(op, registry.target("avx2"), 1)
    assert plan.given is not None and total in str(plan.given.lowered)
    x = np.random.default_rng(0).integers(-9, 10, (3, columns)).astype(np.float32)
    kernel = HostKernel(operator_artifact(op, registry.target("avx2")))
    np.testing.assert_array_equal(kernel.run({"src": x})["dst"], x.sum(1, keepdims=True))


@pytest.mark.parametrize("level", ["avx512", "avx2", "generic"])
@pytest.mark.parametrize("count", [1, 64, 100, 300])
def test_every_byte_has_its_entry_of_a_table(level: str, count: int) -> None:
    if not is_native(registry.target(level)):
        pytest.skip(f"this CPU lacks {level}")
    rng = np.random.default_rng(count)
    table = rng.permutation(256).astype(np.uint8)
    x = np.resize(rng.permutation(256), count).astype(np.uint8)
    op = ByteTable("u8", "u8", (count,))
    made = HostKernel(operator_artifact(op, registry.target(level))).run({"src": x, TABLE: table})["dst"]
    np.testing.assert_array_equal(made, table[x])


def test_bytes_are_moved_by_vectors_of_bytes() -> None:
    plan = operator_plan(Slice("u8", (4, 64), (1, 0), (1, 1), (2, 64)), registry.target("avx512"), 1)
    assert plan.given is not None
    assert "{64}" in str(plan.given.lowered)
