"""Rows are unified with nests: equal ones are replaced, whatever their names and their order; others are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as changed
from math import prod

import numpy as np
import pytest
from specified_nests import FRAGMENT, PRODUCT, invoked, lane_wise, nest_of, results

from convsmith.diag.errors import InternalError
from convsmith.ir.buffer import Buffer, make_buffer
from convsmith.ir.index import as_index
from convsmith.ir.instruction import Instruction, vector
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stmt import Alloc, For, Invoke, Kernel, Stmt, Store
from convsmith.ir.types import DTYPES, dtype
from convsmith.ir.value import Binary, Const, Load, Value, const
from convsmith.ir.verify import verify
from convsmith.ir.walk import statements_of, variables_of
from convsmith.machine.generic.level import level
from convsmith.machine.x86.levels import LEVELS
from convsmith.passes.replace import replace
from convsmith.passes.scope import perfect_nest
from convsmith.passes.unify import Specification
from convsmith.passes.vectorise import vectorise

ROWS = {r.name: r for t in (*LEVELS, level()) for r in (*t.instructions, *t.transpositions)}
SCALABLE_DOT = Instruction(
    "scalable_dot",
    tuple(vector(x, t, n, scalable=True) for x, t, n in (("c", "s32", 2), ("a", "s8", 8), ("b", "s8", 8))),
    "  for l in 0 .. vscale * 2:\n    if l < active:\n      for r in 0 .. 4:\n"
    "        c[l] = c[l] + cast(s32, a[l * 4 + r]) * cast(s32, b[l * 4 + r])\n",
    "", "", (), "", "active",
)  # fmt: skip
MADE_UP = (
    SCALABLE_DOT.at(2),
    PRODUCT,
    lane_wise("multiply_subtract", "c[l] - a[l] * b[l]"),
    lane_wise("largest", "max(c[l], abs(a[l]))"),
    lane_wise("scaled", "a[l] * 3.0 + b[l]"),
    lane_wise("bits", "and(xor(c[l], a[l]), b[l])", "s32"),
    lane_wise("squares", "fma(a[l], a[l], c[l])"),
)

TRANSPOSITIONS = {r.name for t in (*LEVELS, level()) for r in t.transpositions}
ON_VECTORS = [
    r for r in (*ROWS.values(), *MADE_UP) if r.result.scope == "register" and r.name not in TRANSPOSITIONS
]  # fmt: skip


def check(row: Instruction, kernel: Kernel, interpreted: bool = True) -> None:
    """Require that the row takes the place of the nest and leaves the same numbers."""
    found = replace(kernel, (row,))
    verify(found)
    assert invoked(found) == [row.name], f"{row.name} is not in\n{found}"
    if interpreted:
        for x, y in zip(results(found, row), results(kernel), strict=True):
            np.testing.assert_array_equal(x, y)


def is_cheap(row: Instruction) -> bool:
    return prod(row.loops.values()) <= 512


@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ROWS)
def test_each_row_replaces_its_nest(name: str, seed: int) -> None:
    check(ROWS[name], nest_of(ROWS[name], seed), is_cheap(ROWS[name]) and seed == 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if not is_cheap(row)])
def test_each_long_row_leaves_the_same_numbers(name: str) -> None:
    check(ROWS[name], nest_of(ROWS[name], 5))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("row", [FRAGMENT, *MADE_UP], ids=lambda row: row.name)
def test_a_row_that_no_pass_knows_replaces_its_nest(row: Instruction, seed: int) -> None:
    check(row, nest_of(row, seed))


@pytest.mark.parametrize("rows", [1, 3])
def test_a_fragment_of_fewer_rows(rows: int) -> None:
    kernel = nest_of(FRAGMENT, rows, rows)
    check(FRAGMENT, kernel)
    (invoke,) = (s for s in statements_of(replace(kernel, (FRAGMENT,)).body) if isinstance(s, Invoke))
    assert isinstance(invoke.args[0], Load) and invoke.args[0].lanes is not None
    assert invoke.args[0].lanes.active == rows * 8


@pytest.mark.parametrize("active", [1, 3, 4])
def test_a_row_with_a_predicate_has_fewer_lanes(active: int) -> None:
    """Lanes that are not active are neither read nor written."""
    row = SCALABLE_DOT.at(2)
    kernel = nest_of(row, active, active)
    check(row, kernel)
    (invoke,) = (s for s in statements_of(replace(kernel, (row,)).body) if isinstance(s, Invoke))
    lanes = [v.lanes for v in (invoke.dst, *invoke.args) if isinstance(v, Load)]
    assert [x.active for x in lanes if x is not None] == [active, active * 4, active * 4]


def test_lanes_that_are_counted_at_run_time_are_of_no_statement_yet() -> None:
    kernel = nest_of(SCALABLE_DOT.at(1), 0)
    assert replace(kernel, (SCALABLE_DOT,)) is kernel


def test_a_condition_that_is_no_predicate_is_refused() -> None:
    row = changed(SCALABLE_DOT.at(2), body=SCALABLE_DOT.at(2).body.replace("l < active", "l + 1 < active"))
    with pytest.raises(InternalError, match="scalable_dot is no perfect nest around one store"):
        _ = Specification(row).nest


@pytest.mark.sampled(4)
@pytest.mark.parametrize("row", ON_VECTORS, ids=lambda row: row.name)
def test_vectors_are_replaced_as_nests_are(row: Instruction) -> None:
    """The row that computes a nest computes it on vectors as well."""
    kernel = nest_of(row, 0)
    nest = next(s for s in statements_of(kernel.body) if isinstance(s, For) and not s.var.name.startswith("copy"))
    loops, store = perfect_nest(nest)
    assert isinstance(store, Store)
    for x in sorted(loops, key=lambda x: x.var in variables_of(store.index[0])):
        kernel = vectorise(kernel, x.var.name, int(x.hi))
    check(row, kernel)


class Mutant(Rewriter):
    """The nest's statement with another value or another place."""

    def __init__(self, buffer: Buffer, mutate: Callable[[Store], Stmt]) -> None:
        super().__init__()
        self.buffer, self.mutate = buffer, mutate

    def visit_Store(self, s: Store) -> Stmt:
        return self.mutate(s) if s.buffer is self.buffer and not isinstance(s.value, Load) else s


def mutant(kernel: Kernel, mutate: Callable[[Store], Stmt]) -> Kernel:
    (held,) = (s.buffer for s in statements_of(kernel.body) if isinstance(s, Alloc))
    body = Mutant(held, mutate).stmt(kernel.body)
    assert body is not kernel.body
    return changed(kernel, body=body)


def one_more_term(s: Store) -> Stmt:
    return Store(s.buffer, s.index, Binary("add", s.value, const(s.buffer.dtype, 1)), None)


def no_accumulator(s: Store) -> Stmt:
    assert isinstance(s.value, Binary) or hasattr(s.value, "c")
    product = s.value.b if isinstance(s.value, Binary) else Binary("mul", s.value.a, s.value.b)  # type: ignore[attr-defined]
    return Store(s.buffer, s.index, product, None)


def another_operation(s: Store) -> Stmt:
    v = s.value
    old = v.a if isinstance(v, Binary) else v.c  # type: ignore[attr-defined]
    product = v.b if isinstance(v, Binary) else Binary("mul", v.a, v.b)  # type: ignore[attr-defined]
    return Store(s.buffer, s.index, Binary("sub", old, product), None)


def another_accumulator(s: Store) -> Stmt:
    """The element that is read differs from the element that is written."""
    v = s.value
    old = Load(s.buffer, (*s.index[:-1], as_index(0)), None)
    product = v.b if isinstance(v, Binary) else Binary("mul", v.a, v.b)  # type: ignore[attr-defined]
    return Store(s.buffer, s.index, Binary("add", old, product), None)


PRODUCTS = {r.name: r for r in (*ROWS.values(), FRAGMENT, PRODUCT) if len(r.operands) == 3}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("mutate", [one_more_term, no_accumulator, another_operation, another_accumulator])
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_nest_with_another_value_stays(name: str, mutate: Callable[[Store], Stmt]) -> None:
    kernel = mutant(nest_of(PRODUCTS[name], 0), mutate)
    assert replace(kernel, (PRODUCTS[name],)) is kernel


def with_type(row: Instruction, operand: int, type_: str) -> Instruction:
    """Return a row that differs in the type of an operand."""
    operands = list(row.operands)
    operands[operand] = changed(operands[operand], dtype=type_)
    return changed(row, operands=tuple(operands))


@pytest.mark.parametrize("operand", [1, 2])
@pytest.mark.parametrize("name", [name for name, row in PRODUCTS.items() if row.types[0] != row.types[2]])
def test_a_nest_of_another_type_stays(name: str, operand: int) -> None:
    """Bytes with a sign are not bytes without one, and halves of one kind not those of the other."""
    row = PRODUCTS[name]
    other = {"u8": "s8", "s8": "u8", "s16": "s8", "bf16": "f16", "f16": "bf16"}[row.operands[operand].dtype]
    kernel = nest_of(with_type(row, operand, other), 0)
    assert replace(kernel, (row,)) is kernel


@pytest.mark.parametrize("name", [name for name, row in PRODUCTS.items() if row.types[0] == row.types[2]])
def test_a_nest_of_wider_sums_stays(name: str) -> None:
    row = PRODUCTS[name]
    wider = "f64" if row.types[2] != "f64" else "f32"
    other = changed(row, operands=tuple(changed(x, dtype=wider) for x in row.operands))
    kernel = nest_of(other, 0)
    assert replace(kernel, (row,)) is kernel


def with_steps(row: Instruction, operand: int, factor: int) -> Kernel:
    """Return the nest of a row whose innermost elements of an operand are `factor` apart."""
    kernel = nest_of(row, 0)
    b = kernel.params[operand]
    wide = make_buffer(b.name, b.dtype, (b.size * factor,))

    class Apart(Rewriter):
        def visit_Load(self, v: Load) -> Value:
            return Load(wide, (v.index[0] * factor,), None) if v.buffer is b else self._Load(v)

    return Kernel("nest", tuple(wide if x is b else x for x in kernel.params), Apart().stmt(kernel.body))


@pytest.mark.parametrize("name", [name for name, row in PRODUCTS.items() if row.operands[1].layout.elements > 1])
def test_a_nest_whose_rows_are_not_neighbours_stays(name: str) -> None:
    """Elements of a lane of several are neighbours in memory: a stride of two does not do."""
    for operand in (1, 2):
        kernel = with_steps(PRODUCTS[name], operand, 2)
        verify(kernel)
        assert replace(kernel, (PRODUCTS[name],)) is kernel


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [name for name, row in PRODUCTS.items() if row.operands[1].layout.elements == 1])
def test_elements_of_a_vector_lie_anywhere(name: str) -> None:
    kernel = with_steps(PRODUCTS[name], 1, 2)
    found = replace(kernel, (PRODUCTS[name],))
    (invoke,) = (s for s in statements_of(found.body) if isinstance(s, Invoke))
    assert isinstance(invoke.args[0], Load) and invoke.args[0].lanes is not None
    for x, y in zip(results(found, PRODUCTS[name]), results(kernel), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("name", DTYPES)
def test_constants_have_a_type(name: str) -> None:
    """A constant of a specification equals one of the same bits, whichever kernel it was made for."""
    t = dtype(name)
    if t.kind != "float" or t.bits < 32:
        return
    row = lane_wise("plus_one", f"a[l] + {'1.0' if name == 'f32' else f'{name}(1.0)'}", name)
    check(row, nest_of(row, 0))
    other = mutant(nest_of(row, 0), lambda s: Store(s.buffer, s.index, Binary("add", s.value.a, const(t, 2)), None))  # type: ignore[attr-defined]
    assert isinstance(const(t, 2), Const) and replace(other, (row,)) is other
