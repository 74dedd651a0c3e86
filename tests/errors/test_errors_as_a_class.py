"""Bad values of every kind for every argument of every public function: a result, or an error of ours that says what.

Dynamic kernels and micro-kernels have tests of their own.
"""

from __future__ import annotations

import errno
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import convsmith as cs
from convsmith.ir.parse import parse_kernel

X = np.ones((1, 4, 6, 6), np.float32)
W = np.ones((8, 4, 3, 3), np.float32)
B = np.ones(8, np.float32)
U, V = X.astype(np.uint8), W.astype(np.int8)
LHS, RHS = np.ones((4, 5), np.uint8), np.ones((5, 3), np.uint8)
LINE = "mb1ic4ih6oc8oh4kh3ph0"
ZERO = np.uint8(0)

VALUES: dict[str, Any] = {
    "none": None, "true": True, "zero": 0, "negative": -1, "huge": 2**70, "float": 2.0, "nan": float("nan"),
    "text": "text", "empty text": "", "bytes": b"x", "list": [1, 2], "floats": [1.0, 2.0], "nested": [[1], "x"],
    "empty": [], "tuple": (1,), "dict": {}, "set": {1}, "object": object(), "type": int, "complex": 1j,
    "slice": slice(2), "function": len, "iterator": iter(()),
    "scalar": np.float32(2), "rank 0": np.array(1, np.float32), "rank 7": np.ones((1,) * 7, np.float32),
    "no elements": np.empty((0,), np.float32), "long": np.ones(3, np.int64), "bools": np.ones((1, 4, 6, 6), np.bool_),
    "big-endian": X.astype(">f4"), "objects": X.astype(object), "complexes": X.astype(complex),
    "texts": np.array(["a"]), "records": np.zeros(3, "f4,i4"), "dates": np.zeros(3, "M8[s]"),
    "double": X.astype(np.float64),
    "digits": 10**5000, "list of digits": [1, 10**5000], "text of digits": "9" * 5000,
    "clip of digits": ("clip", 0, 10**5000), "surrogate": "\ud800", "nul": "\0", "stages": " -> ".join([LINE] * 3000),
    "statements": " / ".join(["--target=generic --lane=oc"] * 3000), "nested text": "(" * 5000,
    "long text": "a," * 20000,
}  # fmt: skip
"""A value for any argument; none of them is what most functions want."""


def cases(kernel: cs.CompiledKernel, folder: Path) -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Functions, with arguments that are legal: each is replaced in turn."""
    quantised = {"x": U, "x_scale": 0.5, "x_zero_point": ZERO, "w": V, "w_scale": 0.5, "w_zero_point": np.int8(0),
                 "y_scale": 0.5, "y_zero_point": ZERO}  # fmt: skip
    products = {"a": LHS, "a_scale": 0.5, "a_zero_point": ZERO, "b": RHS, "b_scale": 0.5, "b_zero_point": ZERO,
                "y_scale": 0.5, "y_zero_point": ZERO}  # fmt: skip
    packed = kernel.pack(W, B)
    conv = {field: getattr(kernel.problem, field) for field in ("mb", "ic", "oc", *"ioksdpg")}
    transposed = {"x": X, "w": np.ones((4, 8, 3, 3), np.float32)}
    one, three = {"x": X[..., 0], "w": W[..., 0]}, {"x": X[..., None], "w": W[..., None]}
    return {
        "compile": (cs.compile, {"problem": LINE}),
        "conv1d": (cs.conv1d, one),
        "conv2d": (cs.conv2d, {"x": X, "w": W}),
        "conv3d": (cs.conv3d, three),
        "conv_transpose2d": (cs.conv_transpose2d, transposed),
        "gemm_lowp": (cs.gemm_lowp, {"lhs": LHS, "rhs": RHS}),
        "gemm_lowp, drawn": (cs.gemm_lowp, {"lhs": LHS, "rhs": RHS, "bits": (7, 5), "rounding": "probabilistic"}),
        "pack_lowp": (cs.pack_lowp, {"rows": 4, "rhs": RHS}),
        "product": (cs.pack_lowp(4, RHS), {"lhs": LHS}),
        "load_packed": (cs.load_packed, {"path": folder / "none"}),
        "save": (packed.save, {"path": folder / "w.npz"}),
        "reorder": (cs.reorder, {"x": X, "from_tag": "abcd", "to_tag": "acdb"}),
        "suite": (cs.suite, {"name": "vgg16"}),
        "onnx.conv": (cs.onnx.conv, {"X": X, "W": W}),
        "onnx.conv_transpose": (cs.onnx.conv_transpose, {"X": X, "W": transposed["w"]}),
        "onnx.conv_integer": (cs.onnx.conv_integer, {"x": U, "w": V}),
        "onnx.qlinear_conv": (cs.onnx.qlinear_conv, quantised),
        "onnx.matmul_integer": (cs.onnx.matmul_integer, {"A": LHS, "B": RHS}),
        "onnx.qlinear_matmul": (cs.onnx.qlinear_matmul, products),
        "kernel": (kernel, {"x": X, "weights": W, "bias": B}),
        "kernel, packed": (kernel, {"x": X, "weights": packed}),
        "bind": (kernel.bind, {"x": X, "weights": packed, "out": np.ones((1, 8, 4, 4), np.float32)}),
        "run": (lambda **arrays: kernel.run(**arrays), {"src": X, "wei": W, "bia": B, "dst": None}),
        "pack": (kernel.pack, {"operand": W, "bias": B}),
        "ir": (kernel.ir, {"stage": "naive"}),
        "export": (cs.export, {"problem": LINE, "directory": folder / "out", "threads": 1}),
        "Conv": (cs.Conv, conv),
        "Conv.parse": (cs.Conv.parse, {"line": LINE}),
        "Config": (cs.Config, {"target": "generic", "lane": "oc"}),
        "Config.parse": (cs.Config.parse, {"text": "--target=generic --lane=oc"}),
        "Layout.from_tag": (cs.Layout.from_tag, {"tag": "abcd", "shape": (1, 2, 3, 4)}),
        "settings.scope": (lambda **given: cs.settings.scope(**given).__enter__(), {"threads": 1}),
    }  # fmt: skip


def bad_calls(function: Callable[..., Any], legal: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    names = [p.name for p in inspect.signature(function).parameters.values() if p.kind != p.VAR_KEYWORD]
    for name in dict.fromkeys([*legal, *names]):
        if name not in ("self", "dynamic"):
            for kind, value in VALUES.items():
                yield name, kind, {**legal, name: value}


DIGITS = "9" * 5000
LONG_NUMBERS: dict[str, Callable[[], object]] = {
    "descriptor": lambda: cs.compile(f"mb{DIGITS}ic8iw8oc8kw1"),
    "product": lambda: cs.compile(f"--matmul {DIGITS}x8:8x8"),
    "tag": lambda: cs.compile(f"--stag=aBcd{DIGITS}b mb1ic8ih8oc8kh1"),
    "blocks": lambda: cs.compile(f"--stag=4n{DIGITS}c mb1ic8ih8oc8kh1"),
    "strides": lambda: cs.compile(f"--strides={DIGITS}x1x320x32:: mb1ic8ih8oc8kh1"),
    "batch": lambda: cs.compile(f"--mb={DIGITS} mb1ic8ih8oc8kh1"),
    "bits": lambda: cs.compile(f"--matmul --dt=u8:s8:s32 --bits={DIGITS}:5 8x8:8x8"),
    "mask": lambda: cs.compile(f"--matmul --bia-dt=f32 --bia-mask={DIGITS} 8x8:8x8"),
    "layout": lambda: cs.Layout.from_tag(f"aBcd{DIGITS}b", (1, 2, 3, 4)),
    "config": lambda: cs.Config.parse(f"--target=generic --lane=oc --register=oc:{DIGITS}"),
    "threads": lambda: cs.compile(LINE, threads=10**5000),
    "stride": lambda: cs.conv2d(X, W, stride=10**5000),
    "kernel": lambda: parse_kernel(f"kernel k(a: f32[{DIGITS}])\n  a[0] = 1.0\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", LONG_NUMBERS)
def test_a_number_that_python_does_not_read_is_an_error_of_ours(name: str) -> None:
    with pytest.raises((cs.UsageError, cs.ConfigError)):
        LONG_NUMBERS[name]()


NAMES = [
    "compile", "conv1d", "conv2d", "conv3d", "conv_transpose2d", "gemm_lowp", "gemm_lowp, drawn", "pack_lowp",
    "product", "load_packed", "save", "reorder", "suite", "onnx.conv", "onnx.conv_transpose", "onnx.conv_integer",
    "onnx.qlinear_conv", "onnx.matmul_integer", "onnx.qlinear_matmul", "kernel", "kernel, packed", "bind", "run",
    "pack", "ir", "export", "Conv", "Conv.parse", "Config", "Config.parse", "Layout.from_tag", "settings.scope",
]  # fmt: skip


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", NAMES)
def test_no_value_raises_an_error_of_python(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kernel = cs.compile(LINE, bias=True, threads=1)
    table = cases(kernel, tmp_path)
    assert list(table) == NAMES
    function, legal = table[name]
    wrong = []
    for argument, kind, given in bad_calls(function, legal):
        try:
            function(**given)
        except cs.InternalError as error:
            wrong.append(f"{argument}={kind}: {error}")
        except cs.ConvsmithError as error:
            if not str(error):
                wrong.append(f"{argument}={kind}: no text")
        except Exception as error:
            if isinstance(error, FileNotFoundError) and given.get("path") == "text":
                continue  # the name of a file that is not there
            if argument == "schedule" and callable(given[argument]):
                continue  # raised by the caller's own function
            if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG and argument == "path":
                continue
            wrong.append(f"{argument}={kind}: {type(error).__name__}: {error}")
    assert not wrong, "\n".join(wrong)
