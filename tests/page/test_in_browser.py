"""Pages in a headless browser: they render without an error, and answer keys and clicks, in light and in dark."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import convsmith as cs
from convsmith.cli.main import main

pytest.importorskip("selenium", reason="no selenium: pip install selenium brings it")

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless browser."""
    from selenium import webdriver

    binary = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("no chromium with chromedriver on PATH")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1200,900"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield made
    made.quit()


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


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_legible(browser: Any, kernel_file: Path, scheme: str) -> None:
    opened(browser, kernel_file, scheme)
    contrasts = browser.execute_script(
        """
        const colour = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
        function light(value) {
          colour.fillStyle = value; colour.fillRect(0, 0, 1, 1);
          const parts = [...colour.getImageData(0, 0, 1, 1).data].slice(0, 3).map(x => x / 255);
          const [r, g, b] = parts.map(x => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
          return 0.2126 * r + 0.7152 * g + 0.0722 * b;
        }
        const ink = light(getComputedStyle(document.body).color);
        return ["body", ".caches", ".reduction", ".tile", ".vector", ".memory", "pre"].map(name => {
          const paper = light(getComputedStyle(document.querySelector(name)).backgroundColor);
          return [name, (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05)];
        });
        """
    )
    assert all(ratio >= 4.5 for _, ratio in contrasts), contrasts  # WCAG 2, level AA
    dark = browser.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 29)"
    assert dark is (scheme == "dark")


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


def test_levels_have_words_beside_their_colours(browser: Any, kernel_file: Path) -> None:
    opened(browser, kernel_file)
    lines = browser.find_elements("css selector", ".nest > div")
    assert all(x.find_element("css selector", ".level").text == x.get_attribute("class").replace("statement", "")
               for x in lines)  # fmt: skip


def test_the_hot_loop_stands_beside_its_lines(browser: Any, kernel_file: Path) -> None:
    opened(browser, kernel_file)
    table = browser.find_element("css selector", "table.assembly")
    rows = table.find_elements("css selector", "tbody tr")
    assert any("fma" in row.text.split("\n")[0] for row in rows)
    width, inner = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert width <= inner


def test_a_table_sorts_by_its_headings(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "bench.html"
    problems = tmp_path / "problems"
    problems.write_text("mb1ic4ih5oc4kh3\nmb1ic8ih28oc8kh3\nmb1ic4ih9oc4kh3\n")
    words = ["bench", str(problems), "--rounds", "1", "--threads", "1", "--html", str(file)]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    opened(browser, file)
    button = browser.find_elements("css selector", "#rows th button")[2]

    def times() -> list[float]:
        cells = browser.find_elements("css selector", "#rows tbody td:nth-child(3)")
        return [float(x.get_attribute("data-value")) for x in cells]

    button.click()
    assert len(times()) == 3 and times() == sorted(times())
    button.send_keys(" ")  # by keyboard
    assert times() == sorted(times(), reverse=True)
