"""`replace` on nests that are written out: which ones are a row's and which ones stay."""

from __future__ import annotations

import numpy as np
import pytest
from specified_nests import FRAGMENT, PRODUCT, invoked, lane_wise, nest_of, results

from convsmith.diag.errors import ConfigError
from convsmith.ir.buffer import make_buffer
from convsmith.ir.instruction import Instruction, vector
from convsmith.ir.parse import parse_kernel
from convsmith.ir.rewrite import Rewriter
from convsmith.ir.stmt import Alloc, For, Kernel, Store
from convsmith.ir.value import Load, Value
from convsmith.ir.verify import verify
from convsmith.ir.walk import statements_of, walk
from convsmith.machine.generic.level import level
from convsmith.passes.replace import replace
from convsmith.passes.scope import perfect_nest


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
