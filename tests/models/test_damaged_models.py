"""Whatever a model's file holds, every reader works or raises one UsageError, and no name reaches the terminal raw.

Damage is systematic: every field of small models is dropped and replaced, one at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from convsmith.cli.main import main
from convsmith.diag.errors import InternalError, UnsupportedError, UsageError
from convsmith.onnx.models import node_constants, node_problems, read_model
from convsmith.onnx.profiling import onnx_profiler

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from damage import damaged  # noqa: E402
from small_models import FLOAT, MODELS, saved_model  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:Ignoring unknown external data key")
STEP = 7
"""The normal tier runs one profile in so many: each makes sessions of ONNX Runtime."""


@pytest.fixture(autouse=True)
def short_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("convsmith.measure.timing.SAMPLE_SECONDS", 1e-4)


def _reads(read: Callable[[], object], what: str) -> None:
    try:
        read()
    except (UsageError, UnsupportedError) as error:
        assert str(error).isprintable(), what
    except Exception as error:
        pytest.fail(f"{what}: {type(error).__name__}: {error}")


def _profiled(path: Path) -> None:
    profiler = onnx_profiler(path, threads=1, rounds=1)
    assert str(profiler.result).replace("\n", "").isprintable()


def _damage(name: str, path: Path) -> Iterator[tuple[str, Any]]:
    (path.parent / "w.bin").write_bytes(np.ones(108, np.float32).tobytes())
    for what, made in damaged(MODELS[name]()):
        path.write_bytes(made.SerializeToString())
        yield what, made


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", MODELS)
def test_problems_and_constants_of_a_damaged_model(name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    for what, made in _damage(name, path):
        _reads(lambda: node_constants(path), what)
        _reads(lambda made=made: [read.stand_ins(x) for read in [read_model(made)] for x in read.nodes], what)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", MODELS)
def test_profiles_of_a_damaged_model(name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    for what, _ in itertools.islice(_damage(name, path), 0, None, STEP):
        _reads(lambda: _profiled(path), what)


@pytest.mark.wide
@pytest.mark.parametrize("name", MODELS)
def test_profiles_of_a_model_with_any_damage(name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    for what, _ in _damage(name, path):
        _reads(lambda: _profiled(path), what)


def _texts(message: Any) -> Iterator[tuple[Any, str, int | None]]:
    """Every text of a message: the message that has it, its field, and its place in a repeated one."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING:
            places = [None] if isinstance(value, str) else range(len(value))
            yield from ((message, field.name, n) for n in places)
        elif field.type == field.TYPE_MESSAGE:
            for part in [value] if hasattr(value, "ListFields") else value:
                yield from _texts(part)


@pytest.mark.parametrize("name", MODELS)
def test_texts_that_are_no_utf_8(name: str, tmp_path: Path) -> None:
    """Protobuf returns their bytes: nothing that prints, compares or joins names meets one."""
    path, mark = tmp_path / "m.onnx", "\x01mark\x02"
    count = len(list(_texts(MODELS[name]())))
    assert count > 3
    for n in range(count):
        made = MODELS[name]()
        message, field, at = list(_texts(made))[n]
        if at is None:
            setattr(message, field, mark)
        else:
            getattr(message, field)[at] = mark
        path.write_bytes(made.SerializeToString().replace(mark.encode(), b"\xff\xfemk\x80\x80"))
        with pytest.raises(UsageError, match=r"is no ONNX model|the file of its weights") as error:
            read_model(path, with_data=True)
        assert str(error.value).isprintable(), field


def _set(**fields: Any) -> Callable[[Any], None]:
    return lambda made: [setattr(made.graph.initializer[0], name, value) for name, value in fields.items()] and None


def _element_type(made: Any) -> None:
    made.graph.input[0].type.tensor_type.elem_type = 99


def _no_shape(made: Any) -> None:
    made.graph.input[0].type.tensor_type.ClearField("shape")


def _huge(made: Any) -> None:
    made.graph.initializer[0].dims[0] = 1 << 40


def _huge_input(made: Any) -> None:
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1 << 62


def _one_input(made: Any) -> None:
    del made.graph.node[0].input[1:]


def _no_output(made: Any) -> None:
    del made.graph.node[0].output[:]


def _attribute(name: str, value: object) -> Callable[[Any], None]:
    def damage(made: Any) -> None:
        node = made.graph.node[0]
        kept = [attribute for attribute in node.attribute if attribute.name != name]
        del node.attribute[:]
        node.attribute.extend([*kept, onnx.helper.make_attribute(name, value)])

    return damage


def _conversion(made: Any) -> None:
    made.graph.node.insert(0, onnx.helper.make_node("DequantizeLinear", [], ["x2"]))


def _file(location: str) -> Callable[[Any], None]:
    def change(made: Any) -> None:
        tensor = made.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = tensor.EXTERNAL
        entry = tensor.external_data.add()
        entry.key, entry.value = "location", location

    return change


DAMAGES: dict[str, tuple[Callable[[Any], None], str]] = {
    "raw data": (_set(raw_data=b"\xff"), "tensor w: what it holds is no float32 of shape 4 x 3 x 3 x 3"),
    "type 99": (_set(data_type=99), "tensor w: 99 is no type of elements; legal are 1 (float) to "),
    "type -1": (_set(data_type=-1), "tensor w: -1 is no type of elements"),
    "type 0": (_set(data_type=0), "tensor w: 0 is no type of elements"),
    "type of an input": (_element_type, "value x: 99 is no type of elements"),
    "input without shape": (_no_shape, "x"),
    "2^40": (_huge, "tensor w: what it holds is no float32 of shape 1099511627776 x 3 x 3 x 3"),
    "input of 2^62": (_huge_input, "its shape is 4611686018427387904 x 3 x 6 x 6; legal are fewer than 2**60 elements"),
    "one input": (_one_input, "node stem (Conv) has 1 inputs; legal are 2 to 3"),
    "no output": (_no_output, "node stem (Conv) has no output; legal is one"),
    "stride 0": (_attribute("strides", [1, 0]), "node stem (Conv) has strides 1, 0; legal are 1 or more"),
    "group 0": (_attribute("group", 0), "node stem (Conv) has group 0; legal are 1 or more"),
    "conversion": (_conversion, "node number 0 (DequantizeLinear) has 0 inputs; legal are 2 to 3"),
    "absolute": (_file("/etc/passwd"), "the file of its weights cannot be read: "),
    "parent": (_file("../w.bin"), "the file of its weights cannot be read: "),
    "missing": (_file("none.bin"), "the file of its weights cannot be read: "),
}


def _run(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


def _commands(path: Path) -> Iterator[tuple[str, ...]]:
    yield "bench", str(path), "--threads", "1", "--rounds", "1"
    yield "explain", str(path), "stem"
    yield "show", str(path), "stem"
    yield "verify", str(path)
    yield "export", str(path), "-o", str(path.parent / "library")
    yield "tune", str(path), "--budget", "0"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("damage", DAMAGES)
def test_every_command_prints_one_message(damage: str, tmp_path: Path) -> None:
    change, text = DAMAGES[damage]
    made = MODELS["conv"]()
    change(made)
    path = tmp_path / "m.onnx"
    path.write_bytes(made.SerializeToString())
    (tmp_path.parent / "w.bin").write_bytes(b"")
    for words in _commands(path):
        result = _run(*words)
        assert result.exit_code == 2, (words, result.output)
        assert "Traceback" not in result.output
        (line,) = [x for x in result.output.splitlines() if x.startswith("UsageError: ")]
        assert text in line and "m.onnx" in line
    with pytest.raises(UsageError) as error:
        onnx_profiler(path, threads=1)
    assert text in str(error.value) and not isinstance(error.value, InternalError)


def test_an_input_without_a_shape_takes_the_callers(tmp_path: Path) -> None:
    made = MODELS["conv"]()
    _no_shape(made)
    path = tmp_path / "m.onnx"
    path.write_bytes(made.SerializeToString())
    assert str(node_problems(path, {"x": (2, 3, 6, 6)})["stem"]) == "--dir=FWD_B mb2ic3ih6oc4oh3kh3sh2ph1"
    with pytest.raises(UsageError, match=r"states no type and shape of x; legal is to give its shape, such as --input"):
        onnx_profiler(path, threads=1)


def test_an_open_batch_may_be_written_as_minus_one(tmp_path: Path) -> None:
    made = MODELS["conv"]()
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    path = tmp_path / "m.onnx"
    path.write_bytes(made.SerializeToString())
    assert str(node_problems(path)["stem"]) == "--dir=FWD_B mb1ic3ih6oc4oh3kh3sh2ph1"


def test_nodes_have_names_of_their_own_whatever_the_model_calls_them(tmp_path: Path) -> None:
    names = ["a#2", "a", "a", "\x1b", "\\x1b"]
    nodes = [onnx.helper.make_node("Conv", ["x", "w"], [f"y{n}"], name) for n, name in enumerate(names)]
    made = saved_model(nodes, {"x": (FLOAT, [1, 2, 3, 3])}, ["y0"], w=np.ones((2, 2, 1, 1), np.float32))
    assert [node.name for node in read_model(made).nodes] == ["a#2", "a", "a#3", "\\x1b", "\\x1b#2"]


HOSTILE = "\x1b]0;x\x07\x9b31m\n\r$\\frac"


def test_no_command_prints_a_control_character_of_a_name(tmp_path: Path) -> None:
    node = onnx.helper.make_node
    nodes = [
        node("Conv", [HOSTILE, "w"], ["one"], HOSTILE),
        node("Conv", ["one", "w"], ["two"], f"{HOSTILE}2"),
        node("FusedConv", ["two", "w"], ["y"], domain="com.microsoft"),
        node("Relu", ["y"], ["z"]),
    ]
    made = saved_model(nodes, {HOSTILE: (FLOAT, [1, 2, "a\x1b", 3])}, ["z"], w=np.ones((2, 2, 1, 1), np.float32))
    made.graph.name = HOSTILE
    path = tmp_path / "m.onnx"
    path.write_bytes(made.SerializeToString())
    shape, page, escaped = f"{HOSTILE}=1x2x3x3", tmp_path / "m.html", HOSTILE.encode("unicode_escape").decode()
    texts = [_run(*words).output for words in _commands(path)]
    for words in _commands(path):
        result = _run(*words, "--input", shape, *(["--html", str(page)] if words[0] == "bench" else []))
        texts.append(result.output)
        assert "InternalError" not in result.output, words
    found = onnx_profiler(made, {HOSTILE: (1, 2, 3, 3)}, threads=1, rounds=1)
    assert len(list(found.rows())) == 1
    texts += [str(found.result), page.read_text(encoding="utf-8")]
    for text in texts:
        assert text.replace("\n", "").replace("\t", "").isprintable()
    assert "\\x1b]0;x\\x07\\x9b31m\\n\\r$" in str(found.result) and escaped


def test_errors_of_python_are_printable() -> None:
    with pytest.raises(UsageError) as error:
        read_model("/none\x1b[31m\x00.onnx")
    assert str(error.value).isprintable() and "/none\\x1b[31m" in str(error.value)
