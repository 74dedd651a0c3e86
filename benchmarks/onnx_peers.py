"""Libraries that run ONNX models, for the benchmarks of whole models: each runs the same file on the same arrays.

    peers = functions_of_libraries(content, {"x": x}, threads=1)
    (y,) = peers["onnxruntime"]()
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

Content = bytes | Path
"""A model: what a file holds, or the file, beside which further files may hold weights."""
Function = Callable[[], Sequence[Any]]


def threads_of(description: str, arguments: Sequence[str] | None) -> int:
    """Return the number of threads that the ``arguments`` of a script name."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--threads", type=int, default=1, help="threads of all libraries (default: %(default)s)")
    return int(parser.parse_args(arguments).threads)


def functions_of_libraries(content: Content, inputs: Mapping[str, np.ndarray], threads: int) -> dict[str, Function]:
    """Return functions that compute the outputs of a model, by the names of the installed libraries."""
    return {name: make(content, inputs, threads) for name, make in LIBRARIES.items() if find_spec(name)}


def versions() -> dict[str, str]:
    """Return the versions of the installed libraries."""
    return {name: str(import_module(name).__version__) for name in LIBRARIES if find_spec(name)}


def _onnxruntime(content: Content, inputs: Mapping[str, np.ndarray], threads: int) -> Function:
    import onnxruntime as library

    options = library.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = library.InferenceSession(content, options)
    return lambda: list(session.run(None, dict(inputs)))


def _openvino(content: Content, inputs: Mapping[str, np.ndarray], threads: int) -> Function:
    import openvino as library

    core = library.Core()
    options = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(core.read_model(content), "CPU", options)
    request = compiled.create_infer_request()
    for name, x in inputs.items():
        request.set_tensor(name, library.Tensor(x, shared_memory=True))

    def run() -> Sequence[Any]:
        request.infer()
        return [request.get_tensor(port).data for port in compiled.outputs]

    return run


LIBRARIES: dict[str, Callable[[Content, Mapping[str, np.ndarray], int], Function]] = {
    "onnxruntime": _onnxruntime, "openvino": _openvino,
}  # fmt: skip
"""Functions that make a function of a model, its inputs and a number of threads, by library."""
