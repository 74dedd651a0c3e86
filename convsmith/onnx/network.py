"""`compile`: an ONNX model as one native function."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from convsmith.diag.choices import choices
from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.diag.expect import shown
from convsmith.diag.forking import import_lock
from convsmith.frontend.numpy_api import thread_count
from convsmith.network.ahead import Compiling, silent
from convsmith.network.compile import program_of
from convsmith.network.driver import image_of
from convsmith.network.graph import Graph
from convsmith.network.network import Network
from convsmith.network.program import NetworkProgram
from convsmith.network.rewrites.small_floats import check_dtype
from convsmith.network.sizes import Dims, NetworkOfSizes
from convsmith.network.weights import PackedWeights
from convsmith.onnx.graph import read_graph
from convsmith.onnx.models import Shapes, open_dims
from convsmith.onnx.sources import model_source
from convsmith.runtime.arrays import Array

if TYPE_CHECKING:
    from convsmith.network.files.export import ExportedNetwork

__all__ = ["compile", "export_for", "network_of"]


@overload
def compile(
    model: str | os.PathLike[str] | bytes | Any, inputs: Shapes | None = None, *, threads: int | None = None,
    batch: int | None = None, dtype: str = "f32",
) -> Network: ...  # fmt: skip


@overload
def compile(
    model: str | os.PathLike[str] | bytes | Any, inputs: Dims | None = None, *, threads: int | None = None,
    batch: int | Sequence[int] | Literal["any"] | None = None, sizes: Literal["fixed", "any"] = "fixed",
    dtype: str = "f32",
) -> Network | NetworkOfSizes: ...  # fmt: skip


def compile(
    model: str | os.PathLike[str] | bytes | Any, inputs: Dims | None = None, *, threads: int | None = None,
    batch: int | Sequence[int] | Literal["any"] | None = None, sizes: Literal["fixed", "any"] = "fixed",
    dtype: str = "f32",
) -> Network | NetworkOfSizes:  # fmt: skip
    """Return the function of the ONNX `model`: a file, the bytes of one, or an `onnx.ModelProto`.

    `inputs` are shapes of inputs by name, for sizes that the model leaves open; an open batch is `batch`, by default 1.
    `threads` defaults to CONVSMITH_THREADS, else to the CPUs of this process.

    With several batches, which are compiled at once, or "any", the result is a function for several sizes, which
    compiles a plan at the first call with a new batch. With `sizes` "any", so it does for all sizes that the model
    leaves open; `inputs` may give some of them, and name others by texts.

    With the `dtype` "bf16", values of f32 inside of the network are stored as bf16, and products multiply bf16; inputs,
    outputs and sums stay f32.

    UsageError if it is no model, or a size is missing; UnsupportedError names the nodes that no kernel computes.
    """
    check_dtype(dtype)
    counts = () if batch is None or batch == "any" else (batch,) if isinstance(batch, int) else tuple(batch)
    if sizes not in ("fixed", "any") or any(type(x) is not int or x < 1 for x in counts) or batch == ():
        words = "legal are a batch of 1 or more, several of them, or 'any', and sizes 'fixed' or 'any'"
        raise UsageError(f"batch={shown(batch)}, sizes={shown(sizes)}; {words}", code="sizes")
    if batch is None and sizes == "fixed":
        return network_of(read_graph(model, inputs), threads, dtype=dtype)  # type: ignore[arg-type]
    source = model_source(model, with_data=True)
    known, is_open = open_dims(source.proto), sizes == "any"
    dims = _dims(known, inputs or {}, source.name, is_open or not isinstance(batch, int), is_open)
    if isinstance(batch, int):
        dims = {x: (batch, *own[1:]) if own and isinstance(own[0], str) else own for x, own in dims.items()}
        if sizes == "fixed":
            return network_of(read_graph(source, dims), threads, dtype=dtype)  # type: ignore[arg-type]
    count = thread_count(threads)

    def made(shapes: Shapes, weights: PackedWeights) -> NetworkProgram:
        return program_of(read_graph(source, shapes), count, weights=weights, dtype=dtype)

    whole = NetworkOfSizes(source.name, dims, made)
    for n in counts if not isinstance(batch, int) else ():
        shapes: Any = {x: (n, *own[1:]) if own and own[0] == BATCH_NAME else own for x, own in dims.items()}
        whole.at(shapes)
    return whole


BATCH_NAME = "batch"
"""The name of the first size of inputs whose batch is open."""


def _dims(known: Dims, given: Dims, name: str, has_batch: bool, is_open: bool) -> dict[str, tuple[int | str, ...]]:
    """Return the sizes of inputs of a model, `known` from the model, or `given`; names of sizes are left only for the
    batch, or for all of them. UsageError about the model `name` if another size is open.
    """
    found: dict[str, tuple[int | str, ...]] = {}
    for x in given:
        if x not in known:
            raise UsageError(f"inputs: {name} has no {x!r}; legal are {choices(x, known)}", code="inputs")
    for x, dims in known.items():
        own = tuple(given.get(x, dims))
        if len(own) != len(dims) or any(isinstance(a, int) and a != b for a, b in zip(dims, own)):
            legal = " x ".join(map(str, dims))
            raise UsageError(f"inputs: the shape of {x} is {own}; legal is {legal}", code="inputs")
        if own and isinstance(own[0], str) and has_batch and not is_open:
            own = (BATCH_NAME, *own[1:])
        left = [d for d in own[1:] if isinstance(d, str)]
        if left and not is_open:
            raise UsageError(
                f"inputs: {name} leaves {left[0]} of {x} open; legal is to give its size in inputs=, or sizes='any'",
                code="inputs",
            )
        found[x] = own
    return found


def export_for(
    graph: Graph, directory: str | os.PathLike[str], name: str, target: str, threads: int | None = None,
    weights: str | None = None,
) -> ExportedNetwork:  # fmt: skip
    """Write a graph to `directory` for the machine that `target` names: as a function of C, or as modules of
    WebAssembly with their `weights` beside or inside them. Several levels with commas between, the best first, become
    one library of x86-64, whose function chooses among them at its first call, or modules that an engine chooses among.

    The example compares its results with those of the kernels of this machine. Where this machine does not run code for
    the target, an emulator packs the weights. UsageError for an unknown target, and for a place of weights where they
    have only one; UnsupportedError if the target is a device, or there is no emulator.
    """
    with import_lock:
        from convsmith.codegen import llvm_bind
        from convsmith.exporter.target import export_machine
        from convsmith.network.files.export import export_program
        from convsmith.network.files.levels import check_levels, export_levels
        from convsmith.network.files.web import WEIGHTS_PLACES, check_web_levels, export_web

    machines = [export_machine(one) for one in target.split(",")]
    if all(m.device is None and llvm_bind.makes_modules(m.triple) for m in machines):
        check_web_levels(machines)
        samples = _samples(graph)
        programs = [program_of(graph, threads or 1, machine) for machine in machines]
        return export_web(programs, directory, name, samples, weights or WEIGHTS_PLACES[0])
    if len(machines) > 1:
        check_levels(machines)
    machine = machines[0]
    if machine.device is not None:
        raise UnsupportedError(f"a network for {machine.name}; available are CPUs and WebAssembly", code="target")
    if weights is not None:
        raise UsageError(
            f"weights {weights}: in a library of C for {machine.name} they are always inside", code="bad-option"
        )
    if len(machines) > 1:
        programs = [program_of(graph, thread_count(threads), one) for one in machines]
        return export_levels(programs, directory, name, _samples(graph))
    samples = _samples(graph)
    program = program_of(graph, thread_count(threads), machine)
    return export_program(program, directory, name, samples)


def _samples(graph: Graph) -> dict[str, Array]:
    """Return the outputs of the kernels of this machine for the inputs of examples."""
    with import_lock:
        from convsmith.network.files.c_texts import sample

    net = network_of(graph, 1)
    return net.run({x.name: sample(x.shape, x.type) for x in net.image.inputs})


def network_of(
    graph: Graph, threads: int | None = None, compiling: Compiling = silent, dtype: str = "f32"
) -> Network:  # fmt: skip
    """Return the function of a graph, compiled for this machine; `compiling` reports its kernels. Values of f32 inside
    of it are of `dtype`.
    """
    program = program_of(graph, thread_count(threads), compiling=compiling, dtype=dtype)
    return Network(image_of(program), program)
