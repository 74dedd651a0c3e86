"""Every pass shows what it does: the Before of its docstring becomes the After, and computes the same.

The sections are literal blocks of the docstring, and the call is what stands after "After"; a pass of several forms may
have a Before and an After for each:

    Before::

        kernel k(...)
          ...

    After ``tile("i", 4, "i.o", "i.i")``::

        kernel k(...)
          ...
"""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Callable
from importlib import import_module
from textwrap import dedent
from typing import Any, NamedTuple

import numpy as np
import pytest

import convsmith.passes
from convsmith.diag.errors import ConfigError
from convsmith.interp import run
from convsmith.ir.buffer import UNKNOWN, make_buffer
from convsmith.ir.index import Var, as_index
from convsmith.ir.instruction import FragmentLayout, Instruction, Operand, vector
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Kernel
from convsmith.ir.tensor_map import TensorMap
from convsmith.ir.types import F32, PTR
from convsmith.layout.block import ABSENT
from convsmith.machine.base import dot, fragment_dot
from convsmith.machine.generic.level import PORTABLE_FMA
from convsmith.machine.intel_gpu.messages import MESSAGES
from convsmith.machine.nvidia.fragments import MATRIX_LOADS, PRODUCTS
from convsmith.machine.nvidia.matrix_stores import MATRIX_STORES
from convsmith.machine.nvidia.warpgroups import GROUP_PRODUCTS
from convsmith.passes.buffer_layouts import RotatedRows
from convsmith.passes.stage_results import MappedResult, StoredPart
from convsmith.passes.tensor_copies import MappedCopy

NO_PASS = {
    "accesses", "border_places", "box_copy", "buffer_layouts", "contracts", "copies", "footprint", "lets", "manager",
    "order", "ordered_copy", "own_memory", "packed_sums", "register_use", "relocate", "scope", "thread_conflicts",
    "thread_order", "tile_copy", "split_nests", "unify", "window_copy",
}  # fmt: skip
OTHER_NAME = {"strength": "strength_reduce"}
LANE_DOT = Instruction(
    "lane_dot",
    (
        Operand("c", "s32", (2, 2), FragmentLayout(("l // 2", "l % 2"), 4), "lane", "fragment"),
        Operand("a", "u8", (2, 4), FragmentLayout(("l // 2", "l % 2 * 2 + e"), 4, 2), "lane", "fragment"),
        Operand("b", "s8", (4, 2), FragmentLayout(("l % 2 * 2 + e", "l // 2"), 4, 2), "lane", "fragment"),
    ),
    "  for m in 0 .. 2:\n    for l in 0 .. 2:\n      for k in 0 .. 4:\n"
    "        c[m, l] = c[m, l] + cast(s32, a[m, k]) * cast(s32, b[k, l])\n", "", "", (), "",
)  # fmt: skip
"""The product of fragments that are spread over the lanes of a warp of four."""
SUMS_AT = ("r // 2 % 2", "l + r % 2 * 2 + r // 4 * 4")
"""Coordinates of the sums of a product of vectors, spread over two lanes: each has every second column."""
LANE_PRODUCT = Instruction(
    "lane_product",
    (
        Operand("c", "f32", (2, 8), FragmentLayout(SUMS_AT, 2, registers=8), "lane", "fragment"),
        Operand("a", "f32", (2,), FragmentLayout(("l", "e"), 1), "shared", "global"),
        Operand("b", "f32", (8,), FragmentLayout(("l", "e"), 1), "shared", "global"),
    ),
    "  for m in 0 .. 2:\n    for l in 0 .. 8:\n      c[m, l] = c[m, l] + a[m] * b[l]\n", "", "", (), "",
)  # fmt: skip
"""The product of two vectors."""
LANE_TRADE = Instruction(
    "lane_trade",
    (
        Operand("c", "f32", (2, 4), FragmentLayout(("r // 2", "l * 2 + r % 2"), 2, registers=4), "lane", "fragment"),
        Operand("a", "f32", (2, 4), FragmentLayout(SUMS_AT, 2, registers=4), "lane", "fragment"),
    ),
    "  for m in 0 .. 2:\n    for l in 0 .. 4:\n      c[m, l] = a[m, l]\n", "", "", (), "",
)  # fmt: skip
"""The trade of half of these sums: each lane has two neighbouring columns afterwards."""
PAIRS = dot("pairs", 4, 2, ("s8", "s8", "s32"), "", "", (), "")
SINGLE = Instruction(
    "single", tuple(vector(x, t, 4) for x, t in zip("cab", ("s32", "s8", "s8"))),
    "  for l in 0 .. 4:\n    c[l] = c[l] + cast(s32, a[l]) * cast(s32, b[l])\n", "", "", (), "",
)  # fmt: skip
ROWS = (
    PORTABLE_FMA, fragment_dot("fragment_dot", (4, 4, 4, 4), ("u8", "s8", "s32"), "", "", (), ""), LANE_DOT,
)  # fmt: skip
TABLE, ZERO = make_buffer("a_row", PTR, (3, 2)), make_buffer("a_0", F32, (4,))
ENTRIES = np.array([ABSENT, 0, 0, 4, 4, 8])
MMA = next(row for row in PRODUCTS if row.name == "mma_m16n8k8_bf16")
GROUP_PRODUCT = next(row for row in GROUP_PRODUCTS if row.name == "wgmma_m64n16k16_bf16")
SIZES = {"n": 3, "s": 2, "first": 0}
SUMS = make_buffer("sums", F32, (4,))
NAMES = {
    "ROWS": ROWS,
    "SINGLE": SINGLE,
    "PAIRS": PAIRS,
    "LANE_DOT": LANE_DOT,
    "LANE_PRODUCT": LANE_PRODUCT,
    "LANE_TRADE": LANE_TRADE,
    "MMA": MMA,
    "LOADS": MATRIX_LOADS,
    "MESSAGES": MESSAGES,
    "TABLE": TABLE,
    "ZERO": ZERO,
    "SUMS": SUMS,
    "N": Var("n"),
    "S": Var("s"),
    "ONE": as_index(1),
    "ROTATED": RotatedRows(2),
    "MAPS": (MappedCopy("s", TensorMap((8, 5), (1, 8), (4, 4)), (as_index(4),), (Var("i") * 4,)),),
    "RESULT": MappedResult(
        "c", TensorMap((4, 5), (1, 4), (2, 2)), (StoredPart((as_index(0), as_index(2)), (Var("i") * 2,)),), ("x",),
        ("y",),
    ),
    "GROUP_PRODUCT": GROUP_PRODUCT,
    "STORES": MATRIX_STORES,
    "Var": Var,
    "as_index": as_index,
}
_ALL = (*ROWS, SINGLE, PAIRS, LANE_PRODUCT, LANE_TRADE, MMA, GROUP_PRODUCT, *MATRIX_LOADS, *MATRIX_STORES, *MESSAGES)
INSTRUCTIONS = {row.name: row.kernel for row in _ALL}
MODULES = sorted(m.name for m in pkgutil.iter_modules(convsmith.passes.__path__))
PASSES = [name for name in MODULES if name not in NO_PASS]

_EXAMPLE = re.compile(
    r"^Before::\n\n(?P<before>(?: {4}.*\n)+)\n^After ``(?P<call>[^`]+)``::\n\n(?P<after>(?: {4}.*(?:\n|\Z))+)", re.M
)


class Example(NamedTuple):
    """The texts of a docstring, and the kernels that they mean."""

    before: str
    call: str
    after: str
    old: Kernel
    new: Kernel


def pass_of(module: str) -> Callable[..., Kernel]:
    """The public function of a module that takes a kernel first."""
    name = OTHER_NAME.get(module, module)
    function: Callable[..., Kernel] = getattr(import_module(f"convsmith.passes.{module}"), name)
    assert next(iter(inspect.signature(function).parameters)) == "kernel"
    return function


def texts_of(module: str) -> list[tuple[str, str, str]]:
    """Before, call and After of each example in the docstring of a pass."""
    return _EXAMPLE.findall((inspect.getdoc(pass_of(module)) or "") + "\n")


EXAMPLES = [name for x in PASSES for name in (x, *(f"{x}-{n}" for n in range(2, len(texts_of(x)) + 1)))]
"""Names of the examples: that of the pass for its first, followed by a number for others."""


def example_of(name: str) -> Example:
    """The example of that name, run; fails where the docstring has none."""
    module, _, number = name.partition("-")
    function, found = pass_of(module), texts_of(module)
    assert found, f"{function.__name__} needs a Before and an After in its docstring"
    before, call, after = found[int(number or 1) - 1]
    before, after = (dedent(x).rstrip("\n") + "\n" for x in (before, after))
    old = parse_kernel(before)
    called, arguments = call.removesuffix(")").split("(", 1)
    assert called == function.__name__
    new = eval(f"run(kernel, {arguments})", {"run": function, "kernel": old, **NAMES})
    return Example(before, call, after, old, new)


def memory(*kernels: Kernel) -> dict[str, np.ndarray]:
    """Whole numbers for every parameter of the kernels and of those that prepare arguments, the same at each call."""
    numbers = np.random.default_rng(0)
    every = [b for kernel in kernels for k in (kernel, *kernel.packs, *kernel.before) for b in k.params]
    params = {b.name: b for b in every}
    known: dict[str, int] = {}
    for b in every:
        if UNKNOWN not in b.shape:  # a pass may give packed operands more elements
            known[b.name] = max(b.size, known.get(b.name, 0))
    sizes = {name: known.get(name, 48) for name in params}
    arrays = {n: numbers.integers(-4, 5, sizes[n]).astype(b.dtype.numpy) for n, b in params.items()}
    return arrays | {n: x for n, x in (("a_row", ENTRIES.copy()), ("a_0", np.zeros(4, np.float32))) if n in arrays}


def interpret(kernel: Kernel, arrays: dict[str, np.ndarray]) -> None:
    """Run the kernels that prepare arguments, then the kernel."""
    for k in (*kernel.packs, *kernel.before, kernel):
        given = {b.name: arrays[b.name][: None if UNKNOWN in b.shape else b.size] for b in k.params}
        run(k, given, INSTRUCTIONS, {v.name: SIZES.get(v.name, 7) for v in k.sizes})


def test_modules_without_a_pass_are_these() -> None:
    assert NO_PASS < set(MODULES)
    for module in NO_PASS:
        assert not hasattr(import_module(f"convsmith.passes.{module}"), module)


@pytest.mark.parametrize("name", EXAMPLES)
def test_before_becomes_after(name: str) -> None:
    example = example_of(name)
    assert str(example.old) == example.before
    assert str(example.new) == example.after


@pytest.mark.parametrize("name", EXAMPLES)
def test_after_is_text_of_the_ir(name: str) -> None:
    example = example_of(name)
    assert str(parse_kernel(example.after)) == example.after


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_pass_changes_something(name: str) -> None:
    example = example_of(name)
    assert example.new is not example.old
    assert example.before != example.after


@pytest.mark.parametrize("name", EXAMPLES)
def test_before_and_after_compute_the_same(name: str) -> None:
    example = example_of(name)
    start, old, new = (memory(example.old, example.new) for _ in range(3))
    interpret(example.old, old)
    interpret(example.new, new)
    packed = {pack.params[-1].name for pack in example.old.packs}  # whose order a pass may change
    names = [b.name for b in example.old.params if b.name not in packed]
    assert any(not np.array_equal(start[n], old[n]) for n in names), "the example computes nothing"
    for n in names:
        np.testing.assert_array_equal(old[n], new[n], err_msg=n)


def spoilt(value: Any) -> list[Any]:
    """Values of the kind of an argument that are not legal, or mean something else: numbers, names, names in tuples."""
    if isinstance(value, str):
        return ["nothing"]
    if isinstance(value, int) and not isinstance(value, bool):
        return [-1, 0, 1]
    if isinstance(value, tuple) and value and isinstance(value[0], str):
        return [("nothing",) * len(value)]
    return []


@pytest.mark.parametrize("name", EXAMPLES)
def test_other_arguments_are_refused_or_compute_the_same(name: str) -> None:
    example, function = example_of(name), pass_of(name.partition("-")[0])
    _, arguments = example.call.removesuffix(")").split("(", 1)
    bind = inspect.signature(function).bind
    given = eval(f"bind(kernel, {arguments})", {"bind": bind, "kernel": example.old, **NAMES})
    for argument, value in list(given.arguments.items())[1:]:
        for other in spoilt(value):
            given.arguments[argument] = other
            try:
                new = function(*given.args, **given.kwargs)
            except ConfigError as error:
                assert str(error).startswith(function.__name__)
                continue
            start, changed = (memory(example.old, new) for _ in range(2))
            interpret(example.old, start)
            interpret(new, changed)
            for b in example.old.params:
                np.testing.assert_array_equal(start[b.name], changed[b.name], err_msg=f"{argument}={other!r}: {b.name}")
        given.arguments[argument] = value
