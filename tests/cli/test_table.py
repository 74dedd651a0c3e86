"""Tables: which columns fit, one line a row, and what is plain where."""

from __future__ import annotations

import pytest
from commands import on_terminal, visible_lines

from convsmith.cli.output import Rows, error_line
from convsmith.cli.table import Column, fitted

COLUMNS = [
    Column("problem", 40, left=True), Column("name", 12, 6, left=True), Column("config", 18, 5, left=True),
    Column("time", 7), Column("rate", 7, 2), Column("+-", 4, 4), Column("vs torch", 8),
]  # fmt: skip
LONG = {"problem": "--attr-post-ops=relu+sum+clip:0:6+tanh " + "mb1ic64ih56oc64oh56kh3ph1" * 2, "name": "n" * 30,
        "config": "oc mb_oh_ow12,oc32 indirection", "time": "123456789.1", "rate": "12.5", "+-": "1234567.0",
        "vs torch": "1.05"}  # fmt: skip


@pytest.mark.parametrize(
    "limit,left_out",
    [
        (None, ()), (108, ()), (107, ("name",)), (94, ("name",)), (93, ("name", "config")), (74, ("name", "config")),
        (73, ("name", "config", "+-")), (60, ("name", "config", "+-")),
        (59, ("name", "config", "rate", "+-")), (20, ("name", "config", "rate", "+-")),
    ],
)  # fmt: skip
def test_columns_are_left_out_in_the_order_of_their_ranks(limit: int | None, left_out: tuple[str, ...]) -> None:
    table = fitted(COLUMNS, limit)
    assert table.left_out == left_out
    assert [c.title for c in table.columns] == [c.title for c in COLUMNS if c.title not in left_out]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("limit", range(8, 140, 3))
def test_a_row_is_never_longer_than_the_line(limit: int) -> None:
    table = fitted(COLUMNS, limit)
    for cells in (LONG, {"problem": "mb1"}, dict.fromkeys(LONG, "")):
        assert len(table.line(cells)) <= limit
    assert len(table.head) <= limit


def test_a_problem_that_is_cut_keeps_its_descriptor() -> None:
    line = fitted(COLUMNS, 80).line(LONG)
    assert line.startswith("…") and "kh3ph1  " in line


def test_without_a_limit_nothing_is_cut_and_cells_stand_below_their_headings() -> None:
    table = fitted(COLUMNS, None)
    assert all(cell in table.line(LONG) for cell in LONG.values())
    row = table.line({"problem": "mb1", "time": "1.0", "rate": "2.0", "vs torch": "3.0"})
    assert len(row) == len(table.head) and row.index("2.0") + 3 == table.head.index("rate") + 4


def test_a_wide_cell_takes_the_blanks_of_the_next_column_only() -> None:
    table = fitted([Column("a", 3, left=True), Column("b", 3), Column("c", 6)], None)
    assert table.line({"a": "x", "b": "12345", "c": "7"}) == "x    12345     7"
    assert len(table.line({"a": "x", "b": "1", "c": "7"})) == len(table.line({"a": "x", "b": "12345", "c": "7"}))


def test_a_pipe_has_the_columns_of_its_width_and_whole_texts() -> None:
    table = fitted(COLUMNS, 94, cut=False)
    assert table.left_out == ("name",) and table.columns[0].width == COLUMNS[0].width
    long = [COLUMNS[0]._replace(width=200), *COLUMNS[1:]]  # the other columns stay
    assert fitted(long, 94, cut=False).left_out == ("name",) and fitted(long, 94).left_out == ("name", "config", "+-")
    assert all(cell in table.line(LONG) for title, cell in LONG.items() if title != "name")


@pytest.mark.parametrize("data_only", [False, True])
@pytest.mark.parametrize("wide", [False, True])
def test_rows_without_a_terminal_go_to_both_streams(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, data_only: bool, wide: bool
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    rows = Rows([Column("name", 30, left=True), Column("n", 2), Column("more", 4, 1)], data_only, wide)
    rows.head()
    rows.row({"name": "long" * 7, "n": "22"})
    out, err = capsys.readouterr()
    assert out == ("" if data_only else err) and len(err.splitlines()) == 2 and "\x1b" not in err
    assert ("long" * 7 in err) == wide and ("more" in err) == wide and rows.left_out == (() if wide else ("more",))


def test_rows_on_a_terminal_go_to_standard_output_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    Rows([Column("name", 4, left=True)]).row({"name": "[a]"})
    assert capsys.readouterr() == ("[a]\n", "")


def test_an_error_is_plain_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    error_line("oh", "UsageError")
    assert capsys.readouterr().err == "UsageError: oh\n"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("environment,coloured", [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True)])
def test_no_color_leaves_a_terminal_plain(environment: dict[str, str], coloured: bool) -> None:
    status, output = on_terminal(80, "verify", "mb1ic3", **environment)
    assert status == 2 and "oc is missing" in visible_lines(output)[0]
    assert ("\x1b[31m" in output) == coloured
