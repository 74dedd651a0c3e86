"""The libraries of npm that kernels of WebAssembly are compared with, and what each gets of a problem.

A library is a table row: the packages that it needs, and the function that writes its part of a plan, which the script
`web_bench.mjs` reads. Files of a plan are in the folder of the problem.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from convsmith.diag.choices import choices
from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.diag.record import record
from convsmith.measure.onnx_peers import onnx_model
from convsmith.measure.peer import Array, plain_f32
from convsmith.problem.problem import Problem

__all__ = ["JS_TYPES", "WEB_PEERS", "Packages", "WebPeer", "plan_of_peer"]

JS_TYPES = {
    **{name: name for name in ("float32", "float64", "int32", "int8", "uint8", "int16", "uint16")},
    "float16": "uint16", "bfloat16": "uint16",
}  # fmt: skip
"""Types of JavaScript's arrays by numpy's names; floating-point numbers of 16 bits are their bits."""


@record(frozen=True)
class WebPeer:
    """A library: its packages, the first of which has its version, and the function that writes its files for a
    problem and returns its part of the plan. UnsupportedError names what the library lacks. A library that ``copies``
    takes and returns arrays of JavaScript: beside it, our time includes both copies, to arrays that all calls share.
    """

    packages: tuple[str, ...]
    plan: Callable[[Problem, Mapping[str, Array], Array, Path], dict[str, Any]]
    copies: bool


def plan_of_peer(
    name: str, problem: Problem, arrays: Mapping[str, Array], result: Array, folder: Path
) -> dict[str, Any]:  # fmt: skip
    """Return the part of a plan for the library `name` on logical arrays; `result` is the result that is right."""
    return WEB_PEERS[name].plan(problem, arrays, result, folder)


def _onnxruntime(problem: Problem, arrays: Mapping[str, Array], result: Array, folder: Path) -> dict[str, Any]:
    model, output = onnx_model(problem, arrays)
    source = arrays["src"]
    type_ = JS_TYPES.get(source.dtype.name)
    if type_ != source.dtype.name:
        raise UnsupportedError(f"onnxruntime-web is given no arrays of {source.dtype.name}", code="types")
    (folder / "onnx.model").write_bytes(model)
    (folder / "onnx.src").write_bytes(np.ascontiguousarray(source).tobytes())
    (folder / "onnx.dst").write_bytes(np.ascontiguousarray(result).tobytes())
    return {
        "model": "onnx.model", "type": type_, "shape": list(source.shape), "src": "onnx.src",
        "output": output, "expected": "onnx.dst",
    }  # fmt: skip


def _tfjs(problem: Problem, arrays: Mapping[str, Array], result: Array, folder: Path) -> dict[str, Any]:
    conv = plain_f32("tfjs", problem)
    if conv.bias:
        raise UnsupportedError("tfjs is compared without bias only", code="bias")
    is_depthwise = conv.g == conv.ic and conv.g > 1 and conv.oc % conv.ic == 0
    if conv.g > 1 and not is_depthwise:
        raise UnsupportedError("tfjs has no groups but those of depthwise convolutions", code="groups")
    if max(conv.d) and max(conv.s) > 1:
        raise UnsupportedError("tfjs has no strides with dilations", code="dilation")
    weights = arrays["wei"].reshape(conv.oc, conv.ic // conv.g, *conv.k)
    if is_depthwise:
        turned = weights.reshape(conv.g, conv.oc // conv.g, *conv.k).transpose(2, 3, 0, 1)
    else:
        turned = weights.transpose(2, 3, 1, 0)
    source = arrays["src"].transpose(0, 2, 3, 1)
    pads = [[front, max(back, 0)] for front, back in zip(conv.p, conv.pr)]
    for name, array in (("src", source), ("wei", turned), ("dst", result.transpose(0, 2, 3, 1))):
        (folder / f"tf.{name}").write_bytes(np.ascontiguousarray(array).tobytes())
    return {
        "src": "tf.src", "shape": list(source.shape), "wei": "tf.wei", "weights": list(turned.shape),
        "stride": list(conv.s), "pads": pads if any(map(any, pads)) else None, "dilations": [d + 1 for d in conv.d],
        "depthwise": is_depthwise, "expected": "tf.dst",
    }  # fmt: skip


WEB_PEERS = {
    "onnxruntime-web": WebPeer(("onnxruntime-web",), _onnxruntime, copies=True),
    "tfjs": WebPeer(("@tensorflow/tfjs-backend-wasm", "@tensorflow/tfjs-core"), _tfjs, copies=False),
}
"""Libraries by name. onnxruntime-web takes and returns arrays of JavaScript; tfjs keeps tensors in its memory, and runs
XNNPACK.
"""


class Packages:
    """The packages that the folder `start`, or a folder above it, has in its `node_modules`.

    UsageError if there is no such folder, or a name is none of `WEB_PEERS`.
    """

    def __init__(self, start: str, names: Iterable[str]) -> None:
        self.start = Path(start).resolve()
        if not self.start.is_dir():
            raise UsageError(f"--npm={start}: there is no such directory", code="bad-file")
        self.names = tuple(names)
        for name in self.names:
            if name not in WEB_PEERS:
                raise UsageError(f"unknown library {name!r}: legal are {choices(name, WEB_PEERS)}", code="bad-library")

    def folder(self, package: str) -> Path | None:
        """Return the folder of a package; None if it is not installed."""
        found = (at / "node_modules" / package for at in (self.start, *self.start.parents))
        return next((at for at in found if (at / "package.json").is_file()), None)

    @property
    def here(self) -> list[str]:
        """The libraries whose packages are installed."""
        return [n for n in self.names if all(self.folder(x) is not None for x in WEB_PEERS[n].packages)]

    @property
    def versions(self) -> dict[str, str | None]:
        """The version of each library; None for one that is not installed."""
        found: dict[str, str | None] = dict.fromkeys(self.names)
        for name in self.here:
            folder = self.folder(WEB_PEERS[name].packages[0])
            assert folder is not None
            found[name] = str(json.loads((folder / "package.json").read_text(encoding="utf-8"))["version"])
        return found

    def advice(self, here: Collection[str]) -> str:
        """Return how to install the libraries that are not `here`, as a sentence; empty if all are."""
        absent = [name for name in self.names if name not in here]
        if not absent:
            return ""
        missing = [x for name in absent for x in WEB_PEERS[name].packages if self.folder(x) is None]
        return (
            f"{' and '.join(absent)} {'are' if len(absent) > 1 else 'is'} not in {self.start}/node_modules: "
            f"npm install --prefix {self.start} {' '.join(missing)} brings {'them' if len(absent) > 1 else 'it'}"
        )
