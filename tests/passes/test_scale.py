"""Loops whose iterations become units of vectors: the same values at any number of units, or the loop is left."""

from __future__ import annotations

import random

import numpy as np
import pytest
from draws import examples
from hypothesis import given
from hypothesis import strategies as st

from convsmith.compiler.driver import lower
from convsmith.interp import InterpError, run
from convsmith.ir.intern import interning
from convsmith.ir.parse import parse_kernel
from convsmith.ir.stmt import Kernel
from convsmith.ir.verify import verify
from convsmith.ir.walk import loops_of
from convsmith.layout.block import ABSENT
from convsmith.machine.aarch64.levels import LEVELS
from convsmith.machine.base import Machine
from convsmith.passes.scale import scale
from convsmith.problem import parse_problem
from convsmith.schedule.plan import plan
from convsmith.tune.candidates import default_config

SIZE = 100
NAMES = "abc"
HEAD = f"kernel k({', '.join(f'{n}: s32[{SIZE}]' for n in NAMES)})\n"
SCALES = (1, 2, 3, 4)


def any_length() -> Machine:
    (found,) = (x for x in LEVELS if x.vectors.scalable)
    return found


def results(kernel: Kernel, units: int) -> dict[str, np.ndarray]:
    arrays = {n: np.random.default_rng(ord(n)).integers(-9, 10, SIZE).astype(np.int32) for n in NAMES}
    run(kernel, arrays, {row.name: row.kernel for row in any_length().instructions}, scale=units)
    return arrays


def is_scalable(kernel: Kernel) -> bool:
    return any(x.kind == "scalable" for x in loops_of(kernel.body))


# -- random loops
def place(r: random.Random, step: int, name: str) -> str:
    """An access whose units are mostly `step` elements apart."""
    step = step if r.random() < 0.9 else r.choice((0, 3, 4, 8))
    inner = r.choice((" + u * k", " + u // 2 * 4")) if r.random() < 0.05 else r.choice(("", "", " + k * 4"))
    return f"{name}[u * {step}{inner} + {r.choice((0, 0, 0, 4, 1, 16, 40))}]"


def vector(r: random.Random) -> str:
    name, kind = r.choice("aaabbbc"), r.randrange(20)
    if kind == 0:
        return f"({place(r, 4, name)}{{4}} if {r.choice(('u', 'k'))} - 1 >= 0 else s32(0))"
    if kind == 1:
        return f"repeat({place(r, 0, name)}{{2}}, 2)"
    if kind == 2:
        return f"{place(r, 4, name)}{r.choice(('{4:2}', '{4/3}'))}"
    if kind == 3:
        return f"{place(r, 8, name)}{{4:2}}"
    return f"{place(r, 4, name)}{{4}}" if kind < 12 else f"{place(r, 0, name)}{{4:0}}"


def random_loop(seed: int) -> str:
    r = random.Random(seed)
    lines = [f"  for u in 0 .. {r.randint(2, 5)}:", "    alloc acc: s32[4] @register:", "      acc[0]{4} = s32(0)"]
    lines.append(f"      for k in 0 .. {r.choice(('2', '2', '2', '2', 'u + 1'))}:")
    for _ in range(r.randint(1, 2)):
        lines.append(f"        acc[0]{{4}} = acc[0]{{4}} + {vector(r)} * {vector(r)}")
        if r.random() < 0.2:
            lines.append(f"        {place(r, 4, 'c')}{{4}} = acc[0]{{4}}")
    lines.append(f"      {place(r, 4, 'c').replace('k', 'u')}{{4}} = acc[0]{{4}}")
    return HEAD + "\n".join(lines) + "\n"


def check(seed: int) -> bool:
    """Return whether the random loop becomes scalable; its values are then the same at any number of units."""
    with interning():
        kernel = parse_kernel(random_loop(seed))
        verify(kernel)
        try:
            wanted = results(kernel, 1)
        except InterpError:  # lanes of different counts, for example
            return False
        scaled = scale(kernel, ("u",))
        if not is_scalable(scaled):
            assert scaled is kernel
            return False
        verify(scaled)
        for units in SCALES:
            try:
                found = results(scaled, units)
            except InterpError as error:
                raise AssertionError(f"{units} units: {error}\n{scaled}") from error
            for n in NAMES:
                np.testing.assert_array_equal(found[n], wanted[n], err_msg=f"{units} units: {n}\n{scaled}")
    return True


@examples(300)
@given(st.integers(0, 1 << 32))
def test_random_loops_keep_every_value_at_any_number_of_units(seed: int) -> None:
    check(seed)


def test_loops_become_scalable_now_and_then() -> None:
    assert sum(check(seed) for seed in range(100)) > 10


# -- loops that are left
LOOP = """kernel k(a: s32[100], b: s32[100], c: s32[100])
  for u in 0 .. 4:
    alloc acc: s32[4] @register:
      acc[0]{4} = a[u * 4 + 40]{4}
      for k in 0 .. 2:
        acc[0]{4} = acc[0]{4} + a[k]{4:0} * b[u * 4 + k * 16]{4}
      c[u * 4]{4} = acc[0]{4}
"""


def test_units_that_are_adjacent_or_the_same() -> None:
    kernel = parse_kernel(LOOP)
    scaled = scale(kernel, ("u",))
    assert is_scalable(scaled)
    for units in SCALES:
        np.testing.assert_array_equal(results(scaled, units)["c"], results(kernel, 1)["c"])


@pytest.mark.parametrize(
    "old, new",
    [
        ("b[u * 4 + k * 16]{4}", "b[u * 12 + k * 16]{4:3}"), ("c[u * 4]{4}", "c[u * 20]{4:5}"),
        ("c[u * 4]", "c[12 - u * 4]"),
    ],
)
def test_lanes_that_are_evenly_apart(old: str, new: str) -> None:
    assert LOOP.count(old) == 1
    kernel = parse_kernel(LOOP.replace(old, new))
    scaled = scale(kernel, ("u",))
    assert is_scalable(scaled) == ("12 - u" not in new)
    for units in SCALES:
        np.testing.assert_array_equal(results(scaled, units)["c"], results(kernel, 1)["c"])


def test_iterations_of_a_block_are_units() -> None:
    kernel = parse_kernel(LOOP.replace("c[u * 4]{4}", "c[u % 2 * 4 + u // 2 * 20]{4}"))
    scaled = scale(kernel, ("u",))
    assert "for u.b in 0 .. 2:\n    for u in 0 .. 2 #scalable:" in str(scaled)
    odd = scale(parse_kernel(LOOP.replace("c[u * 4]{4}", "c[u % 3 * 4 + u // 3 * 20]{4}")), ("u",))
    assert "for u in 0 .. min(-u.b * 3 + 4, 3) #scalable:" in str(odd)
    for units in SCALES:
        np.testing.assert_array_equal(results(scaled, units)["c"], results(kernel, 1)["c"])
        results(odd, units)


def test_threads_share_blocks_of_units() -> None:
    """Loops that threads share too are around the units."""
    text = """kernel k(a: s32[100], b: s32[100], c: s32[100])
  for u in 0 .. 6 #parallel:
    for i in 0 .. 2 #parallel:
      c[u * 4 + i * 24]{4} = a[u * 4]{4} * b[i]{4:0}
    for i in 0 .. 1 #parallel:
      c[u * 4 + i * 24 + 48]{4} = a[u * 4]{4}
"""
    kernel = parse_kernel(text)
    scaled = scale(kernel, ("u",), (), 2)
    around = "  for u.b in 0 .. 2 #parallel:\n    for i in 0 .. 2 #parallel:\n      for u in 0 .. 3 #scalable:\n"
    assert around in str(scaled)
    assert sum(x.kind == "scalable" for x in loops_of(scaled.body)) == 2
    for units in SCALES:
        np.testing.assert_array_equal(results(scaled, units)["c"], results(kernel, 1)["c"])
    depending = parse_kernel(text.replace("i in 0 .. 1 ", "i in 0 .. u "))
    assert scale(depending, ("u",), (), 2) is depending


POINTED = """kernel k(a: f32[8], z: f32[4], t: ptr[6], dst: f32[16])
  for u in 0 .. 4:
    at t[1] + 2 in a or z[0] as p: f32[2]:
      dst[u * 4]{4} = p[0]{4:0} + p[0]{4:0}
"""


def test_units_share_pointers() -> None:
    found = []
    for table in (3, ABSENT):
        for units in SCALES:
            arrays: dict[str, np.ndarray] = {"a": np.arange(8, dtype=np.float32), "z": np.zeros(4, np.float32)}
            arrays |= {"t": np.full(6, table, np.int64), "dst": np.zeros(16, np.float32)}
            scaled = scale(parse_kernel(POINTED), ("u",))
            assert is_scalable(scaled)
            run(scaled, arrays, scale=units)
            found.append(set(arrays["dst"]))
    assert found == [{10.0}] * 4 + [{0.0}] * 4
    apart = parse_kernel(POINTED.replace("t[1]", "t[u]"))
    assert scale(apart, ("u",)) is apart


@pytest.mark.parametrize(
    "old, new",
    [
        ("b[u * 4 + k * 16]", "b[u * 8 + k * 16]"),
        ("c[u * 4]{4} =", "c[u * 4]{4:2} ="),
        ("a[k]{4:0}", "a[u]{4:0}"),
        ("a[k]{4:0}", "a[k]{4:2}"),
        ("a[k]{4:0}", "a[u // 2 * 8]{4}"),
        ("a[k]{4:0}", "a[k]{4}"),
        ("c[u * 4]{4} =", "c[u * 4]{4/3} ="),
        ("c[u * 4]{4} =", "a[u * 4 + 44]{4} ="),
        ("for k in 0 .. 2", "for k in 0 .. u + 1"),
        ("      c[u * 4]{4} =", "      if u - 1 >= 0:\n        c[u * 4]{4} ="),
        ("      c[u * 4]{4} =", "      c[90] = s32(1)\n      c[u * 4]{4} ="),
        ("b[u * 4 + k * 16]{4}", "repeat(b[u * 4]{2}, 2)"),
    ],
)
def test_these_are_left(old: str, new: str) -> None:
    assert LOOP.count(old) == 1
    kernel = parse_kernel(LOOP.replace(old, new))
    verify(kernel)
    assert scale(kernel, ("u",)) is kernel


def test_instructions_need_a_row_on_all_units() -> None:
    text = """kernel k(a: f32[16], b: f32[16])
  for u in 0 .. 4:
    alloc acc: f32[1, 4] @register:
      acc[0, 0]{4} = 0.0
      fmla_4s(acc[0, 0]{4}, a[u * 4]{4}, a[u * 4]{4})
      b[u * 4]{4} = acc[0, 0]{4}
"""
    kernel = parse_kernel(text)
    assert is_scalable(scale(kernel, ("u",), any_length().instructions))
    assert scale(kernel, ("u",)) is kernel


# -- the interpreter runs the statements of several iterations one after the other
def test_iterations_that_depend_on_each_other_show() -> None:
    text = LOOP.replace("for u in 0 .. 4:", "for u in 0 .. 4 #scalable:")
    kernel = parse_kernel(text.replace("c[u * 4]{4} =", "a[u * 4 + 44]{4} ="))
    assert (results(kernel, 2)["a"] != results(kernel, 1)["a"]).any()


def test_units_that_are_not_side_by_side_are_an_error() -> None:
    text = LOOP.replace("for u in 0 .. 4:", "for u in 0 .. 4 #scalable:").replace("b[u * 4", "b[u * 8")
    results(parse_kernel(text), 1)
    with pytest.raises(InterpError, match="units of b are 8 elements apart; legal is 0 or 4"):
        results(parse_kernel(text), 2)


@pytest.mark.parametrize(
    "old, new", [("for k in 0 .. 2", "for k in 0 .. u + 1"), ("      c[u", "      if u - 1 >= 0:\n        c[u")]
)
def test_control_flow_that_differs_between_units_is_an_error(old: str, new: str) -> None:
    kernel = parse_kernel(LOOP.replace("for u in 0 .. 4:", "for u in 0 .. 4 #scalable:").replace(old, new))
    results(kernel, 1)
    with pytest.raises(InterpError, match="iterations that run at once differ"):
        results(kernel, 2)


def test_pieces_of_a_loop_that_threads_share_stay_pieces() -> None:
    """Channels beyond whole tiles are a piece of their own, which is no loop beside the blocks of the others."""
    problem = parse_problem("--dir=BWD_D --stag=abx --dtag=abx mb1ic33ih5oc128oh5kh3ph2dh1").canonical()
    sve = any_length()
    with interning():
        assert lower(plan(problem, default_config(problem, sve, 2), sve)).text


OWN = """  for u in 0 .. 5:
    alloc m: s32[{size}] @cache:
      for k in 0 .. 2:
        m[k * 4]{{4}} = a[u * 4 + k * 40]{{4}} * b[k]{{4:0}}
      for k in 0 .. 2:
        c[u * 4 + k * 40]{{4}} = {read} + b[u * 4]{{4}}
"""


@pytest.mark.parametrize("units", SCALES)
def test_memory_of_an_iteration_has_room_for_all(units: int) -> None:
    """Vectors of consecutive iterations are adjacent in it, at any number of units."""
    with interning():
        kernel = parse_kernel(HEAD + OWN.format(size=8, read="m[k * 4]{4}"))
        made = scale(kernel, ("u",))
        assert is_scalable(made)
        assert "alloc m: s32[40] @cache" in str(made)
        verify(made)
        want, found = results(kernel, 1), results(made, units)
    for name in NAMES:
        np.testing.assert_array_equal(found[name], want[name])


@pytest.mark.parametrize(
    ("size", "read"), [(8, "m[k * 4 + 0]{4:0}"), (12, "m[k * 4 + 1]{4}"), (10, "m[k * 4]{4}"), (8, "m[k]{4}")],
    ids=["a single element", "vectors of other places", "a part of a vector", "overlapping vectors"],
)  # fmt: skip
def test_other_memory_of_an_iteration_stays_its_own(size: int, read: str) -> None:
    kernel = parse_kernel(HEAD + OWN.format(size=size, read=read))
    assert str(scale(kernel, ("u",))) == str(kernel)


PRODUCTS = """kernel k(s: s8[64], w: s8[128], d: s32[256])
  for u in 0 .. 3:
    alloc m: s32[8] @cache:
      alloc acc: s32[2, 4] @fragment:
        acc[0, 0]{8} = s32(0)
        for k in 0 .. 1:
          smmla_2x4(acc[0, 0]{8}, s[k * 8]{2 * 8:16}, w[u * 32 + k * 8]{32})
        m[0]{8} = acc[0, 0]{8}
      for r in 0 .. 2:
        d[u * 4 + r * 16]{4} = m[r * 4]{4} + m[r * 4]{4}
"""


@pytest.mark.parametrize("units", SCALES)
def test_products_of_matrices_in_every_unit(units: int) -> None:
    """All units have the same rows, and in memory rows of fragments of consecutive iterations are adjacent."""
    with interning():
        kernel = parse_kernel(PRODUCTS)
        made = scale(kernel, ("u",), any_length().instructions)
        assert is_scalable(made) and "m[u * 4]{2 * 4:12} = acc[0, 0]{8}" in str(made)
        verify(made)
        rng = np.random.default_rng(0)
        arrays = {n: rng.integers(-9, 10, size).astype(np.int8) for n, size in (("s", 64), ("w", 128))}
        arrays["d"] = np.zeros(256, np.int32)
        rows = {row.name: row.kernel for row in any_length().instructions}
        run(made, arrays, rows, scale=units)
    sums = 2 * arrays["s"][:32].reshape(2, 16)[:, :8].astype(int) @ arrays["w"][:96].reshape(12, 8).T.astype(int)
    np.testing.assert_array_equal(arrays["d"].reshape(16, 16)[:2, :12], sums)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("s[k * 8]", "s[k * 8 + u]"), ("w[u * 32", "w[u * 16"),
        ("m[0]{8} = acc[0, 0]{8}", "d[u * 8]{8} = acc[0, 0]{8}"),
        ("m[0]{8} = acc[0, 0]{8}", "d[u * 30 + 60]{2 * 4:20} = acc[0, 0]{8}"),
    ],
    ids=["rows of an iteration", "columns that overlap", "sums that are adjacent", "rows of sums that are apart"],
)  # fmt: skip
def test_these_products_are_left(old: str, new: str) -> None:
    kernel = parse_kernel(PRODUCTS.replace(old, new))
    assert str(scale(kernel, ("u",), any_length().instructions)) == str(kernel)
