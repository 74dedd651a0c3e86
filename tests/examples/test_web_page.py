"""The page that classifies drawings: what it computes in a browser is what the network computes in Python."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from emulated import skip_without_emulator
from headless import headless_browser

import convsmith as cs
from convsmith.machine.registry import target

pytest.importorskip("torch")
pytest.importorskip("onnx")

EXAMPLE = Path(__file__).parents[2] / "examples" / "web" / "build.py"
DRAWN = """
const done = arguments[arguments.length - 1];
(async () => {
  while (!window.gallery) await new Promise((wake) => setTimeout(wake, 20));
  const { context, classify, pixels } = window.gallery;
  context.beginPath();
  context.arc(160, 165, 95, 0, 2 * Math.PI);
  context.stroke();
  const { own } = await classify();
  const text = (part) => document.querySelector(part).textContent;
  return [[...pixels()], own, text("#own .answer"), text("#own .time"), text("#peer .time")];
})().then(done, (error) => done([String(error)]));
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    skip_without_emulator(target("wasm32+relaxed"))
    spec = importlib.util.spec_from_file_location("web_page_build", EXAMPLE)
    assert spec is not None and spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    folder = tmp_path_factory.mktemp("page")
    build.main(["-o", str(folder), "--steps", "10", "--drawings", "40"])
    return folder


@pytest.fixture
def served(page: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(page))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/index.html"
        server.shutdown()


def test_a_drawing_is_classified(page: Path, served: str) -> None:
    with headless_browser() as browser:
        browser.get(served)
        found = browser.execute_async_script(DRAWN)
    assert len(found) == 5, found
    pixels, scores, answer, time, peer = found
    ink = np.asarray(pixels, np.float32).reshape(1, 1, 32, 32)
    assert ink.max() > 0.9 and ink.min() == 0
    net = cs.onnx.compile(page / "shapes.onnx", threads=1)
    (wanted,) = net.run({"x": ink}).values()
    np.testing.assert_allclose(scores, wanted.ravel(), rtol=0, atol=1e-5 * np.abs(wanted).max())
    classes = ("circle", "square", "triangle", "cross", "line", "wave")
    assert answer == classes[int(np.argmax(scores))] and time.endswith("ms, median of 9 rounds")
    assert peer == "not here: build.py --npm FOLDER copies it"
