"""Networks as modules of WebAssembly: the test beside them in Node, TypeScript, a page of a browser, and errors."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from click.testing import CliRunner
from emulated import skip_without_emulator
from exported import run, tool
from headless import headless_browser
from onnx_networks import NetworkBuilder, mobile_net, u_net
from quantised_networks import exact_net

import convsmith as cs
from convsmith.cli.main import main
from convsmith.emulate import wasm
from convsmith.emulate.emulators import emulated
from convsmith.machine.registry import target
from convsmith.network.files.c_texts import sample
from convsmith.network.files.web import WEIGHTS_PLACES
from convsmith.onnx.graph import read_graph
from convsmith.onnx.network import export_for

RELAXED, DOTS, PAIRS = "wasm32+relaxed", "wasm32+dot_u8", "wasm32+pairs_u8"


def exported(
    model: Any, folder: Path, name: str = RELAXED, weights: str | None = None, threads: int | None = None
) -> Path:  # fmt: skip
    skip_without_emulator(target("wasm32"))
    return export_for(read_graph(model.SerializeToString()), folder, "net", name, threads, weights).directory


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(u_net(8, real=True), tmp_path_factory.mktemp("web"))


@pytest.fixture(scope="module")
def threaded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same network for three threads."""
    return exported(u_net(8, real=True), tmp_path_factory.mktemp("threads"), threads=3)


def test_the_files_of_a_package(folder: Path) -> None:
    package = json.loads((folder / "package.json").read_text())
    assert set(package["files"]) == {"net.js", "net.d.ts", "net.wasm", "net.plain.wasm", "net.weights"}
    assert {path.name for path in folder.iterdir()} == {*package["files"], "package.json", "net.test.mjs"}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "name, weights, threads",
    [(RELAXED, "beside", 1), (RELAXED, "inside", 1), ("wasm32", "beside", 1), (RELAXED, "inside", 2)],
)
def test_the_test_beside_the_modules(name: str, weights: str, threads: int, tmp_path: Path) -> None:
    folder = exported(mobile_net(32, real=True), tmp_path, name, weights, threads)
    assert (folder / "net.weights").exists() is (weights == "beside")
    assert (folder / "net.plain.wasm").exists() is (name == RELAXED)
    assert (folder / "net.threads.wasm").exists() is (threads > 1)
    run(tool("node"), "--test", folder / "net.test.mjs")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "levels, titles, weights",
    [
        (DOTS, ("", ".signed", ".plain"), [""]), (PAIRS, ("", ".plain"), [""]),
        (f"{DOTS},{PAIRS}", ("", ".signed", ".pairs", ".plain"), ["", ".pairs"]),
    ],
)  # fmt: skip
def test_modules_of_all_engines_compute_the_same(
    levels: str, titles: tuple[str, ...], weights: list[str], tmp_path: Path
) -> None:  # fmt: skip
    """Bytes are equal whatever an engine multiplies them with, and it loads a module whose products it computes, as
    the last module does. Modules of several levels have weights of their own.
    """
    folder = exported(exact_net("u8"), tmp_path, levels)
    files = [f"net{title}.wasm" for title in titles]
    assert {path.name for path in folder.glob("*.wasm")} == {*files}
    assert {path.name for path in folder.glob("*.weights")} == {f"net{title}.weights" for title in weights}
    run(tool("node"), "--test", folder / "net.test.mjs")
    script = """
    import { setFlagsFromString } from "node:v8";
    setFlagsFromString("--experimental-wasm-relaxed-simd");
    const results = [];
    for (const file of FILES) {
      const net = await own.load({ module: new URL(file, import.meta.url) });
      const [name] = Object.keys(own.inputs);
      const size = own.inputs[name].shape.reduce((n, size) => n * size);
      results.push(net.run({ [name]: Float32Array.from({ length: size }, (_, n) => (n * 7) % 41 - 20) }));
    }
    console.log(JSON.stringify([own.moduleFile(), ...results]));
    """
    chosen, *results = node(folder, script.replace("FILES", json.dumps(files)))
    assert chosen in files and results[files.index(chosen)] == results[-1]
    assert any(len({*y.values()}) > 4 for y in results[-1].values()), "the test would not notice faults"


@pytest.mark.parametrize(
    "levels, legal",
    [(f"{DOTS},{DOTS}", "legal is each level once"), (f"wasm32,{DOTS}", "legal is wasm32 as the last")],
)
def test_levels_that_no_engine_would_choose(levels: str, legal: str, tmp_path: Path) -> None:
    with pytest.raises(cs.UsageError, match=legal):
        export_for(read_graph(exact_net("u8").SerializeToString()), tmp_path, "net", levels)


def test_an_engine_without_the_instructions_packs_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are packed by a kernel of an alternative where an engine lacks the instructions of the first module."""
    model, names = exact_net("u8"), ("any", "plain")
    exported(model, tmp_path / names[0], DOTS)
    plain = target("wasm32")
    monkeypatch.setattr(wasm, "_features_of", lambda engine, program: frozenset(plain.needs))
    assert emulated(target(DOTS)).needs == plain.needs
    exported(model, tmp_path / names[1], DOTS)
    for file in ("net.weights", "net.wasm"):
        first, second = ((tmp_path / name / file).read_bytes() for name in names)
        assert first == second and first


def test_the_message_is_about_the_machine_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without_emulator(target("wasm32"))
    monkeypatch.setattr(wasm, "_features_of", lambda engine, program: frozenset())
    with pytest.raises(cs.UnsupportedError, match="no emulated processor has simd128, relaxed-simd, dot-u8"):
        emulated(target(DOTS))


def test_the_test_fails_with_other_results(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "net.test.mjs"
    text = file.read_text()
    assert text.count('"values": [') == 2
    file.write_text(text.replace('"values": [', '"values": [9'))
    done = subprocess.run([tool("node"), "--test", file], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "[0] is " in done.stdout


def node(folder: Path, script: str) -> Any:
    """The value that a script of Node prints, which may use `load` and the names of the module."""
    file = folder / "script.mjs"
    file.write_text(f'import * as own from "./net.js";\n{script}\n')
    try:
        return json.loads(run(tool("node"), file))
    finally:
        file.unlink()


def test_views_copies_and_messages(folder: Path) -> None:
    script = """
    const net = await own.load();
    const message = (f) => { try { f(); } catch (error) { return error.message; } };
    net.input("x").fill(1);
    const first = net.run();
    const view = net.output("v14");
    const same = view.every((x, n) => x === first.v14[n]);
    const zeros = { x: new Array(512).fill(0) };
    const second = net.run(zeros);
    console.log(JSON.stringify([
      Object.keys(first), same, view.every((x, n) => x === second.v14[n]),
      first.v14.some((x, n) => x !== second.v14[n]),
      message(() => net.run({ x: [1] })), message(() => net.run({ y: [1] })), own.inputs.x,
      net.run(zeros, { v14: first.v14 }).v14 === first.v14, first.v14.every((x, n) => x === second.v14[n]),
      message(() => net.run({}, { v14: [1] })), message(() => net.run({}, { x: zeros.x })),
    ]));
    """
    names, *rest = node(folder, script)
    assert names == [*cs.onnx.compile(u_net(8), threads=1).outputs]
    assert rest == [
        True, True, True, "x has 1 elements; expected 512, 2 x 4 x 8 x 8", "net has no y; legal are x",
        {"type": "f32", "shape": [2, 4, 8, 8]},
        True, True, "v14 has 1 elements; expected 256, 2 x 2 x 8 x 8",
        f"net has no x; legal are {', '.join(names)}",
    ]  # fmt: skip


def test_both_modules_compute_the_same(folder: Path) -> None:
    """The results of whole numbers are equal in both, whatever an engine rounds."""
    script = """
    import { setFlagsFromString } from "node:v8";
    setFlagsFromString("--experimental-wasm-relaxed-simd");
    const results = [];
    for (const file of ["net.wasm", "net.plain.wasm"]) {
      const net = await own.load({ module: new URL(file, import.meta.url) });
      results.push([...net.run({ x: Float32Array.from({ length: 512 }, (_, n) => n % 5) }).v14]);
    }
    console.log(JSON.stringify(results));
    """
    fused, plain = map(np.array, node(folder, script))
    assert np.abs(fused).max() > 0
    np.testing.assert_allclose(fused, plain, rtol=0, atol=1e-5 * np.abs(plain).max())


THREADS = """
const net = await own.load({ threads: 3 });
const single = await own.load({ threads: 1 });
const runs = Array.from({ length: 20 }, (_, k) => Float32Array.from({ length: 512 }, (_, n) => (n * (k + 1)) % 5));
const same = runs.every((x) => {
  const wanted = single.run({ x }).v14;
  return net.run({ x }).v14.every((y, n) => y === wanted[n]);
});
const shares = net.memory.buffer instanceof SharedArrayBuffer;
net.close();
let message;
try { net.run(); } catch (error) { message = error.message; }
console.log(JSON.stringify([same, net.threads, single.threads, shares, own.moduleFile(1), message]));
"""


def test_threads_share_the_work(threaded: Path) -> None:
    same, *rest = node(threaded, THREADS)
    assert same, "three threads computed something else than one"
    file = rest.pop(3)
    assert rest == [3, 1, True, "the network net is closed"] and file in ("net.wasm", "net.plain.wasm")


def test_workers_compute_all_parts(threaded: Path, tmp_path: Path) -> None:
    """The thread that calls takes none, and counts the parts that the others take."""
    shutil.copytree(threaded, tmp_path, dirs_exist_ok=True)
    threads = tmp_path / "net.threads.js"
    text = threads.read_text()
    own = "    take(control, this.instance.exports.__indirect_function_table);\n"
    done = "Atomics.add(control, DONE, 1);"
    assert text.count(own) == text.count(done) == 1
    taken = "if (!(part < parts)) Atomics.add(control, FAULTS, 1);"
    threads.write_text(text.replace(own, "").replace(done, f"{taken} {done}"))
    assert node(tmp_path, THREADS)[0], "workers computed something else"


def test_a_fault_on_another_thread_ends_a_run(threaded: Path, tmp_path: Path) -> None:
    """A worker whose table lacks the function of a kernel counts its part as done, and says so."""
    shutil.copytree(threaded, tmp_path, dirs_exist_ok=True)
    worker = tmp_path / "net.worker.js"
    text = worker.read_text()
    given = "serve(control, exports.__indirect_function_table)"
    assert text.count(given) == 1
    worker.write_text(text.replace(given, "serve(control, { get: () => { throw 1; } })"))
    script = """
    const net = await own.load({ threads: 3 });
    let message = "";
    for (let n = 0; n < 1000 && !message; n++) try { net.run(); } catch (error) { message = error.message; }
    console.log(JSON.stringify(message));
    process.exit();
    """
    assert node(tmp_path, script) == "a kernel stopped on another thread"


def test_a_module_for_another_number_of_threads(threaded: Path) -> None:
    script = """
    const module = new URL(own.moduleFile(1), import.meta.url);
    const message = await own.load({ module, threads: 3 }).catch((error) => error.message);
    console.log(JSON.stringify([message, own.moduleFile(3)]));
    """
    message, file = node(threaded, script)
    assert message == f"the module is for one thread; this page loads {file}" and "threads" in file


@pytest.mark.parametrize("name", ["folder", "threaded"])
def test_typescript_accepts_the_declarations(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    folder = request.getfixturevalue(name)
    compiler = shutil.which("tsc")
    if compiler is None:
        pytest.skip("no tsc on PATH: npm install typescript brings it")
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    use = tmp_path / "use.ts"
    options = ("--noEmit", "--strict", "--module", "nodenext", "--target", "es2022", "--lib", "es2022,dom")
    more = ", threads: 2" if name == "threaded" else ""
    head = f'import {{ load }} from "./net.js";\nconst net = await load({{ weights: new Uint8Array(4){more} }});\n'
    use.write_text(head + "const y: Float32Array = net.run({ x: [1, 2] }).v14;\nnet.input('x').set(y);\nnet.close();\n")
    run(compiler, *options, use)
    use.write_text(head + "net.run({ y: [1] });\n")
    assert subprocess.run([compiler, *options, use], capture_output=True, check=False).returncode


class _Quiet(SimpleHTTPRequestHandler):
    """Serves files; pages are cross-origin isolated if `isolates`."""

    isolates = False

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def end_headers(self) -> None:
        if self.isolates:
            self.send_header("Cross-Origin-Opener-Policy", "same-origin")
            self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()


class _Isolating(_Quiet):
    isolates = True


@contextmanager
def served(folder: Path, handler: type[_Quiet]) -> Iterator[str]:
    """The address of a page in a folder that a server serves."""
    (folder / "index.html").write_text("<!doctype html><link rel=icon href=data:><title>network</title>")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/index.html"
        server.shutdown()
    (folder / "index.html").unlink()


PAGE = """
const done = arguments[arguments.length - 1];
import("./net.js").then(async ({ load, moduleFile, inputs }) => {
  const net = await load({ threads: 3 });
  const x = Float32Array.from({ length: net.input("x").length }, (_, i) => (i * 7 % 5 - 2) * 0.25);
  done([moduleFile(3), net.threads, [...net.run({ x }).v14]]);
}).catch((error) => done([String(error), 0, []]));
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "name, handler, file, threads",
    [
        ("folder", _Quiet, "net.wasm", 1), ("threaded", _Quiet, "net.wasm", 1),
        ("threaded", _Isolating, "net.threads.wasm", 3),
    ],
)  # fmt: skip
def test_a_page_of_a_browser(
    name: str, handler: type[_Quiet], file: str, threads: int, request: pytest.FixtureRequest
) -> None:  # fmt: skip
    with headless_browser() as browser, served(request.getfixturevalue(name), handler) as page:
        browser.get(page)
        *chosen, found = browser.execute_async_script(PAGE)
        assert browser.get_log("browser") == []
    assert chosen == [file, threads]
    net = cs.onnx.compile(u_net(8, real=True), threads=1)
    wanted = np.asarray(net.run({"x": sample((2, 4, 8, 8), "f32")})["v14"]).ravel()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_the_command(tmp_path: Path) -> None:
    skip_without_emulator(target(RELAXED))
    b = NetworkBuilder()
    model = tmp_path / "one.onnx"
    model.write_bytes(b.model(b.conv(b.input("x", 1, 3, 8, 8), 3, 4, 3)).SerializeToString())
    words = ["network", "export", str(model), "--target", RELAXED, "-o", str(tmp_path / "web"), "--weights", "inside"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    assert "one.wasm" in result.output and "one.d.ts" in result.output
    assert str(tmp_path) not in (tmp_path / "web" / "one.js").read_text()


def test_what_is_refused(tmp_path: Path) -> None:
    graph = read_graph(mobile_net(32).SerializeToString())
    legal = ", ".join(WEIGHTS_PLACES)
    with pytest.raises(cs.UsageError, match=f"weights 'insde' is not legal; legal are .*{legal[-6:]}"):
        export_for(graph, tmp_path, "net", RELAXED, weights="insde")
    with pytest.raises(cs.UsageError, match="in a library of C for aarch64 they are always inside"):
        export_for(graph, tmp_path, "net", "aarch64", weights="beside")
    with pytest.raises(cs.UnsupportedError, match="a network for sm_80; available are CPUs and WebAssembly"):
        export_for(graph, tmp_path, "net", "sm_80")
