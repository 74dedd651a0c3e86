"""Vector statements compute what the loop over lanes did, or the loop is refused."""

from __future__ import annotations

import re

import pytest
from oracles import assert_same_results

from convsmith.diag.errors import ConfigError
from convsmith.ir.index import Var
from convsmith.ir.intern import interning
from convsmith.ir.parse import parse_index, parse_kernel
from convsmith.ir.rewrite import substitute
from convsmith.ir.stmt import Kernel
from convsmith.passes.vectorise import LaneMap, vectorise

LANES = 4


def over_lanes(body: str, count: int = LANES, start: int = 0, allocs: str = "") -> Kernel:
    """A statement on lanes ``l``, for two ``i``; of registers, what lies in them is stored afterwards."""
    text = "kernel k(a: f32[64], b: f32[64], d: f32[64])\n"
    loop = f"for l in {start} .. {start + count}:"
    if allocs:
        return parse_kernel(
            f"{text}  for i in 0 .. 2:\n    alloc t: {allocs} @register:\n      {loop}\n        {body}\n"
            f"      {loop}\n        d[i * 8 + l] = t[l]\n"
        )
    return parse_kernel(f"{text}  for i in 0 .. 2:\n    {loop}\n      {body}\n")


DONE = [
    ("d[i * 8 + l] = a[l]", 4, 0), ("d[i * 8 + l] = a[l] * b[i]", 3, 0), ("d[i * 8 + l] = a[l] + b[i]", 4, 3),
    ("d[l * 2 + i] = a[l // 2]", 4, 0), ("d[l * 2 + i] = a[l // 2]", 4, 1), ("d[40 - l * 3 - i] = a[l % 2 + i]", 3, 1),
    ("d[(l + 1) // 2 * 8 + l + i] = a[63 - l]", 4, 0), ("d[i] = d[i] + a[l * 2]", 4, 0), ("d[i] = d[i] + a[l]", 4, 2),
    ("d[l] = (a[l] if l - 1 >= 0 else 0.0)", 4, 0),
    ("d[l] = (a[l * 2 - 2] if l - 1 >= 0 and 2 - l >= 0 else 0.0)", 4, 0),
    ("if l - 1 >= 0: d[i] = d[i] + a[l - 1] * b[i]", 4, 0), ("if l - 3 >= 0 and i - 1 >= 0: d[i] = d[i] + a[l]", 3, 1),
    ("d[l] = (a[l + i] if 2 - l >= 0 else 0.0)", 4, 0), ("d[l] = (a[l] if i - 1 >= 0 else 0.0)", 4, 0),
    ("d[i] = d[i] + a[i]", 3, 0), ("d[i] = d[i] + (a[l] + 1.0)", 4, 0), ("d[i] = d[i] + a[l] * (b[l] + 1.0)", 3, 1),
    ("d[i] = d[i] + (a[l] - b[i])", 3, 0),
    ("d[i * 8 + l] = a[l * 5]", 1, 2), ("d[i] = a[i]", 1, 0),
]  # fmt: skip


@pytest.mark.parametrize(("body", "count", "start"), DONE)
def test_vectors_compute_the_same(body: str, count: int, start: int) -> None:
    kernel = over_lanes(body, count, start)
    assert_same_results(kernel, vectorise(kernel, "l", LANES))


@pytest.mark.parametrize("count", [3, 4])
def test_registers_are_vectors(count: int) -> None:
    kernel = over_lanes("t[l] = a[i * 8 + l] + b[l * 2]", count, allocs="f32[4]")
    assert_same_results(kernel, vectorise(kernel, "l", LANES))


SAME = "lanes of d write the same element"
REFUSED = [
    ("d[l // 2] = a[l]", 4, 0, SAME), ("d[l // 2 + i] = a[l]", 2, 0, SAME), ("d[l % 3] = a[l]", 4, 0, SAME),
    ("d[min(l, 2)] = a[l]", 4, 0, SAME), ("d[(l + i * 4) // 4] = a[l]", 3, 0, SAME),
    ("d[i] = a[l]", 4, 0, "every lane writes the same element of d"),
    ("d[i] = d[i] * a[l]", 4, 0, "every lane writes the same element of d"),
    ("d[i] = d[i + 1] + a[l]", 4, 0, "every lane writes the same element of d"),
    ("d[i] = b[i] + a[l]", 4, 0, "every lane writes the same element of d"),
    ("d[i] = d[i] + 1.0", 4, 0, "every lane adds the same to d"),
    ("d[i] = d[i] + (a[l] + 1.0)", 3, 0, "lanes beyond the last would add to d"),
    ("d[i] = d[i] + max(a[l], 2.0)", 3, 1, "lanes beyond the last would add to d"),
    ("d[i] = d[i] + a[l] * 2.0 / b[l]", 3, 1, "lanes beyond the last would add to d"),
    ("d[i] = d[i] + sum(a[i]{4/2})", 2, 0, "lanes beyond the last would add to d"),
    ("d[(l + i) // 2 + l] = a[l]", 4, 0, "no constant"),
    ("if l - 2 >= 0: d[l] = a[l]", 4, 0, "the first lanes of d are not written"),
    ("d[l] = (a[l] if i + 1 - l >= 0 else 0.0)", 4, 0, "does not hold for a run of adjacent lanes, and no other ones"),
    ("d[l] = (a[l] if l % 2 - 1 >= 0 else 0.0)", 4, 0, "does not hold for a run of adjacent lanes, and no other ones"),
    ("if l - 1 >= 0: d[i] = d[i] + (a[l] + 1.0)", 4, 0, "lanes beyond the last would add to d"),
    ("d[l] = (a[l] if 2 - l >= 0 else 1.0)", 4, 0, "differs between lanes"),
    ("d[i] = d[i] + sum((a[l]{2} if l - 2 >= 0 else 0.0))", 4, 0, "differs between groups of lanes"),
    ("for j in 0 .. l: d[l] = a[j]", 4, 1, "the bounds of loop j differ between lanes"),
    ("d[l] = a[l]", 5, 0, "loop l runs 5 times, a vector has 4 lanes"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "count", "start", "message"), REFUSED)
def test_what_vectors_cannot_do_is_refused(body: str, count: int, start: int, message: str) -> None:
    kernel = over_lanes(body, count, start)
    with pytest.raises(ConfigError, match=re.escape(message)) as error:
        vectorise(kernel, "l", LANES)
    assert error.value.code == "lanes"
    if count <= LANES:
        assert vectorise(kernel, "l", LANES, strict=False) is kernel


def test_lanes_of_registers_that_a_condition_excludes_stay() -> None:
    """Also where an infinite factor would make their terms NaN."""
    kernel = over_lanes("if l - 1 >= 0 and i - 1 >= 0: t[l] = t[l] + a[l * 2 - 2] * b[i]", allocs="f32[4]")
    vectors = vectorise(kernel, "l", LANES)
    assert "if i - 1 >= 0:" in str(vectors) and "t[0]{4} + a[-2]{4:2/1:4} * b[i]{4:0/1:4}" in str(vectors)


def test_registers_receive_what_all_lanes_share_without_a_mask() -> None:
    registers = str(vectorise(over_lanes("t[l] = a[l] * b[i]", 3, allocs="f32[4]"), "l", LANES))
    assert "t[0]{4} = a[0]{4/3} * b[i]{4:0}\n" in registers
    assert "= a[0]{4/3} * b[i]{4:0/3}" in str(vectorise(over_lanes("d[l] = a[l] * b[i]", 3), "l", LANES))


def test_registers_that_are_not_vectors_are_refused() -> None:
    with pytest.raises(ConfigError, match="register array t is not contiguous along the lanes"):
        vectorise(over_lanes("t[l * 2] = a[l]", allocs="f32[8]"), "l", LANES)


def of_registers(*loops: str, lanes: int = LANES) -> Kernel:
    """Loops over lanes of one register array."""
    text = "".join(f"    for {head}\n      {body}\n" for head, _, body in (loop.partition(" do ") for loop in loops))
    return parse_kernel(f"kernel k(a: f32[64], d: f32[64])\n  alloc t: f32[{lanes}] @register:\n{text}")


READ = "lanes of t that the loop does not write are read"
ADDED = "lanes beyond the last would add to d"
FILLED = "l in 0 .. 4: do t[l] = a[l]"
ZEROED = "l in 0 .. 4: do t[l] = 0.0"
USED_BEYOND = [
    ((FILLED, "l in 0 .. 3: do t[l] = a[l + 4]", "l in 0 .. 4: do d[l] = t[l]"), READ),
    ((FILLED, "l in 0 .. 3: do t[l] = a[l + 4]", "m in 0 .. 4: do d[m] = t[m]"), READ),
    ((FILLED, "l in 0 .. 3: do t[l] = 0.0", "m in 0 .. 4: do d[m] = t[m]"), READ),
    ((FILLED, "l in 0 .. 3: do t[l] = t[l] * 2.0", "m in 0 .. 4: do d[m] = t[m]"), READ),
    ((FILLED, "l in 0 .. 3: do t[l] = t[l] + 2.0", "m in 0 .. 4: do d[m] = t[m]"), READ),
    ((FILLED, "l in 0 .. 4: do if l - 1 >= 0: t[l] = a[l + 4]", "m in 0 .. 4: do d[m] = t[m]"), READ),
    ((FILLED, "l in 0 .. 4: do if 2 - l >= 0: t[l] = a[l + 4]", "m in 0 .. 4: do d[m] = t[m]"), READ),
    (("l in 0 .. 1: do t[l] = a[l]", "l in 0 .. 3: do t[l + 1] = a[l + 5]", "l in 0 .. 4: do d[l] = t[l]"), READ),
    ((FILLED, "l in 0 .. 3: do d[9] = d[9] + t[l]"), ADDED),
    (("m in 0 .. 4: do t[m] = a[m]", "l in 0 .. 3: do d[9] = d[9] + t[l]"), ADDED),
    ((FILLED, "l in 0 .. 4: do if l - 1 >= 0: d[9] = d[9] + t[l]"), ADDED),
    ((ZEROED, "l in 0 .. 4: do t[l] = t[l] + a[l]", "l in 0 .. 3: do d[9] = d[9] + t[l] * 2.0"), ADDED),
]
UNUSED_BEYOND = [
    (ZEROED, "l in 0 .. 3: do t[l] = t[l] + a[l]", "l in 0 .. 3: do d[9] = d[9] + t[l]"),
    (ZEROED, "l in 0 .. 3: do t[l] = t[l] + a[l]", "l in 0 .. 4: do d[9] = d[9] + t[l]"),
    (FILLED, "l in 0 .. 3: do t[l] = t[l] + a[l + 4]", "m in 0 .. 4: do d[m] = t[m]"),
    (FILLED, "l in 0 .. 3: do t[l] = a[l + 4]", "l in 0 .. 3: do d[l] = t[l]"),
    (FILLED, "l in 0 .. 3: do d[l] = t[l]", "l in 0 .. 4: do d[l + 4] = t[l]"),
]


@pytest.mark.parametrize(("loops", "message"), USED_BEYOND)
def test_lanes_of_registers_beyond_the_last_may_belong_to_others(loops: tuple[str, ...], message: str) -> None:
    """A vector writes and adds all lanes of its registers, so no other access may need those of no iteration."""
    kernel = of_registers(*loops)
    with pytest.raises(ConfigError, match=message):
        vectorise(kernel, "l", LANES)
    assert_same_results(kernel, vectorise(kernel, "l", LANES, strict=False))


@pytest.mark.parametrize("loops", UNUSED_BEYOND)
def test_lanes_of_registers_that_nothing_else_needs_are_written(loops: tuple[str, ...]) -> None:
    kernel = of_registers(*loops)
    assert_same_results(kernel, vectorise(kernel, "l", LANES))


def test_rows_of_register_arrays_are_apart() -> None:
    """A row may be short where another one is whole."""
    text = "kernel k(a: f32[64], d: f32[64])\n  alloc t: f32[2, 4] @register:\n"
    for row, count in ((0, 4), (1, 3)):
        text += f"    for l in 0 .. {count}:\n      t[{row}, l] = a[l * {row + 1}]\n"
    for row, count in ((0, 4), (1, 3)):
        text += f"    for l in 0 .. {count}:\n      d[l + {row * 4}] = t[{row}, l]\n"
    kernel = parse_kernel(text)
    assert_same_results(kernel, vectorise(kernel, "l", LANES))


def test_lanes_that_are_repeated_are_the_same_in_all_vectors() -> None:
    """Rows of one matrix by rows of another are no vector: each row of the first meets all of the second."""
    kernel = parse_kernel(
        "kernel k(a: s8[16], b: s8[16], c: s32[4])\n  for m in 0 .. 2: for n in 0 .. 2: for k in 0 .. 8: "
        "c[m * 2 + n] = c[m * 2 + n] + cast(s32, a[m * 8 + k]) * cast(s32, b[n * 8 + k])\n"
    )
    rows = vectorise(vectorise(kernel, "k", 8), "n", 2)
    with pytest.raises(ConfigError, match="repeat what differs between lanes"):
        vectorise(rows, "m", 2)


@pytest.mark.parametrize("distance, conflicts", [(1, True), (3, True), (4, False), (-2, False), (-5, False)])
def test_lanes_that_write_each_others_elements_are_refused(distance: int, conflicts: bool) -> None:
    """Lanes with elements of their own need no dependence test; those a lane's distance apart do."""
    kernel = parse_kernel(f"""kernel k(a: f32[4], b: f32[4], d: f32[24])
  for l in 0 .. 4:
    d[l + 8] = a[l]
    d[l + {8 + distance}] = b[l]
""")
    if conflicts:
        with pytest.raises(ConfigError, match="l"):
            vectorise(kernel, "l", 4)
    else:
        assert_same_results(kernel, vectorise(kernel, "l", 4))


@pytest.mark.parametrize("start", ["0", "3", "y"])
@pytest.mark.parametrize("text", ["l", "5", "x + 2", "l * 3 + x", "(l + x) // 4 + l", "l % 8 + 1", "x * 2 - l + 7"])
def test_an_index_at_the_first_lane_is_that_with_the_loop_s_start(text: str, start: str) -> None:
    with interning():
        index, at = parse_index(text), parse_index(start)
        lanes = LaneMap(Var("l"), at, 8, 8, {Var("l"): (0, 15)})
        assert lanes.at_start(index) is substitute(index, {Var("l"): at})
