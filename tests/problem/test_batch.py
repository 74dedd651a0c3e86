"""Files of problems, read as benchdnn reads them."""

from __future__ import annotations

import itertools

import pytest

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.problem.batch import parse_problems, read_batch, split_words

A, B = "mb1ic4ih5oc4oh3kh3ph0", "mb1ic4ih5oc4oh5kh1ph0"


def read(text: str, **given: str) -> list[str]:
    return [str(item.problem) for item in read_batch(text, "f", given)]


def test_comments_and_blank_lines() -> None:
    assert read(f"# a list\n\n{A}  # with bias\n{B} #\n#{A}\n  # {A}") == [A, B]


@pytest.mark.parametrize(
    "text,problems",
    [
        (f"--dir=FWD_B\n{A}\n{B}", [f"--dir=FWD_B {A}", f"--dir=FWD_B {B}"]),
        (f"--dir=FWD_B {A}\n{B}", [f"--dir=FWD_B {A}", f"--dir=FWD_B {B}"]),
        (f"--dir=FWD_B {A}\n--reset {B}", [f"--dir=FWD_B {A}", B]),
        (f"--dir=FWD_B\n--dt=bf16 {A} --dir=BWD_D {B}", [f"--dir=FWD_B --dt=bf16 {A}", f"--dir=BWD_D --dt=bf16 {B}"]),
        (f"--attr-post-ops=relu {A}\n--attr-post-ops= {B}", [f"--attr-post-ops=relu {A}", B]),
        (f"--attr_post_ops=relu {A}", [f"--attr-post-ops=relu {A}"]),
        (f"--mb=3 {A}\n--mb=0 {B}", [A.replace("mb1", "mb3"), B]),
        # A line that names its kind begins afresh, and its kind holds behind it.
        (f"--dir=BWD_W {A}\n--matmul 3x4:4x5\n2x4:4x6\n--dt=bf16 --conv {B}",
         [f"--dir=BWD_W {A}", "--matmul 3x4:4x5", "--matmul 2x4:4x6", f"--dt=bf16 {B}"]),
        (f"--dir=FWD_B --deconv {A.replace('oh3', 'oh7')}\n--reset {B}",
         [f"--deconv --dir=FWD_B {A.replace('oh3', 'oh7')}", B]),
        (f'{A}n"a b # c" {B}', [f'{A}n"a b # c"', B]),
    ],
)  # fmt: skip
def test_options_hold_until_they_are_given_again(text: str, problems: list[str]) -> None:
    assert read(text) == problems


def test_lists_are_every_combination_in_the_order_of_benchdnns_loops() -> None:
    found = read(f"--mb=1,2 --attr-post-ops=,relu --dt=f32,bf16\n--dir=FWD_B,FWD_D\n{A}\n--reset {B}")
    loops = itertools.product(("--dir=FWD_B ", ""), ("", "--dt=bf16 "), ("", "--attr-post-ops=relu "), ("mb1", "mb2"))
    assert found == [f"{d}{t}{op}{A.replace('mb1', mb)}" for d, t, op, mb in loops] + [B]


def test_options_of_the_caller_hold_where_the_text_does_not_say() -> None:
    text = f"{A}\n--dir=BWD_D {A}\n--reset {A}\n--conv {A}"
    given = [f"--dir=FWD_B --dt=bf16 {A}", f"--dir=BWD_D --dt=bf16 {A}"]
    assert read(text, dir="FWD_B", dt="bf16") == [*given, given[0], given[0]]
    assert read("3x4:4x5\n--conv mb1ic4iw5oc4kw1\n--reset 3x4:4x5", matmul="") == [
        "--matmul 3x4:4x5", "mb1ic4iw5oc4ow5kw1pw0", "--matmul 3x4:4x5",
    ]  # fmt: skip


def test_files_of_files() -> None:
    files = {("a", "f"): ("dir/a", f"--dt=bf16 {A}\n--batch=b"), ("b", "dir/a"): ("dir/b", f"--dir=FWD_B\n{B}")}
    text = f"--stag=axb\n--batch=a\n{B}"
    found = [str(item.problem) for item in read_batch(text, "f", {}, lambda name, source: files[name, str(source)])]
    assert found == [f"--dt=bf16 {A}", f"--dir=FWD_B {B}", f"--stag=axb {B}"]
    with pytest.raises(UsageError, match="files include each other"):
        list(read_batch("--batch=f", "f", {}, lambda name, source: ("f", "--batch=f")))
    with pytest.raises(UsageError, match="--batch=f: --batch is legal in files only"):
        read("--batch=f")


@pytest.mark.parametrize(
    "line,assumed",
    [
        (A, [False]), ("ic4ih5oc4kh3", [True]), ("--mb=4 ic4ih5oc4kh3", [False]),
        ("--mb=0,4 ic4ih5oc4kh3", [True, False]), ("--matmul 3x4:4x5", [False]), ('ic4ih5oc4kh3n"mb1"', [True]),
    ],
)  # fmt: skip
def test_a_batch_that_is_not_said_is_known(line: str, assumed: list[bool]) -> None:
    found = list(read_batch(line, "f"))
    assert [item.batch_assumed for item in found] == assumed
    assert all(item.problem.mb == 2 for item in found if item.batch_assumed)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "text,error,message",
    [
        (f"{A}\n\nic4ih5oc4\n", UsageError, "^f:3: .*kh is missing"),
        (f"--dt=s4 {A}", UnsupportedError, "^f:1: "),
        (f"--dir=FWD_B,UP\n{A}", UsageError, "^f:2: --dir: 'UP' is unknown"),
        (f"{A}\n-dir=FWD_B {A}", UsageError, "^f:2: cannot read '-dir=FWD_B'"),
        (f"--dir {A}", UsageError, "^f:1: cannot read '--dir'"),
        (f"{A}\n--dir=FWD_B\n\n", UsageError, "^f:2: no descriptor follows --dir=FWD_B"),
        (f"{A} --dir=FWD_B", UsageError, "^f:1: no descriptor follows --dir=FWD_B"),
    ],
)
def test_an_error_names_its_line_once(text: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        parse_problems(text, "f")
    assert str(caught.value).count("f:") == 1


def test_words() -> None:
    assert split_words('--dt=f16 mb1n"a b"  x # y "z') == ["--dt=f16", 'mb1n"a b"', "x"]
    assert split_words('mb1n"open end') == ['mb1n"open end']
