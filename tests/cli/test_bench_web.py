"""`bench` for WebAssembly: in Node and in a page, beside libraries of npm that are right, wrong and missing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from commands import run
from emulated import skip_without_emulator
from onnx_networks import NetworkBuilder

import convsmith as cs
from convsmith.diag.errors import ToolchainError
from convsmith.machine.registry import target
from convsmith.measure.onnx_peers import onnx_model
from convsmith.measure.web import write_plan
from convsmith.measure.web_peers import Packages
from convsmith.onnx.graph import read_graph
from convsmith.onnx.network import export_for
from convsmith.problem import parse_problem
from convsmith.problem.data import random_arrays
from convsmith.problem.problem import Problem
from convsmith.problem.reference import reference

LINE = "mb1ic3ih5oc4kh3ph1"
FAST = ("--target", "wasm32+relaxed", "--rounds", "2")
LIBRARY = """
const ort = {
  env: { wasm: {} },
  Tensor: class { constructor(type, data, shape) { Object.assign(this, { type, data, shape }); } },
  InferenceSession: {
    create: async (model, options) => ({
      run: async ({ x }) => ({ y0: { data: RESULT } }),
      release() {},
    }),
  },
};
"""
"""A library like onnxruntime-web that answers with the elements of RESULT."""


@pytest.fixture(autouse=True)
def has_node() -> None:
    skip_without_emulator(target("wasm32"))
    if shutil.which("node") is None:
        pytest.skip("there is no Node")


def packages(folder: Path, result: str) -> Path:
    """A folder with a package of npm whose results are an expression of JavaScript, for Node and for pages."""
    package = folder / "node_modules" / "onnxruntime-web"
    (package / "dist").mkdir(parents=True)
    text = LIBRARY.replace("RESULT", result)
    (package / "package.json").write_text('{"name": "onnxruntime-web", "version": "9.8.7", "main": "index.js"}')
    (package / "index.js").write_text(f"{text} module.exports = ort;")
    names = "export const { env, Tensor, InferenceSession } = ort;"
    (package / "dist" / "ort.wasm.min.mjs").write_text(f"{text} {names}")
    return folder


def test_an_engine_that_lacks_the_products_of_a_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe of another level, whose products are none, stands for that of an engine without them."""
    empty = b"\0asm\1\0\0\0"
    monkeypatch.setattr("convsmith.measure.web.probe_module", lambda level: empty[:-1])
    result = run("bench", LINE, *FAST)
    assert "ended without times: it does not compute the products of wasm32+relaxed" in result.stderr
    assert result.exit_code == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("problem", [LINE, f"--dt=u8:s8:s32 {LINE}", f"--dt=bf16 {LINE}", f"--dir=FWD_B {LINE}"])
def test_a_kernel_is_verified_and_timed(problem: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    result = run("bench", problem, *FAST, "--json", str(file))
    assert result.exit_code == 0, result.output
    (row,) = json.loads(file.read_text())["rows"]
    assert row["verified"] and row["seconds"]["median"] > 0 and row["target"] == "wasm32+relaxed"
    assert (row["of_peak"] is not None) == ("--dt=u8" not in problem)
    assert "Node v" in result.stdout.splitlines()[0] and "1 thread" in result.stdout.splitlines()[0]


def wrong_and_right(engine: str, folder: Path) -> tuple[str, str]:
    """The outputs beside a library of wrong results, and of right ones: sums of one product, by a kernel of one tap."""
    outputs = []
    for result in ("x.data.map((v) => v + 1)", "x.data.map((v) => v * 0)"):
        own = packages(folder / str(len(outputs)), result)
        line = "mb1ic1ih4oc1kh1ph0"
        done = run("bench", line, *FAST, "--vs", "onnxruntime-web", "--npm", str(own), "--engine", engine)
        assert done.exit_code == 0, done.output
        outputs.append(done.stdout)
    return outputs[0], outputs[1]


def skip_without_engine(engine: str) -> None:
    if engine == "chromium":
        pytest.importorskip("selenium")
        if not all(map(shutil.which, ("chromium", "chromedriver"))):
            pytest.skip("no chromium with chromedriver on PATH")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("engine", ["node", "chromium"])
def test_networks_are_timed_beside_a_library(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One page or process loads two networks; the library doubles its input, as only the first network does."""
    import convsmith.measure.web as web

    skip_without_engine(engine)
    monkeypatch.setattr(web, "_WARMING", 20)
    libraries = Packages(str(packages(tmp_path, "x.data.map((v) => v * 2)")), ["onnxruntime-web"])
    with web.engine_of(engine, libraries) as page:
        for factor in (2, 3):
            net = NetworkBuilder()
            content = net.model(net.op("Mul", net.input("x", 1, 1, 4, 4), net.held(np.float32(factor))))
            name = f"net{factor}"
            export_for(read_graph(content.SerializeToString()), page.emptied(), name, "wasm32")
            files = web.WebNetworkFiles(f"{name}.js", f"{name}.js", "x", (1, 1, 4, 4), 1e-5)
            if factor == 2:
                times = page.measure_network(files, 3)
                assert {x: len(own) for x, own in times.items()} == {"network": 3, "onnxruntime-web": 3}
            else:
                with pytest.raises(ToolchainError, match=r"net3.js differs from onnxruntime-web: element 0 is -6, not"):
                    page.measure_network(files, 3)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("engine", ["node", "chromium"])
def test_results_of_a_library_are_compared(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import convsmith.measure.web as web

    skip_without_engine(engine)
    drawn = web.random_arrays

    def zeroed(p: Problem, **given: Any) -> dict[str, Any]:
        """All weights are zero, and so are the results."""
        return {n: x * (n != "wei") for n, x in drawn(p, **given).items()}

    monkeypatch.setattr(web, "random_arrays", zeroed)
    wrong, right = wrong_and_right(engine, tmp_path)
    assert "onnxruntime-web cannot do" in wrong and "its result differs from the right one: element 0 is" in wrong
    assert "cannot do" not in right and "our time includes copies of source and result" in right


def test_a_wrong_kernel_is_a_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    import convsmith.measure.web as web

    truth = web.reference
    monkeypatch.setattr(web, "reference", lambda *given: {n: x + 1 for n, x in truth(*given).items()})
    result = run("bench", LINE, *FAST)
    assert result.exit_code == 1 and "mismatch" in result.stderr and "element 0 is" in result.stderr


def test_a_transform_is_compared_within_its_bound(tmp_path: Path) -> None:
    """Its results are rounded more than sums are, in a 5x5 layer of 672 channels beyond 1e-5 of the largest."""
    def bounds(line: str) -> list[float | None]:
        write_plan(tmp_path, cs.compile(line, target="wasm32+relaxed", threads=1), 1, ())
        return [result.get("error") for result in json.loads((tmp_path / "plan.json").read_text())["results"]]

    (error,) = bounds("--stag=axb --dtag=axb mb1ic64ih8oc16oh8kh3ph1")
    assert error is not None and 0 < error < 1
    assert bounds("--stag=axb --dtag=axb mb1ic64ih8oc16oh8kh1ph0") == [None]


def test_missing_packages_are_named_together(tmp_path: Path) -> None:
    result = run("bench", LINE, *FAST, "--vs", "tfjs,onnxruntime-web", "--npm", str(tmp_path))
    wanted = (
        f"tfjs and onnxruntime-web are not in {tmp_path}/node_modules: npm install --prefix {tmp_path} "
        "@tensorflow/tfjs-backend-wasm @tensorflow/tfjs-core onnxruntime-web brings them"
    )
    assert result.exit_code == 0 and wanted in result.stdout
    own = Packages(str(packages(tmp_path, "x.data")), ["tfjs", "onnxruntime-web"])
    assert own.here == ["onnxruntime-web"] and own.versions == {"tfjs": None, "onnxruntime-web": "9.8.7"}
    (tmp_path / "inner").mkdir()
    assert Packages(str(tmp_path / "inner"), ["onnxruntime-web"]).here == ["onnxruntime-web"]


@pytest.mark.parametrize(
    "words, message",
    [
        (("--vs", "tfj"), "unknown library 'tfj': legal are "),
        (("--engine", "firefox"), "--engine=firefox is not legal; legal are node, chromium"),
        (("--npm", "/nowhere"), "--npm=/nowhere: there is no such directory"),
        (("--threads", "2"), "--threads=2: engines run kernels of wasm32+relaxed on 1"),
    ],
)
def test_what_is_refused(words: tuple[str, ...], message: str) -> None:
    result = run("bench", LINE, *FAST, *words)
    assert result.exit_code and message in result.stderr


@pytest.mark.parametrize("words", [("--engine", "node"), ("--npm", ".")])
def test_options_of_engines_need_their_target(words: tuple[str, ...]) -> None:
    result = run("bench", LINE, *words)
    assert result.exit_code == 2
    assert f"{words[0]} is for kernels of WebAssembly: legal with --target wasm32" in result.stderr


def test_a_library_without_a_problem_says_why(tmp_path: Path) -> None:
    own = packages(tmp_path, "x.data")
    result = run("bench", f"--dir=BWD_D {LINE}", *FAST, "--vs", "onnxruntime-web", "--npm", str(own))
    assert result.exit_code == 0 and "onnxruntime is compared on forward convolutions only" in result.stdout


def test_a_page_has_no_roofline_of_engines(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "rows.html"
    result = run("bench", LINE, *FAST, "--html", str(file))
    assert result.exit_code == 0, result.output
    page = file.read_text()
    assert "engines of WebAssembly have no roofline" in page and "beside the roofline" not in page


@pytest.mark.parametrize(
    "line",
    ["mb1ic4iw5oc6ow10kw4sw2pw1", "mb1ic4iw5oc6ow11kw4sw2pw1", "g2mb2ic4ih5oc6oh9kh3sh2ph1", "mb1ic2ih4oc3kh3dh1ph1"],
)
def test_deconvolutions_are_transposed_convolutions(line: str) -> None:
    """The model that libraries get computes the problem: sizes that strides leave open have a padding of the output."""
    session = pytest.importorskip("onnxruntime").InferenceSession
    problem = parse_problem(f"--deconv {line}")
    arrays = random_arrays(problem)
    model, output = onnx_model(problem, arrays)
    (found,) = session(model, providers=["CPUExecutionProvider"]).run([output], {"x": arrays["src"]})
    np.testing.assert_array_equal(found, reference(problem, arrays)["dst"])
