"""Pages about networks: what they state, how a browser shows them, and progress while kernels are compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from headless import headless_browser

pytest.importorskip("onnx")
pytest.importorskip("jinja2")

from onnx_networks import residual_net

import convsmith as cs
from convsmith.onnx.graph import read_graph
from convsmith.onnx.network import network_of


@pytest.fixture(scope="module")
def net() -> cs.Network:
    return cs.onnx.compile(residual_net(16), threads=1)


def test_a_page_without_times_lists_steps_and_memory(net: cs.Network, tmp_path: Path) -> None:
    net.explain(html=tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "--time states the time of each" in text and "Memory over time" in text and "What would gain" not in text
    for step in net.image.steps:
        assert step.names[0] in text and step.work.replace("'", "&#39;") in text


def test_a_browser_shows_times_beside_bounds(net: cs.Network, tmp_path: Path) -> None:
    x = np.ones((1, 3, 16, 16), np.float32)
    net.explain({"x": x}, tmp_path / "page.html")
    with headless_browser() as browser:
        browser.get((tmp_path / "page.html").as_uri())
        rows = browser.find_elements("css selector", ".steps tbody tr")
        bars = browser.find_elements("css selector", ".memory-plot span")
        assert len(rows) == len(bars) == len(net.image.steps)
        assert len(browser.find_elements("css selector", "ol li")) == 3
        assert all("%" in row.text for row in rows)
        assert max(bar.size["height"] for bar in bars) > 100
        width = browser.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
        assert width <= 0  # no scrolling to the side
        assert not [x for x in browser.get_log("browser") if "favicon" not in x["message"]]


def test_errors_about_files_of_pages(net: cs.Network, tmp_path: Path) -> None:
    with pytest.raises(cs.UsageError, match="there is no such directory"):
        net.explain(html=tmp_path / "no" / "page.html")


def test_kernels_that_the_cache_lacks_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONVSMITH_CACHE", str(tmp_path))
    counts: list[int] = []
    done: list[int] = []

    @contextmanager
    def counting(count: int) -> Iterator[Callable[[], None]]:
        counts.append(count)
        yield lambda: done.append(1)

    graph = read_graph(residual_net(8))
    kernels = len(network_of(graph, 1, counting).image.kernels)
    assert counts and 0 < counts[0] <= kernels and len(done) == counts[0]
    network_of(graph, 1, counting)
    assert len(counts) == 1
