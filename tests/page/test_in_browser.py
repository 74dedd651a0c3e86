"""Pages in a headless browser: they render without an error, and answer keys and clicks, in light and in dark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from headless import headless_browser

import convsmith as cs
from convsmith.cli.bench_html import profile_html
from convsmith.cli.main import main
from convsmith.measure.profile import ModelProfile, ProfiledNode
from convsmith.measure.timing import Spread
from convsmith.problem import parse_problem

pytest.importorskip("selenium", reason="no selenium: pip install selenium brings it")

@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless browser."""
    with headless_browser() as made:
        yield made


@pytest.fixture(scope="module")
def kernel_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "kernel.html"
    cs.compile("--stag=axb --dtag=axb mb1ic3ih14oc8kh3ph1", threads=1).explain(html=file)
    return file


def opened(browser: Any, file: Path, scheme: str = "light") -> None:
    """Open a page in a colour scheme; fail if the console has an error."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get(file.as_uri())
    assert browser.get_log("browser") == []


CONTRASTS = """
const colour = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
function light(value) {
  colour.fillStyle = value; colour.fillRect(0, 0, 1, 1);
  const parts = [...colour.getImageData(0, 0, 1, 1).data].slice(0, 3).map(x => x / 255);
  const [r, g, b] = parts.map(x => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
const ink = light(getComputedStyle(document.body).color);
return arguments[0].map(name => {
  const paper = light(getComputedStyle(document.querySelector(name)).backgroundColor);
  return [name, (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05)];
});
"""


def check_legible(browser: Any, scheme: str, parts: list[str]) -> None:
    """Check the contrast of the text and the background of each part of the page, and the background of the scheme."""
    contrasts = browser.execute_script(CONTRASTS, parts)
    assert all(ratio >= 4.5 for _, ratio in contrasts), contrasts  # WCAG 2, level AA
    dark = browser.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 29)"
    assert dark is (scheme == "dark")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_legible(browser: Any, kernel_file: Path, scheme: str) -> None:
    opened(browser, kernel_file, scheme)
    check_legible(browser, scheme, ["body", ".caches", ".reduction", ".tile", ".vector", ".memory", ".new", "pre"])


def test_keys_walk_through_the_passes(browser: Any, kernel_file: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    opened(browser, kernel_file)
    body = browser.find_element("css selector", "body")

    def open_passes() -> list[str]:
        return [x.text.split()[0] for x in browser.find_elements("css selector", "details[open] > summary")]

    assert open_passes() == []
    body.send_keys("n")
    body.send_keys("n")
    assert open_passes() == ["001"]
    body.send_keys("p")
    assert open_passes() == ["000"]
    browser.switch_to.active_element.send_keys(Keys.ENTER)  # the summary has the focus
    assert open_passes() == []
    browser.find_element("id", "all").click()
    assert len(open_passes()) > 10


def test_colours_have_words_or_marks_beside_them(browser: Any, kernel_file: Path) -> None:
    opened(browser, kernel_file)
    lines = browser.find_elements("css selector", ".nest > div")
    assert all(x.find_element("css selector", ".level").text == x.get_attribute("class").replace("statement", "")
               for x in lines)  # fmt: skip
    marks = browser.execute_script(
        "return [...document.querySelectorAll('pre .new, pre .gone')].map(x => [x.className, x.textContent[0]])"
    )
    assert {tuple(x) for x in marks} == {("new", "+"), ("gone", "-")}
    registers = browser.execute_script(
        "return [...document.querySelectorAll('.registers span')].map(x => [x.className, x.textContent])"
    )
    letters = {kind: text for kind, text in registers}
    assert len(set(letters.values())) == len(letters) > 2
    assert all(letters[kind] == text for kind, text in registers)


def test_the_hot_loop_stands_beside_its_lines(browser: Any, kernel_file: Path) -> None:
    opened(browser, kernel_file)
    table = browser.find_element("css selector", "table.assembly")
    rows = table.find_elements("css selector", "tbody tr")
    assert any("fma" in row.text.split("\n")[0] for row in rows)
    width, inner = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert width <= inner


@pytest.fixture(scope="module")
def bench_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of four problems, one of which has an empty source."""
    directory = tmp_path_factory.mktemp("bench")
    (directory / "problems").write_text('mb1ic4ih5oc4kh3n"z"\nmb1ic8ih28oc8kh3\nmb0ic4ih5oc4kh3\nmb1ic4ih9oc4kh3\n')
    file = directory / "bench.html"
    words = ["bench", str(directory / "problems"), "--rounds", "1", "--threads", "1", "--html", str(file)]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    return file


def column(browser: Any, title: str) -> tuple[Any, Callable[[], list[str]]]:
    """The button that sorts by a column, and a function that reads the values of the column."""
    titles = [x.text for x in browser.find_elements("css selector", "#rows th button")]
    place = titles.index(title) + 1

    def values() -> list[str]:
        cells = browser.find_elements("css selector", f"#rows tbody td:nth-child({place})")
        return [x.get_attribute("data-value") for x in cells]

    return browser.find_elements("css selector", "#rows th button")[place - 1], values


def test_a_table_sorts_by_its_headings(browser: Any, bench_file: Path) -> None:
    opened(browser, bench_file)
    button, values = column(browser, "time us")

    def times() -> list[float]:
        return [float(x or 0) for x in values()]

    button.click()
    assert len(times()) == 4 and times()[0] == 0 < times()[1] and times() == sorted(times())
    button.send_keys(" ")  # by keyboard
    assert times() == sorted(times(), reverse=True)
    button, problems = column(browser, "problem")
    button.click()
    assert problems() == sorted(problems()) and times() != sorted(times())
    assert [x.get_attribute("aria-sort") for x in browser.find_elements("css selector", "#rows th[aria-sort]")] == [
        "ascending"
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_of_measurements_are_legible_and_have_plots(browser: Any, bench_file: Path, scheme: str) -> None:
    opened(browser, bench_file, scheme)
    check_legible(browser, scheme, ["body"])
    ink, text = browser.execute_script(
        "const x = document.querySelector('figure svg text'); return [getComputedStyle(document.body).color, "
        "getComputedStyle(x).fill]"
    )
    assert text == ink
    assert browser.find_element("css selector", "figure[aria-label] svg").size["width"] > 300
    width, inner = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert width <= inner


def test_the_page_of_a_model(browser: Any, tmp_path: Path) -> None:
    seconds = (Spread(x * 1e-6, x * 1e-6, x * 1e-6) for x in (10.0, 30.0, 50.0, 20.0))
    a, b, c, d = seconds
    problem = parse_problem("ic4ih5oc4kh3")
    rows = (
        ProfiledNode(("one", "two"), "Conv", problem, "config", a, b, Spread(3.0, 3.0, 3.0), 0.0, True),
        ProfiledNode(("<b>",), "Conv", problem, "config", c, d, Spread(0.4, 0.4, 0.4), 0.0, True),
    )
    file = tmp_path / "model.html"
    file.write_text(profile_html(ModelProfile("m.onnx", "host", 1, b, rows, (), {"Relu": 2})), encoding="utf-8")
    opened(browser, file)
    button, values = column(browser, "could win us")
    button.click()
    button.click()
    assert list(map(float, values())) == [40.0, 0.0]
    text = browser.find_element("css selector", "body").text
    assert "one, two" in text and "<b>" in text and "could be won: 0.04 ms" in text and "Relu 2" in text
    opened(browser, file, "dark")
    check_legible(browser, "dark", ["body"])


NARROW = 400
UNREADABLE = """
const found = [];
if (document.documentElement.scrollWidth > innerWidth) found.push("the page is wider than the screen");
const scrolls = x => x && x !== document.body && (getComputedStyle(x).overflowX === "auto" || scrolls(x.parentElement));
for (const x of document.querySelectorAll("body *")) {
  const box = x.getBoundingClientRect();
  const text = [...x.childNodes].some(c => c.nodeType === 3 && c.textContent.trim());
  if (!text || !box.width || ["SCRIPT", "STYLE"].includes(x.tagName)) continue;
  if (x.closest("svg") && x.tagName !== "text") continue;
  const scale = x.closest("svg") ? Math.hypot(x.getScreenCTM().a, x.getScreenCTM().b) : 1;
  const size = parseFloat(getComputedStyle(x).fontSize) * scale;
  if (size < 8) found.push(`${x.tagName} ${size} px: ${x.textContent.slice(0, 40)}`);
  if (box.right > innerWidth + 1 && !scrolls(x)) found.push(`${x.tagName} ends at ${box.right}: ${x.textContent}`);
}
return found;
"""
"""A script that lists the texts that are too small, or that no scrolling brings onto the screen."""


@pytest.fixture
def narrow(browser: Any) -> Iterator[Any]:
    """The browser with the screen of a telephone."""
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": NARROW, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    )
    yield browser
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a model with a long name of a node, and a doubtful row."""
    one, wide = Spread(1e-5, 1e-5, 1e-5), Spread(3e-5, 1e-5, 9e-5)
    problem = parse_problem("--stag=axb --dtag=axb mb1ic64ih56oc64kh3ph1")
    name = "/model/encoder/layers.0/blocks.1/attention/projection/Conv"
    rows = (ProfiledNode((name, "b"), "Conv", problem, "--target=generic --lane=oc", one, wide, wide, 0.0, True),)
    file = tmp_path_factory.mktemp("model") / "model.html"
    file.write_text(profile_html(ModelProfile("m.onnx", "onnxruntime", 1, one, rows)), encoding="utf-8")
    return file


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["kernel_file", "bench_file", "model_file"])
def test_pages_are_readable_on_a_narrow_screen(narrow: Any, kind: str, request: pytest.FixtureRequest) -> None:
    opened(narrow, request.getfixturevalue(kind))
    assert narrow.execute_script("return innerWidth") == NARROW
    assert narrow.execute_script(UNREADABLE) == []
    if kind == "kernel_file":
        return
    titles = narrow.execute_script("return [...document.querySelectorAll('#rows td')].map(x => x.dataset.title)")
    assert len(set(titles)) > 5 and all(titles)  # each value stands beside its title
    button, values = column(narrow, "problem")
    button.click()
    assert values() == sorted(values())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["kernel_file", "bench_file", "model_file"])
def test_the_first_line_of_a_page_is_its_verdict(browser: Any, kind: str, request: pytest.FixtureRequest) -> None:
    opened(browser, request.getfixturevalue(kind))
    first = browser.find_element("css selector", "body").text.splitlines()[0]
    said = {"kernel_file": "Bound by ", "bench_file": "is furthest from the roofline, at ", "model_file": "take"}
    assert said[kind] in first and first == browser.find_element("css selector", ".verdict").text.splitlines()[0]
