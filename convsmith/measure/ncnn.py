"""ncnn, as a net of one convolution on blocked channels, with Winograd's transforms where the library chooses them.

The input of a net can be packed in blocks of channels before the call, and its output can stay in blocks, so that no
call converts them. Winograd's transforms round their results, so results are compared within an error.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from convsmith.diag.errors import UnsupportedError
from convsmith.measure.peer import Array, Peer, plain_f32
from convsmith.problem.conv import Conv
from convsmith.problem.problem import Problem

__all__ = ["ncnn"]

_BLOCKS = (16, 8, 4, 1)
"""Legal numbers of channels in a block; the library takes the largest that divides the channels."""
_MAGIC = 7767517
"""The first line of a net's text."""
_AS_IT_IS = 1
"""The kind of extraction that leaves an output in blocks."""


def ncnn(problem: Problem, arrays: Mapping[str, Array], threads: int) -> Peer:
    """Return a peer that runs a net with one operator. UnsupportedError for more than one image."""
    import ncnn as library

    conv = plain_f32("ncnn", problem)
    if conv.mb != 1:
        raise UnsupportedError("ncnn computes one image", code="batch")
    net = library.Net()
    net.opt.num_threads = threads
    for option in ("use_fp16_storage", "use_fp16_arithmetic", "use_fp16_packed", "use_bf16_storage"):
        setattr(net.opt, option, False)
    weights = np.ascontiguousarray(arrays["wei"], np.float32)
    values = weights.tobytes() + (np.ascontiguousarray(arrays["bia"], np.float32).tobytes() if conv.bias else b"")
    with tempfile.TemporaryDirectory() as directory:
        text, data = Path(directory) / "net.param", Path(directory) / "net.bin"
        text.write_text(_net(conv, weights.size), encoding="ascii")
        data.write_bytes(struct.pack("<I", 0) + values)  # 0: the weights that follow are f32
        if net.load_param(str(text)) or net.load_model(str(data)):
            raise UnsupportedError("ncnn does not load a net of this convolution", code="net")
    block = next(n for n in _BLOCKS if conv.ic % n == 0)
    image = np.ascontiguousarray(arrays["src"][0], np.float32)
    source = library.convert_packing(library.Mat(image).clone(), block)

    def call() -> Any:
        extractor = net.create_extractor()
        extractor.input("x", source)
        status, out = extractor.extract("y", _AS_IT_IS)
        assert status == 0
        return out

    def result() -> Array:
        return np.array(library.convert_packing(call(), 1)).reshape(conv.dst_shape)

    return Peer(call, result)


def _net(conv: Conv, weights: int) -> str:
    """Return the text of a net with one convolution, which has that number of `weights`."""
    (h, w), (kh, kw), (sh, sw), (dh, dw) = conv.i, conv.k, conv.s, conv.d
    (top, left), (bottom, right) = conv.p, (max(pr, 0) for pr in conv.pr)
    options = {
        0: conv.oc, 1: kw, 11: kh, 2: dw + 1, 12: dh + 1, 3: sw, 13: sh, 4: left, 15: right, 14: top, 16: bottom,
        5: int(conv.bias), 6: weights,
    }  # fmt: skip
    kind = "Convolution" if conv.g == 1 else "ConvolutionDepthWise"
    if conv.g > 1:
        options[7] = conv.g
    words = " ".join(f"{key}={value}" for key, value in options.items())
    return f"{_MAGIC}\n2 2\nInput x 0 1 x 0={w} 1={h} 2={conv.ic}\n{kind} y 1 1 x y {words}\n"
