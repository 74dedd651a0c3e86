"""Damaged inputs for every public reader: a result, or an error of ours. What is drawn follows from a seed."""

from __future__ import annotations

import json
import random
import sqlite3
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import convsmith as cs
from convsmith.cli.bench_json import as_json, earlier_rows
from convsmith.cli.db import _read as read_export
from convsmith.codegen.artifact import Artifact
from convsmith.exporter.library import weights_of
from convsmith.ir.buffer import make_buffer
from convsmith.ir.intern import interning
from convsmith.ir.parse import parse_cond, parse_index, parse_kernel, parse_stmt, parse_value
from convsmith.ir.types import dtype
from convsmith.layout.layout import Layout
from convsmith.problem.activations import activation_post_ops
from convsmith.problem.batch import read_batch
from convsmith.problem.lines import parse_problem
from convsmith.schedule.config import Config
from convsmith.schedule.wish import read_decisions
from convsmith.tune.records.checked_rows import COLUMNS
from convsmith.tune.records.database import Database
from convsmith.tune.records.measured import Measured
from convsmith.tune.records.origin import compiler_key

LINE = "mb1ic4ih6oc8kh3ph1"
KERNEL = """\
kernel k(a: f32[8], c: f32[8])
  for i in 0 .. 8:
    if i < 7:
      c[i] = max(a[i] * 2.5, c[i] + a[i + 1])
"""
CONFIG = (
    "--target=avx512 --lane=oc --fuse=oh+ow --register=ow:14,oc:32 --order=mb,oc,oh,ow --cache=oc:256 "
    "--reduce=kh,kw,ic --pack=wei --threads=2"
)
ROW = Measured(
    LINE, "--target=generic --lane=oc", "m", compiler_key(), "generic", 1, "ok", 1.0, 1e-5, 0.01, 9, 100.0, "",
    "2026-01-31",
)  # fmt: skip
SPREAD = {"median": 1.0, "low": 0.5, "high": 2.0}
RESULT = {
    "problem": str(parse_problem(LINE)), "name": None, "flops": 5, "config": "--target=generic --lane=oc",
    "target": "generic", "threads": 1, "verified": True, "error": None, "seconds": SPREAD, "gflops": SPREAD,
    "peak_gflops": SPREAD, "of_peak": SPREAD, "peak_types": "f32", "cpu_share": 1.0,
    "libraries": {"torch": {"seconds": SPREAD, "speedup": SPREAD}}, "cannot": {"ncnn": "why"},
}  # fmt: skip
"""A row of `bench --json`."""
PIECES = (
    "9" * 5000, "-1", "0", "1e999", "nan", "(" * 2000, ")", "[", "]", "{", '"', "'", "\0", "\ud800", "\x1b[2J", "²",
    "\u0663", ":", ",", "+", "*", "=", "--", " -> ", " / ", "\n", "\t", "  ", "#", "%", "x", "a", "kh", "0x", "1_0",
    ".", "e", "é", "True", "None", "--matmul", "--deconv", "--batch=x", "--reset", "for i in 0 .. ", "if ",
    "cast(s32, ", "/", "\\", "//",
)  # fmt: skip
"""Texts that are put into others."""


def damaged_text(text: str, draw: random.Random) -> str:
    """Return a text with one to four damages: pieces are removed, repeated, exchanged, or put in."""
    for _ in range(draw.randint(1, 4)):
        start = draw.randrange(len(text) + 1)
        end = min(len(text), start + draw.choice((0, 1, 2, 5, 20)))
        match draw.randrange(6):
            case 0:
                text = text[:start] + text[end:]
            case 1:
                text = text[:start] + text[start:end] * draw.choice((2, 3, 400)) + text[end:]
            case 2:
                text = text[:start]
            case 3:
                other = draw.randrange(len(text) + 1)
                text = text[:start] + text[other : other + 10] + text[end:]
            case _:
                text = text[:start] + draw.choice(PIECES) + text[end:]
    return text


def damaged_bytes(content: bytes, draw: random.Random) -> bytes:
    """Return bytes with one to four damages; half of them lie in the first or the last 200 bytes."""
    made = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        start = draw.randrange(len(made) + 1)
        if draw.random() < 0.5 and len(made) > 400:
            start = draw.choice((draw.randrange(200), len(made) - draw.randrange(1, 200)))
        end = start + draw.choice((1, 2, 4, 8, 64))
        match draw.randrange(5):
            case 0:
                del made[start:end]
            case 1:
                made[start:end] = bytes(draw.randrange(256) for _ in range(end - start))
            case 2:
                made[start:end] = draw.choice((b"\xff", b"\0")) * (end - start)
            case 3:
                del made[start:]
            case _:
                made[start:start] = made[start:end]
    return bytes(made)


def damaged_json(value: Any, draw: random.Random) -> Any:
    """Return a copy of a value of JSON with another value in place of one of its parts."""
    if draw.random() < 0.15 or not isinstance(value, dict | list) or not value:
        return draw.choice((None, True, -1, 0, 2**70, 10**400, 1e300, float("inf"), float("nan"), "", "x", "\ud800",
                            [], [[]], {}, {"x": 1}, "9" * 5000))  # fmt: skip
    key = draw.choice([*value] if isinstance(value, dict) else range(len(value)))
    made = value.copy()
    if draw.random() < 0.2:
        del made[key]
    else:
        made[key] = damaged_json(made[key], draw)
    return made


@dataclass(frozen=True)
class Reader:
    """A function that reads, and legal inputs: texts, bytes, or values of JSON."""

    read: Callable[[Any], object]
    inputs: tuple[Any, ...]


def of_file(folder: Path, read: Callable[[Path], object], name: str = "file") -> Callable[[bytes], object]:
    """Return a function that writes what it is given to a file, and reads that."""

    def written(content: bytes) -> object:
        (folder / name).write_bytes(content)
        return read(folder / name)

    return written


def _json(read: Callable[[bytes], object]) -> Callable[[Any], object]:
    return lambda value: read(json.dumps(value).encode())


def _database(path: Path) -> object:
    with Database(path, create=False) as database:
        return database.rows(), database.machines()


def _row(folder: Path) -> Callable[[Any], object]:
    """Return a function that writes a row to a database, whatever its values mean, and reads it."""
    path = folder / "rows.db"
    with Database(path):
        pass

    def read(values: Any) -> object:
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA synchronous = OFF")  # which would wait for the disk in each draw
        marks = ", ".join("?" * len(COLUMNS))
        try:
            with connection:
                connection.execute("DELETE FROM measurements")
                connection.execute(f"INSERT INTO measurements VALUES ({marks})", values)
        except (sqlite3.Error, OverflowError, TypeError, UnicodeEncodeError):
            return None  # no database can hold it
        finally:
            connection.close()
        return _database(path)

    return read


def _setting(text: str) -> object:
    for key in ("threads", "cache_size", "verbose", "check", "micro_architecture"):
        try:
            with cs.settings.scope(**{key: text}):
                pass
        except cs.ConvsmithError as error:
            assert not isinstance(error, cs.InternalError)
    return None


def _value(parse: Callable[..., object]) -> Callable[[str], object]:
    return lambda text: parse(text, {name: make_buffer(name, dtype("f32"), (8,), "global") for name in "ac"})


def readers(folder: Path) -> Mapping[str, Reader]:
    """Return the readers by name; their files lie in `folder`."""
    kernel = cs.compile(LINE, threads=1, target="generic")
    kernel.pack(np.ones((8, 4, 3, 3), np.float32)).save(folder / "w.npz")
    np.save(folder / "w.npy", np.ones((8, 4, 3, 3), np.float32))
    with Database(folder / "m.db") as database:
        database.put([ROW])
        database.name_machine("m", "a machine")
    assert kernel.artifact is not None
    export = {"schema": 1, "machines": {"m": "a machine"}, "rows": [asdict(ROW)]}
    made = {
        "tag": Reader(lambda text: Layout.from_tag(text, (2, 20, 5, 6)), ("abcd", "axb", "aBcd16b", "2n20c5h6w")),
        "layout": Reader(lambda text: Layout.parse(text, (2, 20)), ("ab", "ba")),
        "problem": Reader(parse_problem, (
            LINE, "--dir=BWD_WB --dt=bf16 g4mb2_ic8oc8_ih7oh7kh3ph1_iw5ow5kw3pw1n\"name\"",
            "--dt=u8:s8:u8 --attr-scales=src:common:0.5+wei:per_oc --attr-zero-points=src:common:2 "
            f"--attr-post-ops=sum:0.5+relu:0.1+add:f32:per_oc --stag=aBcd16b {LINE}",
            "--strides=144x1x24x4:: " + LINE,
        )),
        "product": Reader(parse_problem, ("--matmul 64x256:256x32", "--matmul --bia-dt=f32 --bia-mask=2 2x3x4:2x4x5")),
        "chain": Reader(parse_problem, (f"{LINE} -> --attr-post-ops=relu g8mb1ic8ih6oc8kh3ph1 -> mb1ic8ih6oc4kh1",)),
        "kernel": Reader(parse_kernel, (KERNEL,)),
        "statement": Reader(_value(parse_stmt), ("for i in 0 .. 8:\n  c[i] = a[i]\n", "c[0] = a[1] * 2.0\n")),
        "value": Reader(_value(parse_value), ("max(a[3], c[0])", "cast(s32, a[1])")),
        "index": Reader(parse_index, ("a * 4 + b // 3 - min(c, 7) % 2",)),
        "condition": Reader(parse_cond, ("a < 3 and b * 2 == 4",)),
        "config": Reader(Config.parse, (CONFIG, f"{CONFIG} --compute_at=oh / {CONFIG}")),
        "wish": Reader(read_decisions, ("--register=ow:3,oc:16 --realise=indirection", "--lane=oc / --lane=ow")),
        "list": Reader(
            lambda text: list(read_batch(text, "list", {}, lambda name, _: (name, LINE))),
            (f"# a\n--mb=1,2 --dt=f32,bf16 {LINE}\n--reset --batch=other\n", f"{LINE} -> mb1ic8ih6oc4kh1\n"),
        ),
        "activation": Reader(activation_post_ops, ("relu", "clip:0:6", "gelu+leaky_relu:0.1")),
        "setting": Reader(_setting, ("2", "256M", "create,exec", "znver4")),
        "packed": Reader(of_file(folder, cs.load_packed, "d.npz"), ((folder / "w.npz").read_bytes(),)),
        "array": Reader(
            of_file(folder, lambda path: weights_of(kernel.problem, path), "d.npy"), ((folder / "w.npy").read_bytes(),)
        ),
        "artifact": Reader(Artifact.from_bytes, (kernel.artifact.to_bytes(),)),
        "database": Reader(of_file(folder, _database, "d.db"), ((folder / "m.db").read_bytes(),)),
        "row": Reader(_row(folder), (list(astuple(ROW)),)),
        "export": Reader(_json(of_file(folder, lambda path: read_export(str(path)))), (export,)),
        "export's bytes": Reader(of_file(folder, lambda path: read_export(str(path))), (json.dumps(export).encode(),)),
        "rows of bench": Reader(
            _json(of_file(folder, lambda path: earlier_rows(str(path), {}, 3))),
            (as_json([RESULT], {}, 3, "", True),),
        ),
    }  # fmt: skip
    return made


NAMES = (
    "tag", "layout", "problem", "product", "chain", "kernel", "statement", "value", "index", "condition", "config",
    "wish", "list", "activation", "setting", "packed", "array", "artifact", "database", "row", "export",
    "export's bytes", "rows of bench",
)  # fmt: skip


def check(reader: Reader, draws: int, seed: str) -> None:
    """Read `draws` damaged inputs; any error of Python, and any fault of ours, fails."""
    draw = random.Random(seed)
    for _ in range(draws):
        given = draw.choice(reader.inputs)
        damage = {str: damaged_text, bytes: damaged_bytes}.get(type(given), damaged_json)
        made = damage(given, draw)
        try:
            with interning(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                reader.read(made)
        except cs.ConvsmithError as error:
            assert str(error) and not isinstance(error, cs.InternalError), f"{made!r:.2000}: {error}"
        except Exception as error:
            raise AssertionError(f"{seed}: {made!r:.2000}") from error


def test_legal_inputs_are_read(tmp_path: Path) -> None:
    table = readers(tmp_path)
    assert tuple(table) == NAMES
    for reader in table.values():
        for given in reader.inputs:
            with interning():
                reader.read(given)


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_input_is_an_error_of_ours(name: str, tmp_path: Path) -> None:
    check(readers(tmp_path)[name], 60, name)


@pytest.mark.parametrize(
    "change",
    [{"problem": "x"}, {"of_peak": SPREAD | {"low": 0}}, {"seconds": {}}, {"libraries": {"a": {}}}, {"config": "x"},
     {"name": 5}, {"cannot": []}, {"error": {"class": "x"}}, {"more": 1}, {"cpu_share": "x"}],
)  # fmt: skip
def test_no_run_adds_to_a_damaged_row(change: dict[str, Any], tmp_path: Path) -> None:
    content = as_json([RESULT, RESULT | change], {}, 3, "", True)
    (tmp_path / "rows.json").write_text(json.dumps(content))
    with pytest.raises(cs.UsageError, match="holds no rows to add to: row 2 is no row of bench"):
        earlier_rows(str(tmp_path / "rows.json"), {}, 3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", NAMES)
def test_many_damaged_inputs(name: str, seed: int, tmp_path: Path) -> None:
    check(readers(tmp_path)[name], 1500, f"{name} {seed}")


@pytest.mark.parametrize("draws", (60, pytest.param(3000, marks=pytest.mark.slow)))
def test_a_damaged_model_is_an_error_of_ours(draws: int, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    from convsmith.onnx.models import node_constants, node_problems

    node = onnx.helper.make_node("Conv", ["x", "w"], ["y"], "stem", pads=[1] * 4)
    graph = onnx.helper.make_graph(
        [node], "graph", [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 4, 6, 6])],
        [onnx.helper.make_empty_tensor_value_info("y")],
        [onnx.numpy_helper.from_array(np.ones((8, 4, 3, 3), np.float32), "w")],
    )  # fmt: skip
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 19)])

    def read(path: Path) -> object:
        return node_problems(path), node_constants(path)

    reader = Reader(of_file(tmp_path, read, "m.onnx"), (model.SerializeToString(),))
    reader.read(reader.inputs[0])
    check(reader, draws, "model")
