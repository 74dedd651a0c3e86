"""The libraries that kernels are compared with, and how each is called.

Every library has a file of its own, and uses as many threads as the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import metadata, util

from convsmith.diag.choices import choices
from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.diag.record import record
from convsmith.measure.ncnn import ncnn
from convsmith.measure.onednn import onednn
from convsmith.measure.onednn_library import PACKAGE
from convsmith.measure.onnx_peers import nchwc, onnxruntime
from convsmith.measure.openvino import openvino
from convsmith.measure.peer import Array, Peer
from convsmith.measure.torch_peer import torch_peer
from convsmith.measure.xnnpack import xnnpack
from convsmith.problem.chain import Chain
from convsmith.problem.conv import Conv
from convsmith.problem.problem import Problem

__all__ = ["PEERS", "TRANSFORMED", "installed", "make_peer"]

TRANSFORMED = 1e-5
"""Largest error of results of Winograd's transforms on integers, relative to the greatest result."""


@record(frozen=True)
class Library:
    """A library: its peer function, its package, the modules it needs, and whether it computes deconvolutions, and
    chains.

    Results on integers are exact, or, if the library uses transforms, differ by at most ``error`` of the greatest
    result.
    """

    peer: Callable[[Problem, Mapping[str, Array], int], Peer]
    package: str
    modules: tuple[str, ...]
    deconvolutions: bool = False
    chains: bool = False
    error: float = 0.0

    @property
    def version(self) -> str | None:
        """Version of the package; None if it is not installed."""
        try:
            return metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return None


def installed(name: str) -> bool:
    """Return whether the library `name` is installed. UsageError if `PEERS` has no such name."""
    if name not in PEERS:
        raise UsageError(f"unknown library {name!r}: legal are {choices(name, PEERS)}", code="bad-library")
    library = PEERS[name]
    return library.version is not None and all(util.find_spec(module) is not None for module in library.modules)


def make_peer(name: str, problem: Problem, arrays: Mapping[str, Array], threads: int) -> Peer:
    """Return the library's computation of `problem` on copies of the logical arrays, ready to be timed.

    UnsupportedError names the feature that the library lacks.
    """
    if isinstance(problem, Chain) and not PEERS[name].chains:
        able = ", ".join(n for n, library in PEERS.items() if library.chains)
        raise UnsupportedError(f"{name} is not called for chains; available: {able}", code="chain")
    if isinstance(problem, Conv) and problem.deconv and not PEERS[name].deconvolutions:
        able = ", ".join(n for n, library in PEERS.items() if library.deconvolutions)
        raise UnsupportedError(f"{name} is not called for deconvolutions; available: {able}", code="deconv")
    return PEERS[name].peer(problem, arrays, threads)


PEERS: dict[str, Library] = {
    "torch": Library(torch_peer, "torch", ("torch",), deconvolutions=True, chains=True),
    "onnxruntime": Library(onnxruntime, "onnxruntime", ("onnxruntime", "onnx"), chains=True),
    "onnxruntime-nchwc": Library(nchwc, "onnxruntime", ("onnxruntime", "onnx")),
    "openvino": Library(openvino, "openvino", ("openvino",), chains=True),
    "ncnn": Library(ncnn, "ncnn", ("ncnn",), error=TRANSFORMED),
    "onednn": Library(onednn, PACKAGE, (), deconvolutions=True, chains=True),
    "xnnpack": Library(xnnpack, "ai-edge-litert", ("ai_edge_litert", "flatbuffers"), chains=True),
}
