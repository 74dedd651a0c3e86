"""Files of networks: they load in a process that compiles nothing, and a damaged one gives one error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
import zlib
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx_networks import residual_net

import convsmith as cs
from convsmith.network.files.file import load_image, save_image

_SAVED = """
import sys
import numpy as np
import convsmith as cs
net, x = cs.load(sys.argv[1]), np.ones((1, 3, 32, 32), np.float32)
before = net(x)
net.save(sys.argv[1])
assert np.array_equal(net(x), before) and np.array_equal(cs.load(sys.argv[1])(x), before)
"""
_LOAD = """
import sys
import numpy as np
import convsmith as cs
net = cs.load(sys.argv[1])
np.save(sys.argv[2], net(np.load(sys.argv[3])))
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"torch", "onnx", "onnxruntime"}, loaded
from convsmith.machine.host import _listed, _plain
needs = {need for kernel in net.image.kernels for need in kernel.needs}
assert "llvmlite" not in loaded or not _listed() >= {*map(_plain, needs)}
assert not any(name.startswith(("convsmith.passes", "convsmith.schedule", "convsmith.tune")) for name in sys.modules)
"""
_IMPORTED = """
import sys
import numpy as np
before = {*sys.modules}
import convsmith as cs
net = cs.load(sys.argv[1])
net(np.ones((1, 3, 16, 16), np.float32))
from convsmith.machine.host import _listed, _plain
assert _listed() >= {_plain(need) for kernel in net.image.kernels for need in kernel.needs}, "LLVM lists features"
print(*sorted({*sys.modules} - before))
"""
ON_THE_WAY = {"codegen", "diag", "ir", "layout", "machine", "network", "runtime"}
"""Folders whose modules a process imports that loads a network."""
NOT_ON_THE_WAY = {
    "convsmith.codegen.llvm_bind", "convsmith.network.driver", "convsmith.network.program", "hashlib", "inspect",
    "ipaddress", "ml_dtypes", "numpy.typing", "pathlib", "urllib.parse", "zipfile",
}  # fmt: skip
"""Modules that take a millisecond or more, or that import many others."""


@pytest.fixture(scope="module")
def net() -> cs.Network:
    return cs.onnx.compile(residual_net(16), threads=1)


@pytest.fixture(scope="module")
def x() -> Any:
    return np.random.default_rng(0).integers(-3, 4, (1, 3, 16, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def saved(net: cs.Network, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "net.cs"
    net.save(path)
    return path


def test_another_process_loads_a_network_without_compiling(
    net: cs.Network, x: Any, saved: Path, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", x)
    command = [sys.executable, "-c", _LOAD, str(saved), str(tmp_path / "y.npy"), str(tmp_path / "x.npy")]
    environment = {**os.environ, "PYTHONPATH": str(Path(cs.__file__).parents[1]), "CONVSMITH_CACHE": "off"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), net(x))


def test_loading_imports_numpy_and_few_other_modules(saved: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(cs.__file__).parents[1])}
    command = [sys.executable, "-c", _IMPORTED, str(saved)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if "LLVM lists features" in done.stderr:
        pytest.skip("this system does not list all features of its CPU")
    assert done.returncode == 0, done.stderr
    imported = {*done.stdout.split()}
    assert not imported & NOT_ON_THE_WAY
    folders = {name.split(".")[1] for name in imported if name.startswith("convsmith.")}
    assert folders <= ON_THE_WAY and "network" in folders
    assert {name.partition(".")[0] for name in imported} <= {"convsmith", *sys.stdlib_module_names}


def test_a_loaded_network_says_what_it_is(net: cs.Network, saved: Path, tmp_path: Path) -> None:
    loaded = cs.load(saved)
    assert (loaded.inputs, loaded.outputs, loaded.workspace) == (net.inputs, net.outputs, net.workspace)
    assert loaded.image.steps == net.image.steps and repr(loaded) == repr(net)
    loaded.save(tmp_path / "again.cs")
    assert (tmp_path / "again.cs").read_bytes() == saved.read_bytes()
    with pytest.raises(cs.UnsupportedError, match="loaded from a file"):
        loaded.export(tmp_path / "library")
    with pytest.raises(cs.UnsupportedError, match="no time of a step"):
        loaded.explain({"x": x})


def test_weights_are_mapped(saved: Path) -> None:
    weights = load_image(saved).weights
    assert not weights.flags.writeable and not weights.flags.owndata
    assert weights.ctypes.data % 4096 == 0


def test_code_for_another_cpu_is_refused_with_the_reason(net: cs.Network, tmp_path: Path) -> None:
    first, *others = net.image.kernels
    alien = replace(net.image, kernels=(replace(first, needs=("avx1024",)), *others))
    save_image(alien, tmp_path / "alien.cs")
    with pytest.raises(cs.UnsupportedError, match="lacks avx1024"):
        cs.load(tmp_path / "alien.cs")


def test_damaged_files_give_one_error(saved: Path, tmp_path: Path) -> None:
    content, path = saved.read_bytes(), tmp_path / "damaged.cs"
    draw = Random(0)
    places = [*range(0, 40), len(content) - 1, *(draw.randrange(len(content)) for _ in range(60))]
    damaged = [content[:n] + bytes([content[n] ^ 0x41]) + content[n + 1 :] for n in places]
    damaged += [content[:n] for n in (0, 5, 30, 5000, len(content) - 1)]
    damaged += [content + b"more", b"not a network", content[:28] + b"[" * 5000]
    unchanged = 0
    for bytes_ in damaged:
        path.write_bytes(bytes_)
        try:
            cs.load(path)
        except cs.UsageError as error:
            assert str(path) in str(error) and error.code in ("bad-network", "bad-file")
        else:
            unchanged += 1  # bytes between the code and the weights
    assert unchanged <= 5


BAD: tuple[Any, ...] = (-1, 0, 1 << 40, 1 << 62, -(2**70), 1.5, None, True, "x", "", [], {}, [[]], "1" * 5000)
"""Values that take the place of others in a header."""
MOST_BYTES = 40_000_000
"""Most bytes that a refused file may allocate."""


def _places(x: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values of a header, with the first three of each list."""
    keys: Any = x if isinstance(x, dict) else range(min(len(x), 3)) if isinstance(x, list) else ()
    return [before, *(place for key in keys for place in _places(x[key], (*before, key)))]


def _with_header(content: bytes, head: Any, old: Any, end: int) -> bytes:
    """A file with another header, whose checksum is right."""
    size = sum(n for plan in old["plans"] for n in plan["code"])
    text = json.dumps(head).encode()
    start = content[: content.index(b"\n") + 1] + len(text).to_bytes(8, "little") + text
    code = content[end + 4 : end + 4 + size]
    whole = start + zlib.crc32(start + code).to_bytes(4, "little") + code
    return whole + bytes(-len(whole) % 4096) + content[len(content) - old["weights"] :]


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.wide)])
def test_headers_with_a_right_checksum_give_one_error_or_change_words(count: int, tmp_path: Path) -> None:
    net: Any = cs.onnx.compile(residual_net(16), batch=(1, 2), threads=1)
    path, draw = tmp_path / "net.cs", Random(count)
    net.save(path)
    content = path.read_bytes()
    start = content.index(b"\n") + 9
    end = start + int.from_bytes(content[start - 8 : start], "little")
    old = json.loads(content[start:end])
    path.write_bytes(_with_header(content, old, old, end))
    assert repr(cs.load(path)) == repr(net)
    places = _places(old)
    words = {"name", "steps", "bound", "dims", "names", "outside"}
    tracemalloc.start()
    for _ in range(count):
        head, place = json.loads(json.dumps(old)), draw.choice(places[1:])
        inner = head
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = draw.choice(BAD)
        path.write_bytes(_with_header(content, head, old, end))
        tracemalloc.reset_peak()
        try:
            cs.load(path)
        except cs.UsageError as error:
            assert error.code == "bad-network" and str(path) in str(error)
        else:
            assert head == old or {*place} & words, place
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    tracemalloc.stop()


def test_a_table_with_the_same_entry_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.cs"
    cs.onnx.compile(residual_net(16), threads=1).save(path)
    content = path.read_bytes()
    start = content.index(b"\n") + 9
    end = start + int.from_bytes(content[start - 8 : start], "little")
    old = json.loads(content[start:end])
    head = json.loads(json.dumps(old))
    head["plans"][0]["kernels"][2] = head["plans"][0]["kernels"][0]
    path.write_bytes(_with_header(content, head, old, end))
    with pytest.raises(cs.UsageError, match="an entry of a kernel twice"):
        cs.load(path)


def test_files_that_cannot_be_read_or_written(net: cs.Network, tmp_path: Path) -> None:
    for path in (tmp_path / "missing.cs", tmp_path):
        with pytest.raises(cs.UsageError, match=path.name):
            cs.load(path)
    with pytest.raises(cs.UsageError, match="cannot be written"):
        net.save(tmp_path / "no" / "net.cs")


def test_a_network_is_saved_to_the_file_that_it_was_loaded_from(tmp_path: Path) -> None:
    """Its weights are read from that file, whose content a process that has mapped it keeps."""
    cs.onnx.compile(residual_net(32), {"x": (1, 3, 32, 32)}, threads=1).save(tmp_path / "own.net")
    subprocess.run([sys.executable, "-c", _SAVED, tmp_path / "own.net"], check=True)
