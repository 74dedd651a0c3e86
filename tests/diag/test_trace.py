from __future__ import annotations

import csv
import shlex

import pytest

from convsmith.diag import trace
from convsmith.diag.errors import InternalError
from convsmith.diag.settings import settings


def test_lines_are_csv_with_one_header_and_end_in_the_command() -> None:
    lines: list[str] = []
    problem = '--dir=FWD_B mb1ic4oc4ih4oh4kh3ph1n"a, b"'
    repro = trace.command("show", problem, target="avx2", threads=2, config=None)
    with settings.scope(verbose="create,cache"), trace.redirect(lines.append):
        trace.emit("create", target="avx2", threads=2, time_ms=12.3456, config="reg ow14oc32", nodes=90, repro=repro)
        trace.emit("exec", time_ms=1.0, repro=repro)
        trace.emit("cache", status="hit", target=None, repro=repro)
    assert all(line.endswith("\n") for line in lines)
    header, create, cache = csv.reader(lines)
    assert header == list(trace.COLUMNS)
    assert header[0] == "version" and header[-1] == "repro"
    row = dict(zip(header, create, strict=True))
    assert (row["version"], row["time_ms"], row["detail"]) == (trace.VERSION, "12.346", "nodes=90")
    assert shlex.split(row["repro"]) == ["convsmith", "show", "--target", "avx2", "--threads", "2", problem]
    assert dict(zip(header, cache, strict=True))["status"] == "hit"


def test_nothing_is_formatted_when_off() -> None:
    class Loud:
        def __str__(self) -> str:
            raise AssertionError

    lines: list[str] = []
    with settings.scope(verbose="none"), trace.redirect(lines.append):
        assert not trace.enabled("exec")
        trace.emit("exec", config=Loud())
    assert lines == []


def test_lines_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with settings.scope(verbose="exec"):
        trace.emit("exec", target="avx2")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"{trace.VERSION},exec,,avx2" in captured.err


def test_unknown_events_are_our_fault() -> None:
    with pytest.raises(InternalError, match="'creat': legal are create, exec, cache"):
        trace.emit("creat")
