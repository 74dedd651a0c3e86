"""Printing and parsing are exact inverses; what does not parse says where and what was expected."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from draws import examples
from hypothesis import given
from hypothesis import strategies as st

from convsmith.diag.errors import UsageError
from convsmith.ir.buffer import make_buffer
from convsmith.ir.equal import first_mismatch
from convsmith.ir.index import Var, as_index
from convsmith.ir.parse import parse_cond, parse_index, parse_kernel, parse_stmt, parse_value
from convsmith.ir.stmt import Kernel, Store
from convsmith.ir.types import BF16, DTYPES, F16, F32, F64, S32
from convsmith.ir.value import (
    BINARY,
    COMPARISONS,
    UNARY,
    Binary,
    Bits,
    Cast,
    Fma,
    Lanes,
    Load,
    Repeat,
    Select,
    Sum,
    Sums,
    Unary,
    Value,
    Where,
    const,
    lanes_of,
    strided,
)

SRC = make_buffer("src", F32, (64,))
ACC = make_buffer("acc", F32, (2, 4), "register")
BUFFERS = {"src": SRC, "acc": ACC}

KERNEL = """\
function tile(p: src, q: tmp, n)
  alloc acc: f32[16] @register:
    acc[0]{16} = 0.0
    for kh in max(-n + 1, 0) .. 3 #unrolled carrying r: src = p step 48, t: tmp = q step -16:
      if kh - 1 >= 0 and kh - 2 == 0:
        fma16(acc[0]{16}, src[r + 8]{16:0/5}, repeat(tmp[t]{(0, 0, 1, 1)}, 4))
    pass
kernel conv(src: f32[288], wei: f32[8, 8], dst: f32[1, 5, 6, 8] = 0:1:240 1:5:8 2:6:40 3:8:1) #i32
  let ow.i = -(oc // 4) * 2 + x % 4:
    for a in 0 .. 2 #parallel:
      alloc tmp: f32[16] @cache:
        call tile(src @ a * 4, tmp @ 0, a + 1)
        dst[0, 0, 0, 0] = -1.5
pack conv_pack(wei: f32[8, 8], wei_p: f32[64])
  for i in 0 .. 8:
    wei_p[i] = (wei[i, 0] if i - 3 >= 0 else 0.0)
"""

numbers = st.floats(width=32, allow_nan=False).map(lambda x: const(F32, x))
indices = st.sampled_from([as_index(0), Var("i"), Var("ow.i") * 2 + 1, (Var("i") + 3) // 4])
lanes = st.sampled_from([None, strided(4, 1), strided(4, 0), strided(4, -2, 3), Lanes((0, 0, 1, 1), 4), Lanes((3,), 1)])
loads = st.one_of(
    st.builds(lambda i, n: Load(SRC, (i,), n), indices, lanes),
    st.builds(lambda i, j: Load(ACC, (i, j), None), indices, indices),
)
conditions = st.sampled_from([Var("i") >= 0, parse_cond("i >= 0 and j == 2"), parse_cond("true"), parse_cond("false")])


types = st.sampled_from(list(DTYPES.values()))


def _grow(inner: st.SearchStrategy[Value]) -> st.SearchStrategy[Value]:
    return st.one_of(
        st.builds(Binary, st.sampled_from(BINARY), inner, inner),
        st.builds(Fma, inner, inner, inner),
        st.builds(Select, conditions, inner, inner),
        st.builds(Where, st.sampled_from(COMPARISONS), inner, inner, inner, inner),
        st.builds(Unary, st.sampled_from(UNARY), inner),
        st.builds(lambda a: Sum(a, lanes_of(a)), inner),
        st.builds(Sum, inner, st.sampled_from([1, 2, 4])),
        st.builds(lambda a, b: Sums((a, b)), inner, inner),
        st.builds(Repeat, inner, st.integers(1, 16)),
        st.builds(Cast, types, inner),
        st.builds(Bits, types, inner),
    )


values = st.recursive(st.one_of(numbers, loads), _grow, max_leaves=10)


@examples(200)
@given(values)
def test_values_print_and_parse(v: Value) -> None:
    assert parse_value(str(v), BUFFERS) is v


@pytest.mark.parametrize("inner", BINARY)
@pytest.mark.parametrize("outer", BINARY)
def test_operators_within_operators(outer: str, inner: str) -> None:
    a, b, c = (Load(SRC, (as_index(n),), None) for n in range(3))
    for v in (Binary(outer, Binary(inner, a, b), c), Binary(outer, a, Binary(inner, b, c))):
        assert parse_value(str(v), BUFFERS) is v


@examples(50)
@given(values, lanes)
def test_stores_print_and_parse(v: Value, n: Lanes | None) -> None:
    s = Store(SRC, (Var("i") * 3,), v, n)
    back = parse_stmt(str(s), BUFFERS)
    assert isinstance(back, Store)
    assert (back.buffer, back.index, back.value, back.lanes) == (SRC, s.index, v, n)


def test_long_values_have_names_for_what_occurs_again() -> None:
    v: Value = Load(SRC, (Var("i"),), None)
    for _ in range(12):
        v = Binary("max", v, Unary("neg", v))
    s = Store(SRC, (Var("i"),), v, None)
    lines = str(s).split("\n")
    assert len(lines) == 12
    assert lines[:2] == ["value v0 = max(src[i], neg(src[i]))", "value v1 = max(v0, neg(v0))"]
    assert lines[-1] == "src[i] = max(v10, neg(v10))"
    back = parse_stmt(str(s), BUFFERS)
    assert isinstance(back, Store) and back.value is v


def test_kernels_print_and_parse() -> None:
    kernel = parse_kernel(KERNEL)
    assert str(kernel) == KERNEL
    again = parse_kernel(str(kernel))
    assert first_mismatch(kernel, again) is None
    assert kernel.index_bits == 32 and [b.name for b in kernel.params] == ["src", "wei", "dst"]
    assert kernel.packs[0].params[0] is kernel.params[1]


@pytest.mark.parametrize("value", [0.1, -0.0, 1e-5, 1e16, float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("dtype", [F32, F64, F16, BF16])
def test_constants(value: float, dtype: object) -> None:
    c = const(dtype, value)  # type: ignore[arg-type]
    assert parse_value(str(c), {}) is c


def test_integer_constants() -> None:
    assert str(const(S32, -4)) == "s32(-4)"
    assert parse_value("s32(-4)", {}) is const(S32, -4)
    for row in (r for r in DTYPES.values() if r.kind != "float"):
        for value in (*row.limits, 5):
            assert parse_value(f"{row}({value})", {}) is const(row, value) and const(row, value).value == value


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("for i in 0 .. 4: src[i] = 0.0", "for i in 0 .. 4:\n  src[i] = 0.0"),
        (
            "for i in 0 .. 4: for j in 0 .. 2:\n    src[i] = 0.0\n\n    src[j] = 1.0",
            "for i in 0 .. 4:\n  for j in 0 .. 2:\n    src[i] = 0.0\n    src[j] = 1.0",
        ),
        ("  for i in 0 .. 4 #serial:\n     src[i]=src[ 2*i ]+1.0", "for i in 0 .. 4:\n  src[i] = src[i * 2] + 1.0"),
        ("if i < 3 and 4 > j:\n  pass", "if -i + 2 >= 0 and -j + 3 >= 0:\n  pass"),
        ("if i <= 3: pass", "if -i + 3 >= 0:\n  pass"),
        ("src[0] = (src[1] - src[2]) - (src[3] - src[4])", "src[0] = src[1] - src[2] - (src[3] - src[4])"),
    ],
)
def test_more_than_the_printer_writes(text: str, printed: str) -> None:
    assert str(parse_stmt(text, BUFFERS)) == printed


@pytest.mark.parametrize(
    "text",
    [
        "where(src[0] < 1.0, src[1], neg(src[2]))",
        "where(src[0] != src[1] + 1.0, s8(1), s8(-1))",
        "and(s32(1), or(bits(s32, src[0]), shl(s32(1), s32(3))))",
        "sum(src[0]{8}, 4)",
        "sum(src[0]{8})",
        "lookup(src[0], cast(u8, src[0]{4}))", "repeat(src[0]{4/3}, 16)", "src[0]{4/1:4} + src[0]{4:2/2:3}",
        "cast(bf16, round(src[0]))",
    ],
)
def test_what_values_look_like(text: str) -> None:
    assert str(parse_value(text, BUFFERS)) == text


def test_empty_blocks_are_kept() -> None:
    text = "for i in 0 .. 4:\n  pass\n  src[i] = 0.0\n  pass"
    assert str(parse_stmt(text, BUFFERS)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a +", "line 1, column 4: expected an index, found end of line"),
        ("", "line 1, column 1: expected an index, found end of text"),
        ("a b", "line 1, column 3: expected the end, found 'b'"),
        ("a % b", "line 1, column 5: expected a positive constant, found 'b'"),
        ("a % 0", "line 1, column 5: expected a positive constant, found '0'"),
        ("(a + 1", "line 1, column 7: expected ')', found end of line"),
        ("min()", "line 1, column 6: expected arguments of min, found end of line"),
        ("a & 1", "line 1, column 3: '&' starts no token"),
        ("a * " + "9" * 5000, "line 1, column 5: expected a number of at most 300 digits"),
        ("a\n+ b", "line 2, column 1: expected the end, found '+'"),
    ],
)
def test_errors_of_indices(text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_index(text)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("src[0] = wei[0]", "line 1, column 10: expected a buffer that is in scope (src, acc), found 'wei'"),
        ("src[0] = 1", "line 1, column 10: expected a value, found '1'"),
        ("src[0] = -x", "line 1, column 11: expected a number with a point, found 'x'"),
        ("src[0] = fma(1.0, 2.0)", "line 1, column 10: expected 3 arguments, not 2, found 'fma'"),
        ("src[0] = u8(256)", "line 1, column 13: expected an integer from 0 to 255, found '256'"),
        (
            "src[0] = cast(2.0)",
            f"line 1, column 15: expected a data type ({', '.join(DTYPES)}), found '2.0'",
        ),
        ("src[0] = 1.0 2.0", "line 1, column 14: expected the end of the statement, found '2.0'"),
        ("src[0]{4/x} = 1.0", "line 1, column 10: expected the number of active lanes, found 'x'"),
        ("src[0 = 1.0", "line 1, column 7: expected ',', found '='"),
        ("for i in 0 .. 4\n  pass", "line 1, column 16: expected ':', found end of line"),
        ("for i in 0 .. 4:\npass", "line 2, column 1: expected an indented block, found 'pass'"),
        (
            "for i in 0 .. 4 #quick: pass",
            "line 1, column 17: expected #serial or #unrolled or #parallel or #scalable or #pipelined or "
            "#signalled or #team or #grid or #cluster or #group or #warp or #lane, found '#quick'",
        ),
        ("for i in 0 : 4: pass", "line 1, column 12: expected '..', found ':'"),
        ("if i: pass", "line 1, column 5: expected one of < <= > >= ==, found ':'"),
        ("pass\n    pass", "line 2, column 5: expected a statement, found more indentation"),
        ("if i < 2:\n    pass\n  pass", "line 3, column 3: the indentation is that of no line above"),
        ("  pass\npass", "line 2, column 1: the indentation is that of no line above"),
        ("call f(1, src @ 2)", "line 1, column 11: expected an index: pointers come first, found 'src'"),
        ("src[0] = where(1.0 + 2.0, 1.0, 2.0)", "line 1, column 25: expected one of < <= > >= == !=, found ','"),
        ("src[0] = sqrt(1.0, 2.0)", "line 1, column 10: expected 1 arguments, not 2, found 'sqrt'"),
        ("src[0] = repeat(1.0)", "line 1, column 20: expected ',', found ')'"),
        ("src[0] = sum(src[0]{4}, x)", "line 1, column 25: expected the lanes of a group, found 'x'"),
        ("fma4(repeat(1.0, 4))", "line 1, column 6: expected an access, found 'repeat'"),
        ("fma4()", "line 1, column 7: expected the accumulator of fma4, found end of line"),
        (
            "alloc t: f99[4] @register: pass",
            f"line 1, column 10: expected a data type ({', '.join(DTYPES)}), found 'f99'",
        ),
        (
            "alloc t: f32[4] @heap: pass",
            "line 1, column 18: expected global or cache or shared or register or fragment, found 'heap'",
        ),
        ("= 1.0", "line 1, column 1: expected a statement, found '='"),
    ],
)
def test_errors_of_statements(text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_stmt(text, BUFFERS)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kernel k(a: f32[2])\npass", "line 2, column 1: expected an indented block, found 'pass'"),
        (
            f"kernel k(a: f32[2]) #i{'9' * 5000}\n  pass",
            "line 1, column 21: expected a number of at most 300 digits",
        ),
        (
            "kernel k(a: f32[2]) #32\n  pass",
            "line 1, column 21: expected a width such as #i32, or #stream and names of buffers, found '#32'",
        ),
        ("function f(p: a)\n  pass\n", "line 3, column 1: expected 'kernel', found end of text"),
        ("function f(p: a)\n", "line 2, column 1: expected an indented function, then a kernel, found end of text"),
        (
            "function f(p: b)\n  pass\nkernel k(a: f32[2])\n  pass",
            "line 1, column 15: expected a buffer that is in scope (a), found 'b'",
        ),
        (
            "kernel k(a: f32[2])\n  pass\nkernel k(a: f32[2])\n  pass",
            "line 3, column 1: expected 'pack', found 'kernel'",
        ),
    ],
)
def test_errors_of_kernels(text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_kernel(text)
    assert str(error.value) == message


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("parse", "before", "inner", "after", "end"),
    [
        (parse_index, "(", "i", ")", ""),
        (parse_index, "-", "i", "", ""),
        (parse_index, "min(", "i", ", 3)", ""),
        (parse_cond, "(", "i", ")", " < 3"),
        (lambda text: parse_value(text, BUFFERS), "neg(", "src[0]", ")", ""),
        (lambda text: parse_value(text, BUFFERS), "(src[0] + ", "src[0]", ")", ""),
        (lambda text: parse_value(text, BUFFERS), "(", "src[0]", " if i == 0 else 1.0)", ""),
        (lambda text: parse_stmt(text, BUFFERS), "for i in 0 .. 4: ", "pass", "", ""),
        (lambda text: parse_kernel(f"kernel k(src: f32[4])\n  src[0] = {text}\n"), "neg(", "src[0]", ")", ""),
    ],
)
def test_nests_are_read_or_said_to_be_too_deep(
    parse: Callable[[str], object], before: str, inner: str, after: str, end: str
) -> None:
    assert str(parse(before * 40 + inner + after * 40 + end))
    with pytest.raises(UsageError, match=r"line [12], column [0-9]+: expected less nesting"):
        parse(before * 5000 + inner + after * 5000 + end)


@examples(100)
@given(st.data())
def test_spoilt_text_is_read_or_refused(data: st.DataObject) -> None:
    text = KERNEL
    pieces = st.sampled_from(re.findall(r"\w+|\s+|[^\w\s]", KERNEL) + ["9" * 5000, "((", "-", "?", "#", "\t", "é", "²"])
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 8)))
        text = text[:start] + data.draw(pieces) + text[end:]
    try:
        parse_kernel(text)
    except UsageError as error:
        assert re.match("line [0-9]+, column [0-9]+: ", str(error))


def test_a_function_sees_the_buffers_of_its_own_kernel() -> None:
    kernel: Kernel = parse_kernel(KERNEL)
    (_, src), (_, tmp) = kernel.functions[0].pointers
    assert src is kernel.params[0]
    assert (tmp.name, tmp.scope) == ("tmp", "cache")
