"""The page of HTML of `bench`: a verdict, a word for effective operations and for doubtful rows, no empty chart."""

from __future__ import annotations

import re
from typing import Any

import pytest

import convsmith as cs
from convsmith.cli.bench_html import bench_html
from convsmith.cli.bench_json import RowData, row_data
from convsmith.cli.bench_page import Row
from convsmith.measure.timing import Measurement, PeerTime, Spread
from convsmith.measure.verification import Verdict
from convsmith.page.figures import ABOVE, EFFECTIVE

pytest.importorskip("matplotlib", reason="no matplotlib: pip install 'convsmith[page]' brings it")

DIRECT = "--accuracy=strict --stag=axb --dtag=axb mb1ic16ih8oc16kh3ph1"
WINOGRAD = (
    "--target=generic --lane=oc --fuse=th+tw --register=th_tw:2,oc:4 --order=f,oc,th_tw --reduce=ic --pack=wei_w "
    "--outline=no --winograd=oh:2,ow:2"
)


def row(line: str = DIRECT, factor: float = 1.01, config: str | None = None, peers: tuple[str, ...] = ()) -> RowData:
    """A row whose samples vary by a factor."""
    kernel = cs.compile(line, threads=1, target=None if config else "generic", config=config)
    seconds = Spread(1e-5, 1e-5 / factor, 1e-5 * factor)
    compared = {name: PeerTime(seconds, Spread(2.0, 2.0, 2.0)) for name in peers}
    times = Measurement(seconds, Spread(50.0, 50.0, 50.0), None, None, compared)
    return row_data(Row(kernel.problem, kernel, Verdict(0, 1, "exact"), times))


def page(rows: list[RowData], libraries: dict[str, Any] | None = None) -> str:
    return bench_html("title", "heading", rows, libraries or {}, {})


def test_the_first_line_is_the_verdict_on_the_worst_kernel() -> None:
    text = page([row(), row(DIRECT.replace("ih8", "ih9"))])
    first = re.search(r"<body>\n<p class=\"verdict\">(.*)\.</p>", text)
    assert first is not None
    assert re.match(r"\S+ .* is furthest from the roofline, at \d+% of it: bound by ", first[1])
    assert "nothing is measured" in page([])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("libraries", [{}, {"torch": None}, {"torch": "2.0"}])
def test_there_is_no_chart_without_a_library(libraries: dict[str, Any]) -> None:
    here = tuple(name for name, version in libraries.items() if version)
    text = page([row(peers=here)], libraries)
    assert text.count("<figure") == 1 + len(here) == 1 + text.count("time of the library / ours")


def test_a_library_that_computes_no_problem_has_no_chart() -> None:
    assert page([row()], {"torch": "2.0"}).count("<figure") == 1


def test_rates_of_transforms_are_called_effective() -> None:
    transformed = row(DIRECT.replace("strict", "relaxed"), config=WINOGRAD)
    text = page([transformed, row()])
    assert EFFECTIVE in text.partition("</svg>")[0] and ABOVE in text
    assert EFFECTIVE not in page([row()])


@pytest.mark.parametrize(("factor", "is_doubtful"), [(1.05, False), (1.3, True), (9.0, True)])
def test_a_wide_spread_is_no_plain_number(factor: float, is_doubtful: bool) -> None:
    text, spread = page([row(factor=factor), row()]), (factor - 1 / factor) / 2
    shown = re.findall(r"data-title=\"\+- %\" data-value=\"[^\"]*\">([^<]*)<", text)
    assert shown[0] == ("unreliable: " if is_doubtful else "") + f"{spread * 100:,.2f}" and shown[1] == "1.00"
    assert ("1 of 2 rows vary by more than 10% (unreliable)" in text) == is_doubtful
