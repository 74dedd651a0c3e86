"""The tables of tokens and of options name what the parser takes, with the defaults that it uses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from convsmith.diag.errors import UsageError
from convsmith.problem.descriptor import parse_descriptor
from convsmith.problem.lines import parse_problem

ROOT = Path(__file__).parents[2]
LINE = "mb3g2ic4id9ih9iw9oc6kd3kh3kw3"
PRODUCT = "--matmul 4x30:30x5"


def rows(page: str, title: str) -> list[list[str]]:
    """The cells of the table whose first column is `title`."""
    text = (ROOT / page).read_text(encoding="utf-8")
    table = text[text.index(f"| {title} |") :].partition("\n\n")[0]
    return [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]


TOKENS = rows("README.md", "token")
OPTIONS = rows("docs/usage/problems.md", "option")


def legal(line: str) -> list[str]:
    """The words that the error about an illegal line offers."""
    with pytest.raises(UsageError) as error:
        parse_problem(line)
    return str(error.value).split()


def test_every_token_has_a_row() -> None:
    words = [word for cells in TOKENS for word in re.findall(r"`(\w+)`", cells[0])]
    message = legal("what")
    assert sorted(words) == sorted(message[message.index("of") + 1 :])


@pytest.mark.parametrize("cells", TOKENS, ids=lambda cells: cells[0])
def test_defaults_of_tokens(cells: list[str]) -> None:
    for token in re.findall(r"`(\w+)`", cells[0]):
        without = re.sub(rf"{token}\d+", "", LINE)
        if cells[2] == "required":
            with pytest.raises(UsageError, match=f"{token} is missing"):
                parse_descriptor(without)
        elif cells[2].isdecimal():
            given, implied = parse_descriptor(f"{without}{token}{cells[2]}"), parse_descriptor(without)
            assert given._replace(has_groups=False) == implied._replace(has_groups=False)
            other = int(cells[2]) + 1
            assert parse_descriptor(f"{without}{token}{other}") != implied
        else:
            assert token in ("od", "oh", "ow", "n"), f"the default of {token} is not tested"
    assert parse_descriptor(LINE).o == (7, 7, 7) and parse_descriptor(LINE).name is None
    assert parse_descriptor(f"{LINE}ow9").p == (0, 0, 1) and parse_descriptor(f'{LINE}n"a b"').name == "a b"


def test_sizes_that_others_imply() -> None:
    assert parse_descriptor("ic1ih5oc1kh3") == parse_descriptor("ic1ih5iw5oc1kh3kw3")
    assert parse_descriptor("ic1id5oc1kd3") == parse_descriptor("ic1id5ih5iw5oc1kd3kh3kw3")
    assert parse_descriptor("ic1iw5oc1kw3").i == (5,)


def test_every_option_has_a_row() -> None:
    words = {word for cells in OPTIONS for word in re.findall(r"`(--[\w-]+)`", cells[0])}
    named = {word for line in (f"--what=1 {LINE}", f"--what=1 {PRODUCT}") for word in legal(line)[1:] if "--" in word}
    assert words == named


EXAMPLES = {
    "strides": "mb1ic32ih20iw10oc8kh1kw1", "scales": f"--dt=u8:s8:u8 {LINE}", "zero-points": f"--dt=u8:s8:u8 {LINE}",
    "bits": f"--dt=u8:u8:s32 {PRODUCT}",
}  # fmt: skip
"""Lines that options with a condition stand before."""


@pytest.mark.parametrize("cells", OPTIONS, ids=lambda cells: cells[0])
def test_defaults_and_examples_of_options(cells: list[str]) -> None:
    meaning, default = cells[1:]
    line = next((line for part, line in EXAMPLES.items() if cells[0].endswith(f"{part}`")), LINE)
    line = EXAMPLES["bits"] if cells[0] == "`--rounding`" else line
    for default_line in re.findall(r"^`(--.*)`$", default):
        assert parse_problem(f"{default_line} {line}") == parse_problem(line)
    for example in re.findall(r"`(--[\w-]+=[^`]+)`", meaning):
        assert parse_problem(f"{example} {line}") != parse_problem(line)
