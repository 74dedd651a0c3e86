"""Libraries that run ONNX models, for the benchmarks of whole models: each runs the same file on the same array.

    peers = functions_of_libraries(content, x, threads=1)
    y = peers["onnxruntime"]()
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

Function = Callable[[], Any]


def threads_of(description: str, arguments: Sequence[str] | None) -> int:
    """Return the number of threads that the ``arguments`` of a script name."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--threads", type=int, default=1, help="threads of all libraries (default: %(default)s)")
    return int(parser.parse_args(arguments).threads)


def functions_of_libraries(content: bytes, x: np.ndarray, threads: int) -> dict[str, Function]:
    """Return functions that compute the one output of the model for ``x``, by the names of the installed libraries."""
    return {name: make(content, x, threads) for name, make in _LIBRARIES.items() if find_spec(name)}


def versions() -> dict[str, str]:
    """Return the versions of the installed libraries."""
    return {name: str(import_module(name).__version__) for name in _LIBRARIES if find_spec(name)}


def _onnxruntime(content: bytes, x: np.ndarray, threads: int) -> Function:
    import onnxruntime as library

    options = library.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = library.InferenceSession(content, options)
    return lambda: session.run(None, {"x": x})[0]


def _openvino(content: bytes, x: np.ndarray, threads: int) -> Function:
    import openvino as library

    core = library.Core()
    options = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(core.read_model(content), "CPU", options).create_infer_request()
    request.set_input_tensor(library.Tensor(x, shared_memory=True))

    def run() -> Any:
        request.infer()
        return request.get_output_tensor().data

    return run


_LIBRARIES: dict[str, Callable[[bytes, np.ndarray, int], Function]] = {
    "onnxruntime": _onnxruntime, "openvino": _openvino,
}  # fmt: skip
