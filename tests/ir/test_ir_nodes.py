"""Nodes: immutable, interned by table, picklable; traversal and rewriting."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from callers import on_threads

from convsmith.ir.buffer import Buffer, make_buffer
from convsmith.ir.index import Affine, FloorDiv, Index, Var, as_index
from convsmith.ir.intern import interning, one_table
from convsmith.ir.parse import parse_kernel, parse_stmt, parse_value
from convsmith.ir.rewrite import Rewriter, Substitute, substitute
from convsmith.ir.stmt import Alloc, For, Kernel, Stmt, Store, block
from convsmith.ir.types import DTYPES, F32, F64, S32
from convsmith.ir.value import Const, Fma, Lanes, Load, Sum, Value, const, dtype_of, lanes_of, strided
from convsmith.ir.walk import children, loops_of, variables_of, walk
from convsmith.layout.block import LayoutBlock

SRC = make_buffer("src", F32, (64,))
DST = make_buffer("dst", F32, (64,))
BUFFERS = {"src": SRC, "dst": DST}

EVERY_NODE = """\
function tile(p: src, n)
  for i in 0 .. n carrying q: src = p step 4:
    dst[i] = src[q]
kernel k(src: f32[64], dst: f32[64])
  for a in 0 .. 4 #parallel:
    let b = min(a // 2, a % 2) + max(a, 1):
      alloc acc: f32[4] @register:
        acc[0]{4} = 0.0
        for j in 0 .. 2 #unrolled:
          fma4(acc[0]{4}, src[b]{4}, src[j]{4:0/3})
        if a - 1 >= 0 and b == 0:
          dst[a] = (sum(acc[0]{4}) if a >= 0 else 1.5) - where(src[a] < 0.0, fma(src[a], src[b], 2.0), src[0] / 3.0)
        call tile(src @ a, b)
        pass
"""


def test_nodes_are_immutable_and_copy_to_themselves() -> None:
    e = Var("a") + 1
    with pytest.raises(AttributeError, match="Affine is immutable"):
        e.const = 2  # type: ignore[misc]
    with pytest.raises(AttributeError, match="Affine is immutable"):
        del e.const
    with pytest.raises(AttributeError):
        e.extra = 1
    assert copy.copy(e) is e and copy.deepcopy([e])[0] is e
    loop = For(Var("i"), as_index(0), as_index(2), block())
    with pytest.raises(AttributeError):
        loop.kind = "parallel"  # type: ignore[misc]


def test_equal_fields_are_one_object_within_a_table() -> None:
    outside = Var("x") + 1
    with interning() as table:
        inside = Var("x") + 1
        assert inside is not outside
        assert inside is Var("x") + 1
        assert (Affine, 1, inside.terms) in table
        with interning():
            assert Var("x") + 1 is not inside
        assert Var("x") + 1 is inside
    assert Var("x") + 1 is outside


def test_a_compilation_under_way_shares_its_table() -> None:
    with one_table() as table:
        inside = Var("x") + 1
        with one_table() as inner:
            assert inner is table and Var("x") + 1 is inside
    with one_table() as other:
        assert other is not table and Var("x") + 1 is not inside


def test_threads_have_tables_of_their_own() -> None:
    seen: list[Index] = []

    def build(_: int) -> None:
        with interning():
            seen.append(Var("thread") + 1)

    on_threads(build, range(2))
    assert seen[0] is not seen[1]


def test_pickling_interns_again() -> None:
    v = parse_value("src[x * 2 + 1]{4:0/2} * 3.0 + (1.0 if x >= 0 else 0.0)", BUFFERS)
    e = (Var("x") + 3) // 4
    back, index = pickle.loads(pickle.dumps((v, e)))
    assert index is e
    assert str(back) == str(v)
    with interning():
        assert pickle.loads(pickle.dumps(e)) is not e
    kernel = parse_kernel(EVERY_NODE)
    again: Kernel = pickle.loads(pickle.dumps(kernel))
    assert str(again) == str(kernel)
    assert again.functions[0].pointers[0][1] is again.params[0]


def test_constants_are_known_by_their_bits() -> None:
    assert const(F32, 0.1) is const(F32, 0.1) and const(F32, 0.1).value != 0.1
    assert const(F32, 0.0) is not const(F32, -0.0)
    assert const(F32, float("nan")) is const(F32, float("nan"))
    assert const(F32, 1e39).value == float("inf") and const(F32, -1e39).value == float("-inf")
    assert const(S32, 7).value == 7 and const(F64, 0.1).value == 0.1
    assert isinstance(const(S32, 7), Const)


@pytest.mark.parametrize("name", [name for name, row in DTYPES.items() if row.kind == "float"])
def test_constants_are_the_nearest_of_their_type(name: str) -> None:
    """To even of two, denormals and what overflows included."""
    row = DTYPES[name]
    rng = np.random.default_rng(0)
    some = [0.0, 1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11, 65519.0, 65520.0, 3.4e38, 1e-40, 2.0**-25, 1.5 * 2.0**-24]
    for x in (*some, *rng.standard_normal(200), *(2 ** rng.uniform(-30, 15, 200))):
        with np.errstate(over="ignore"):
            right = np.array([x, -x]).astype(row.numpy)
        assert const(row, float(x)).bits + const(row, float(-x)).bits == right.tobytes(), x


def test_lanes_and_types_of_values() -> None:
    x, y = Load(SRC, (as_index(0),), strided(4, 1)), Load(SRC, (as_index(0),), None)
    assert (lanes_of(x), lanes_of(y), lanes_of(Fma(y, x, y)), lanes_of(Sum(x, 4))) == (4, 0, 4, 0)
    assert dtype_of(Fma(y, x, y)) is F32
    assert strided(4, 2, 3) == Lanes((0, 2, 4, 6), 3)
    assert Lanes((0, 0, 1, 1), 4).stride is None and Lanes((0, 0), 2).stride == 0


def test_buffers() -> None:
    b = Buffer("x", F32, (4, 32), (LayoutBlock(1, 2, 64), LayoutBlock(0, 4, 16), LayoutBlock(1, 16, 1)))
    assert (b.size, b.flat, SRC.flat) == (128, False, True)
    assert make_buffer("y", F32, ()).size == 1
    assert make_buffer("z", F32, (0, 4)).size == 0
    assert SRC != make_buffer("src", F32, (64,))


def test_nodes_are_listed() -> None:
    s = parse_stmt("for i in 0 .. 2:\n  for j in 0 .. 2: dst[i] = src[j]\nfor k in 0 .. 2: dst[k] = 0.0", BUFFERS)
    assert [x.var.name for x in walk(s) if isinstance(x, For)] == ["i", "j", "k"]
    assert [x.var.name for x in loops_of(s)] == ["i", "j", "k"]
    assert {v.name for v in variables_of(s)} == {"i", "j", "k"}


def test_a_rewriter_returns_the_same_object_where_nothing_changed() -> None:
    kernel = parse_kernel(EVERY_NODE)
    for body in (kernel.body, kernel.functions[0].body):
        assert Rewriter().stmt(body) is body
        assert substitute(body, {Var("absent"): as_index(1)}) is body


class Rename(Rewriter):
    def visit_Var(self, v: Var) -> Index:
        return Var(v.name + "_")


def test_a_rewriter_reaches_every_expression() -> None:
    kernel = parse_kernel(EVERY_NODE)
    for body in (kernel.body, kernel.functions[0].body):
        used = {v.name for v in variables_of(body)}
        assert used and {v.name for v in variables_of(Rename().stmt(body))} == {n + "_" for n in used}
        assert {type(n) for n in walk(Rename().stmt(body))} == {type(n) for n in walk(body)}


def test_children_of_leaves() -> None:
    assert children(Var("a")) == () == children(const(F32, 1.0))
    assert children(Var("a") // 3) == (Var("a"),)
    assert [type(x) for x in walk((Var("a") + 1) // 3)] == [FloorDiv, Affine, Var]


def test_substitution_normalises_and_folds() -> None:
    i, j = Var("i"), Var("j")
    assert substitute(i * 4 + j % 4, {i: j // 4}) is j
    s = parse_stmt("if i - 1 >= 0: dst[i] = (src[i] if i >= 0 else 0.0)", BUFFERS)
    assert str(substitute(s, {i: as_index(2)})) == "dst[2] = src[2]"
    assert str(substitute(s, {i: as_index(0)})) == "pass"


def test_substitution_of_buffers() -> None:
    s = parse_stmt("dst[i] = src[i] * src[i + 1]", BUFFERS)
    new = make_buffer("new", F32, (64,))
    assert str(Substitute({}, {SRC: new}).stmt(s)) == "dst[i] = new[i] * new[i + 1]"
    assert str(Substitute({}, {DST: new}).stmt(s)) == "new[i] = src[i] * src[i + 1]"


class Double(Rewriter):
    calls = 0

    def visit_Load(self, v: Load) -> Value:
        Double.calls += 1
        return self.rebuild(v)  # type: ignore[no-any-return]


def test_a_rewriter_remembers_what_it_made_of_an_expression() -> None:
    s = parse_stmt("\n".join(["dst[i] = src[i]"] * 5), BUFFERS)
    assert Double().stmt(s) is s
    assert Double.calls == 1


def test_blocks_are_flattened() -> None:
    a, b = Store(DST, (as_index(0),), const(F32, 0)), Store(DST, (as_index(1),), const(F32, 0))
    assert block(a) is a
    nested: Stmt = block(block(a, b), a)
    assert nested.stmts == (a, b, a)  # type: ignore[attr-defined]
    assert str(Alloc(make_buffer("t", F32, (), "register"), block())) == "alloc t: f32[] @register:\n  pass"
