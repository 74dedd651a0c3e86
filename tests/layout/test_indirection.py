"""Tables of pointers: every entry is what the statement's view says, in every form."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from convsmith.arith.evaluate import evaluate, holds
from convsmith.diag.errors import UsageError
from convsmith.ir.index import Var
from convsmith.ir.intern import interning
from convsmith.layout.block import ABSENT
from convsmith.layout.indirection import FORMS, Axis, Sections, Table, Window, from_recipe, recipe, table
from convsmith.problem.conv import Conv
from convsmith.schedule.pointers import pointers
from convsmith.statement.views import statement


@st.composite
def problems(draw: st.DrawFn) -> Conv:
    """Convolutions of every kind that has a window, with pads of any size at both ends."""
    rank = draw(st.integers(1, 3))
    deconv = draw(st.booleans())
    sizes: dict[str, list[int]] = {field: [] for field in "ioksdp"}
    for _ in range(rank):
        most = 9 if rank < 3 else 4
        fine, k, s, d = (draw(st.integers(1, n)) for n in (most, 4, 3, 3))
        p = draw(st.integers(0, 5))
        coarse = draw(st.integers(1, most))
        assume((coarse - 1) * s - fine + (k - 1) * d + 1 - p > -s)
        i, o = (coarse, fine) if deconv else (fine, coarse)
        for field, size in zip("ioksdp", (i, o, k, s, d - 1, p)):
            sizes[field].append(size)
    return Conv(
        mb=1, ic=draw(st.integers(1, 2)), oc=1, deconv=deconv, dir=draw(st.sampled_from(["FWD_D", "BWD_D", "BWD_W"])),
        stag=draw(st.sampled_from(["abx", "axb"])), **{field: tuple(v) for field, v in sizes.items()},
    )  # fmt: skip


def outputs_of(window: Window) -> list[tuple[int, ...]]:
    return list(product(*(range(a.o) for a in window.axes)))


def seen(problem: Conv) -> dict[tuple[int, ...], dict[tuple[int, ...], int]]:
    """For each output, the offset of each tap's pixel within the first image's first channel, by the view."""
    stated = statement(problem)
    result = "i" if problem.dir == "BWD_D" or (problem.dir == "BWD_W" and problem.deconv) else "o"
    pixels = [Var(result + a) for a in problem.axes]
    taps = [Var("k" + a) for a in problem.axes]
    found: dict[tuple[int, ...], dict[tuple[int, ...], int]] = {}
    window = pointers(stated, "row").window
    for at in outputs_of(window):
        found[at] = {}
        for tap in product(*(range(a.k) for a in window.axes)):
            values = dict(zip((*pixels, *taps), (*at, *tap)))
            mask = all(holds(m, values) for m in stated.a.masks[2:])
            place = [evaluate(x, values) for x in stated.a.coords[2:]] if mask else []
            found[at][tap] = stated.a.layout.offset((0, 0, *place)) if mask else ABSENT
    return found


@given(problems(), st.sampled_from(FORMS), st.integers(0, 3))
def test_entries_are_what_the_view_says(problem: Conv, form: str, more: int) -> None:
    with interning():
        window, truth = pointers(statement(problem), "row").window, seen(problem)
    t = table(window, form, window.taps + more)
    rank = problem.rank
    for at, taps in truth.items():
        order = sorted(taps, key=lambda tap: tap if form == "row" else (tap[rank - 1], *tap[: rank - 1]))
        assert t.window_of(*at).tolist() == [taps[tap] for tap in order] + [ABSENT] * more, (t.form, at)


@given(problems())
def test_recipes_read_back_and_forms_that_store_less_are_no_larger(problem: Conv) -> None:
    with interning():
        window = pointers(statement(problem), "row").window
    for form in FORMS:
        assert from_recipe(recipe(window, form)) is table(window, form)
    sizes = [table(window, form).bytes for form in FORMS]
    assert sizes[0] == sizes[1] >= sizes[2] >= sizes[3] and sizes[1] >= sizes[4] >= sizes[3]
    assert sizes[0] == 8 * window.taps * len(outputs_of(window))


AXES = [
    Axis(i, o, k, s, d, p)
    for i, k, s, d, p in product((1, 6), (1, 3), (1, 2, 4), (0, 1), (0, 1, 5))
    for o in {1, (i - 1 + p) // s + 1}
]
"""Problems of every kind: pads, strides and holes beyond the kernel, single taps, pixels that meet no padding."""


def test_every_form_gives_an_output_the_same_pixels() -> None:
    """Along two outer axes, one of which has a middle that one row stands for."""
    plain = Axis(7, 7, 3, 1, 0, 1)
    for axis, other in product(AXES, (plain, Axis(2, 3, 2, 1, 0, 1))):
        for axes in ((axis, other, plain), (other, axis, plain), (plain, other, axis)):
            window = Window(axes, (500, 20, 1))
            right, *others = (table(window, form) for form in FORMS[1:])
            for y, z in product(range(axes[0].o), range(axes[1].o)):
                for x in {0, axes[2].o // 2, axes[2].o - 1}:
                    found = right.window_of(y, z, x)
                    assert all((t.window_of(y, z, x) == found).all() for t in others), (axes, y, z, x)


@given(problems())
def test_sections_cover_all_rows(problem: Conv) -> None:
    with interning():
        window = pointers(statement(problem), "row").window
    for a in window.axes:
        s = a.sections
        places = [s.place(y) for y in range(a.o)]
        assert sorted({p.row for p in places}) == list(range(s.rows))
        assert [p.section for p in places] == sorted((p.section for p in places), key=["top", "mid", "bot"].index)
        assert [s.outputs_of_rows()[p.row] + p.offset for p in places] == list(range(a.o))


def test_rows_count_over_the_whole_table() -> None:
    """The document's table, its rows counted from the first of all: 0 top, 1 middle, 2 bottom."""
    t = table(Window((Axis(3, 4, 2, p=1), Axis(3, 2, 2)), (3, 1)))
    assert [t.place(y) for y in range(4)] == [("top", 0, 0), ("mid", 1, 0), ("mid", 1, 3), ("bot", 2, 0)]
    assert t.sections == (Sections(1, 3, 4),)


@pytest.mark.parametrize("height", [3, 14, 224, 10_000])
def test_three_rows_whatever_the_height(height: int) -> None:
    t = table(Window((Axis(height, height, 3, p=1), Axis(224, 224, 3, p=1)), (224, 1)))
    assert t.entries.shape == (3, (224 + 2) * 3) and t.bytes == 16_272


def test_the_formula_of_compressed_tables() -> None:
    """index = oy * step_h + (ox * step_w + kx) * KH + ky, as XNNPACK has it."""
    for s, k, d in ((1, 3, 0), (2, 3, 0), (4, 3, 0), (1, 3, 1)):
        t = table(Window((Axis(9, 5, k, s, d), Axis(9, 4, k, s, d)), (9, 1)), "compressed")
        step_w = k if d else min(s, k)
        step_h = k * k + 3 * step_w * k
        assert (t.input_stride, t.entries.shape) == (step_w * k, (5, step_h))
        flat = t.entries.ravel()
        for oy, ox, ky, kx in product(range(5), range(4), range(k), range(k)):
            y, x = oy * s + ky * (d + 1), ox * s + kx * (d + 1)
            there = y < 9 and x < 9
            assert flat[oy * step_h + (ox * step_w + kx) * k + ky] == (y * 9 + x if there else ABSENT)


def test_one_output_has_a_whole_tile_of_pointers() -> None:
    t = table(Window((Axis(3, 1, 3), Axis(3, 1, 3)), (3, 1)), "sections", 12)
    assert t.entries.shape == (1, 12) and (t.entries[0, 9:] == ABSENT).all()


def test_equal_tables_are_made_once_and_cannot_be_changed() -> None:
    window = Window((Axis(5, 5, 3, p=1),), (2,))
    assert table(window, "row") is table(Window((Axis(5, 5, 3, p=1),), (2,)), "row")
    with pytest.raises(ValueError, match="read-only"):
        table(window).entries[0, 0] = 1


def test_pointers() -> None:
    t = table(Window((Axis(3, 3, 2, p=1),), (2,)), "row")
    assert t.entries.tolist() == [[ABSENT, 0, 0, 2, 2, 4]]
    assert t.pointers(1000, 64, 4).tolist() == [[64, 1000, 1000, 1008, 1008, 1016]]


def test_an_empty_output_has_an_empty_table() -> None:
    for form in FORMS:
        t: Table = table(Window((Axis(3, 0, 2), Axis(3, 2, 2)), (3, 1)), form)
        assert t.entries.size == 0
        assert table(Window((Axis(3, 0, 2),), (1,)), form).entries.size == 0


@pytest.mark.parametrize(
    "form, tile, code, text",
    [
        ("diagonal", None, "bad-form", f"a table has no form 'diagonal'; legal are {', '.join(FORMS)}"),
        ("row", 8, "kernel-tile", "a kernel tile of 8 is smaller than the 3x3 kernel, which has 9 taps: legal are 9"),
    ],
)
def test_what_is_refused(form: str, tile: int | None, code: str, text: str) -> None:
    with pytest.raises(UsageError, match=text) as error:
        table(Window((Axis(5, 5, 3), Axis(5, 5, 3)), (5, 1)), form, tile)
    assert error.value.code == code
