"""Rows are unified with nests: equal ones are replaced, whatever their names and their order; others are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as changed
from math import prod

import numpy as np
import pytest

from convsmith.diag.errors import ConfigError, InternalError
from convsmith.interp import run
from convsmith.ir.buffer import Buffer, make_buffer
from convsmith.ir.index import Index, Var, as_index
from convsmith.ir.instruction import FragmentLayout, Instruction, Operand, vector
from convsmith.ir.parse import parse_kernel
from convsmith.ir.rewrite import Rewriter, substitute
from convsmith.ir.stmt import Alloc, For, Invoke, Kernel, Stmt, Store, block
from convsmith.ir.types import DTYPES, dtype
from convsmith.ir.value import Binary, Const, Load, Value, const
from convsmith.ir.verify import verify
from convsmith.ir.walk import statements_of, variables_of, walk
from convsmith.machine.base import fragment_dot
from convsmith.machine.generic.level import level
from convsmith.machine.x86.levels import LEVELS
from convsmith.passes.replace import replace
from convsmith.passes.scope import perfect_nest
from convsmith.passes.unify import Specification
from convsmith.passes.vectorise import vectorise

ROWS = {r.name: r for t in (*LEVELS, level()) for r in (*t.instructions, *t.transpositions)}
FRAGMENT = fragment_dot("fragment_dot", (4, 4, 4, 2), ("u8", "s8", "s32"), "", "", (), "")
TWO_ROWS = FragmentLayout(("l // 8", "l % 8"), 16)
PRODUCT = Instruction(
    "product_2x8x2",
    (
        Operand("c", "s32", (2, 2), FragmentLayout(("l // 2", "l % 2"), 4), scope="fragment"),
        Operand("a", "s8", (2, 8), TWO_ROWS, scope="fragment"), Operand("b", "s8", (2, 8), TWO_ROWS, scope="fragment"),
    ),
    "  for m in 0 .. 2:\n    for n in 0 .. 2:\n      for k in 0 .. 8:\n"
    "        c[m, n] = c[m, n] + cast(s32, a[m, k]) * cast(s32, b[n, k])\n",
    "", "", (), "",
)  # fmt: skip
"""A product of matrices that each fill one vector."""


def lane_wise(name: str, value: str, type_: str = "f32", lanes: int = 4) -> Instruction:
    """Return the row of ``c[l] = value``, over vectors `a` and `b`."""
    operands = tuple(vector(x, type_, lanes) for x in "cab" if f"{x}[" in value or x == "c")
    return Instruction(name, operands, f"  for l in 0 .. {lanes}:\n    c[l] = {value}\n", "", "", (), "")


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


class Renamed(Rewriter):
    """The statement of a specification on the buffers of another kernel."""

    def __init__(self, loads: Callable[[Buffer, tuple[Index, ...]], tuple[Buffer, tuple[Index, ...]]]) -> None:
        super().__init__()
        self.loads = loads

    def visit_Load(self, v: Load) -> Value:
        return Load(*self.loads(v.buffer, v.index), None)

    def visit_Store(self, s: Store) -> Stmt:
        return Store(*self.loads(s.buffer, s.index), self.expr(s.value), None)


def copies(to: Buffer, of: Buffer, shape: tuple[int, ...], flat: int) -> Stmt:
    """Return the nest that copies an array between registers and flat memory: `flat` of the two is in memory."""
    loops = [Var(f"copy{n}") for n in range(len(shape))]
    place: Index = as_index(0)
    for n, v in enumerate(loops):
        place = place + v * prod(shape[n + 1 :])
    index = [tuple(loops), tuple(loops)]
    index[flat] = (place,)
    body: Stmt = Store(to, index[0], Load(of, index[1], None), None)
    for v, size in reversed(list(zip(loops, shape))):
        body = For(v, as_index(0), as_index(size), body)
    return body


def nest_of(row: Instruction, seed: int, rows: int = 0) -> Kernel:
    """Return a kernel around a nest that is the row's specification, with names, order and distances of its own.

    Results lie in registers, and so do operands of several registers; others lie in memory, where lanes of several
    elements are at any distance. With `rows` the loops that may be shorter run that often.
    """
    rng = np.random.default_rng(seed)
    form = Specification(row)
    loops, store = form.nest
    names: dict[Var, Index] = {x.var: Var(f"i{n}") for x, n in zip(loops, rng.permutation(len(loops)))}
    buffers: dict[Buffer, Buffer] = {}
    allocated, params, around = [], [], []
    lanes = {b: int(rng.integers(1, 4)) for b in row.kernel.params}
    for n, (b, x) in enumerate(zip(row.kernel.params, row.operands)):
        in_registers = n == 0 or x.layout.registers > 1
        width = b.shape[-1] + (0 if in_registers or x.layout.elements == 1 else lanes[b])
        size = prod((*b.shape[:-1], width))
        params.append(make_buffer(f"array{n}", b.dtype, (size,)))
        buffers[b] = params[-1]
        if in_registers:
            buffers[b] = make_buffer(f"held{n}", b.dtype, b.shape, "register")
            allocated.append(buffers[b])
            around.append(copies(buffers[b], params[-1], b.shape, 1))

    def place(b: Buffer, index: tuple[Index, ...]) -> tuple[Buffer, tuple[Index, ...]]:
        index = tuple(substitute(i, names) for i in index)
        if buffers[b].in_registers:
            return buffers[b], index
        flat: Index = as_index(0)
        width = params[row.kernel.params.index(b)].size // prod(b.shape[:-1])
        for n, i in enumerate(index):
            flat = flat + i * (prod((*b.shape[n + 1 : -1], width)) if n < len(b.shape) - 1 else 1)
        return buffers[b], (flat,)

    body = Renamed(place).stmt(store)
    order = rng.permutation(len(loops))
    for x, may_be_short in [(loops[n], form.partial[n]) for n in order]:
        size = rows if rows and may_be_short else int(x.hi)
        body = For(names[x.var], as_index(0), as_index(size), body)  # type: ignore[arg-type]
    held = buffers[row.kernel.params[0]]
    body = block(*around, body, copies(params[0], held, held.shape, 0))
    for b in allocated:
        body = Alloc(b, body)
    kernel = Kernel("nest", tuple(params), body)
    verify(kernel)
    return kernel


def results(kernel: Kernel, *rows: Instruction) -> list[np.ndarray]:
    """Return all arrays after the interpreter has run the kernel on whole numbers."""
    rng = np.random.default_rng(1)
    arrays = {}
    for b in kernel.params:
        low = 0 if b.dtype.kind == "uint" else -5
        arrays[b.name] = rng.integers(low, 6, b.size).astype(b.dtype.numpy)
    run(kernel, arrays, {row.name: row.kernel for row in rows})
    return list(arrays.values())


def invoked(kernel: Kernel) -> list[str]:
    return [s.instruction for s in statements_of(kernel.body) if isinstance(s, Invoke)]


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


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ROWS)
def test_each_row_replaces_its_nest(name: str, seed: int) -> None:
    check(ROWS[name], nest_of(ROWS[name], seed), is_cheap(ROWS[name]) and seed == 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if not is_cheap(row)])
def test_each_long_row_leaves_the_same_numbers(name: str) -> None:
    check(ROWS[name], nest_of(ROWS[name], 5))


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


@pytest.mark.parametrize("name", [name for name, row in PRODUCTS.items() if row.operands[1].layout.elements == 1])
def test_elements_of_a_vector_lie_anywhere(name: str) -> None:
    kernel = with_steps(PRODUCTS[name], 1, 2)
    found = replace(kernel, (PRODUCTS[name],))
    (invoke,) = (s for s in statements_of(found.body) if isinstance(s, Invoke))
    assert isinstance(invoke.args[0], Load) and invoke.args[0].lanes is not None
    for x, y in zip(results(found, PRODUCTS[name]), results(kernel), strict=True):
        np.testing.assert_array_equal(x, y)


def text_of(body: str, rows: tuple[Instruction, ...]) -> str:
    """Return the text of a kernel with sums in registers, after the rows have been looked for."""
    kernel = parse_kernel(
        "kernel k(a: f32[64], b: f32[64], out: f32[16])\n"
        f"  alloc acc: f32[4] @register:\n    alloc wide: f32[8] @register:\n{body}"
    )
    verify(kernel)
    return str(replace(kernel, rows)).partition("@register:\n")[2].partition("@register:\n")[2]


FMA = level().instructions


@pytest.mark.parametrize(
    "body",
    [
        "      for i in 0 .. 4: wide[i * 2] = wide[i * 2] + a[i] * b[i]\n",
        "      for i in 0 .. 4: wide[i] = wide[i] + a[i] * b[i]\n",
        "      for i in 0 .. 3: acc[i] = acc[i] + a[i] * b[i]\n",
        "      for i in 0 .. 8: wide[i] = wide[i] + a[i] * b[i]\n",
        "      for i in 1 .. 5: acc[i - 1] = acc[i - 1] + a[i] * b[i]\n",
        "      for i in 0 .. 4: acc[-i + 3] = acc[-i + 3] + a[i] * b[i]\n",
        "      for i in 0 .. 4: acc[i] = acc[i] + a[i // 2] * b[i]\n",
        "      for i in 0 .. 4: acc[i] = acc[i] + acc[0] * b[i]\n",
        "      for i in 0 .. 4: out[i] = out[i] + a[i] * b[i]\n",
        "      for i in 0 .. 4: if i < 2: acc[i] = acc[i] + a[i] * b[i]\n",
    ],
)
def test_nests_that_are_nearly_a_multiply_add_stay(body: str) -> None:
    assert "multiply_add" not in text_of(body, FMA)


@pytest.mark.parametrize(
    "body, invoke",
    [
        ("for i in 0 .. 4: acc[i] = acc[i] + a[i] * b[i]", "a[0]{4}, b[0]{4}"),
        ("for i in 0 .. 4: acc[i] = b[i] * a[i] + acc[i]", "b[0]{4}, a[0]{4}"),
        ("for i in 0 .. 4: acc[i] = fma(a[i * 3 + 5], b[7], acc[i])", "a[5]{4:3}, b[7]{4:0}"),
    ],
)
def test_nests_that_are_a_multiply_add(body: str, invoke: str) -> None:
    assert f"multiply_add_128(acc[0]{{4}}, {invoke})" in text_of(f"      {body}\n", FMA)


def test_loops_around_a_nest_stay() -> None:
    text = text_of("      for k in 0 .. 5: for i in 0 .. 4: acc[i] = acc[i] + a[k] * b[k * 4 + i]\n", FMA)
    assert text.split() == "for k in 0 .. 5: multiply_add_128(acc[0]{4}, a[k]{4:0}, b[k * 4]{4})".split()


def test_the_first_row_is_taken() -> None:
    rows = (lane_wise("first", "fma(a[l], b[l], c[l])"), lane_wise("second", "fma(a[l], b[l], c[l])"))
    body = "      for i in 0 .. 4: acc[i] = acc[i] + a[i] * b[i]\n"
    assert "first(" in text_of(body, rows) and "second(" in text_of(body, rows[::-1])


def test_terms_in_an_order_that_matters_keep_it() -> None:
    """A polynomial takes its coefficients from the first to the last."""
    horner = Instruction(
        "horner", (vector("c", "f32", 4), vector("a", "f32", 6), vector("b", "f32", 4)),
        "  for i in 0 .. 2:\n    for j in 0 .. 3:\n      for l in 0 .. 4:\n        c[l] = c[l] * b[l] + a[i * 3 + j]\n",
        "", "", (), "",
    )  # fmt: skip
    update = "acc[l] = acc[l] * b[l] + a[x * 3 + y]\n"
    nest = f"for l in 0 .. 4: {update}"
    kept = f"      for x in 0 .. 2: for y in 0 .. 3: {nest}"
    assert "horner(acc[0]{4}, a[0]{6}, b[0]{4})" in text_of(kept, (horner,)) and results_agree(kept, horner)
    assert "horner" not in text_of(f"      for y in 0 .. 3: for x in 0 .. 2: {nest}", (horner,))
    assert "horner" in text_of(
        f"      for x in 0 .. 2: for l in 0 .. 4: for y in 0 .. 3: {nest.removeprefix('for l in 0 .. 4: ')}", (horner,)
    )


def results_agree(body: str, row: Instruction) -> bool:
    """Return whether the kernel computes the same with the row as without."""
    text = (
        "kernel k(a: f32[64], b: f32[64], out: f32[4])\n  alloc acc: f32[4] @register:\n"
        "    for i in 0 .. 4: acc[i] = out[i]\n" + body.replace("      ", "    ", 1)
        + "    for i in 0 .. 4: out[i] = acc[i]\n"
    )  # fmt: skip
    kernel = parse_kernel(text)
    found = replace(kernel, (row,))
    return all(np.array_equal(x, y) for x, y in zip(results(found, row), results(kernel)))


@pytest.mark.parametrize("row", [FRAGMENT, PRODUCT], ids=lambda row: row.name)
@pytest.mark.parametrize("operand", [1, 2])
def test_an_operand_that_one_more_loop_moves_is_another(row: Instruction, operand: int) -> None:
    kernel = nest_of(row, 0)
    array = kernel.params[operand]
    accumulator = next(s.buffer for s in statements_of(kernel.body) if isinstance(s, Alloc))
    nest = next(s for s in statements_of(kernel.body) if isinstance(s, For) and s.var.name.startswith("i"))
    loops, store = perfect_nest(nest)
    assert isinstance(store, Store)
    read = next(v for v in walk(store.value) if isinstance(v, Load) and v.buffer is array)
    (other,) = (x.var for x in loops if x.var not in dict(read.index[0].terms))
    wide = make_buffer(array.name, array.dtype, (array.size + 4,))

    class Moved(Rewriter):
        def visit_Load(self, v: Load) -> Value:
            return Load(wide, (v.index[0] + other,), None) if v.buffer is array else v

    params = tuple(wide if b is array else b for b in kernel.params)
    moved = Kernel("nest", params, Moved().stmt(kernel.body))
    verify(moved)
    assert accumulator.scope == "register" and replace(moved, (row,)) is moved


def test_a_transposed_result_is_another() -> None:
    kernel = parse_kernel(sums_text(GOOD.replace("acc[i, j]", "acc[j, i]")))
    assert replace(kernel, (FRAGMENT,)) is kernel


def test_a_copy_between_registers_is_no_transposition() -> None:
    row = next(row for row in level().transpositions if row.name == "transpose_4x4_f32")
    text = (
        "kernel k(a: f32[16], out: f32[16])\n  alloc t: f32[4, 4] @register:\n    alloc u: f32[4, 4] @register:\n"
        "      for i in 0 .. 4: for j in 0 .. 4: t[i, j] = a[i * 4 + j]\n"
        "      for i in 0 .. 4: for j in 0 .. 4: u[{}] = t[i, j]\n"
        "      for i in 0 .. 4: for j in 0 .. 4: out[i * 4 + j] = u[i, j]\n"
    )
    assert invoked(replace(parse_kernel(text.format("j, i")), (row,))) == [row.name]
    copied = parse_kernel(text.format("i, j"))
    assert replace(copied, (row,)) is copied


def sums_text(sums: str) -> str:
    return (
        "kernel k(a: u8[64], b: s8[64], out: s32[16])\n  alloc acc: s32[4, 4] @register:\n"
        "    for i in 0 .. 4: for j in 0 .. 4: acc[i, j] = s32(0)\n"
        f"    {sums}\n    for i in 0 .. 4: for j in 0 .. 4: out[i * 4 + j] = acc[i, j]\n"
    )


GOOD = (
    "for k in 0 .. 4: for r in 0 .. 2: for j in 0 .. 4: for i in 0 .. 4: acc[i, j] = acc[i, j] + "
    "cast(s32, a[i * 8 + k * 2 + r]) * cast(s32, b[k * 8 + j * 2 + r])"
)


def test_a_sum_that_no_row_computes_is_refused_where_asked() -> None:
    kernel = parse_kernel(sums_text(GOOD.replace("j * 2 + r]", "j + r * 4]")))
    assert replace(kernel, (FRAGMENT,)) is kernel
    with pytest.raises(ConfigError, match=r"none of fragment_dot computes acc.* in loops k 0 .. 4, r 0 .. 2"):
        replace(kernel, (FRAGMENT,), ("i",))
    assert replace(kernel, (FRAGMENT,), ("x",)) is kernel
    assert invoked(replace(parse_kernel(sums_text(GOOD)), (FRAGMENT,), ("i",))) == ["fragment_dot"]


def test_a_fragment_that_is_read_otherwise_is_refused() -> None:
    """The elements of a fragment have no place of their own: it is copied by rows."""
    kernel = parse_kernel(sums_text(GOOD).replace("out[i * 4 + j]", "out[j * 4 + i]"))
    with pytest.raises(ConfigError, match="no copy of rows of a fragment"):
        replace(kernel, (FRAGMENT,))


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
