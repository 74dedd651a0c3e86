"""`compile`: an ONNX model as one native function."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.diag.forking import import_lock
from convsmith.frontend.numpy_api import thread_count
from convsmith.network.compile import program_of
from convsmith.network.driver import image_of
from convsmith.network.graph import Graph
from convsmith.network.network import Network
from convsmith.onnx.graph import read_graph
from convsmith.onnx.models import Shapes

if TYPE_CHECKING:
    from convsmith.network.export import ExportedNetwork

__all__ = ["compile", "export_for", "network_of"]


def compile(
    model: str | os.PathLike[str] | bytes | Any, inputs: Shapes | None = None, *, threads: int | None = None
) -> Network:
    """Return the function of the ONNX `model`: a file, the bytes of one, or an `onnx.ModelProto`.

    `inputs` are shapes of inputs by name, for sizes that the model leaves open; an open batch is 1. `threads` defaults
    to CONVSMITH_THREADS, else to the CPUs of this process. UsageError if it is no model, or a size is missing;
    UnsupportedError names the nodes that no kernel computes.
    """
    return network_of(read_graph(model, inputs), threads)


def export_for(
    graph: Graph, directory: str | os.PathLike[str], name: str, target: str, threads: int | None = None,
    weights: str | None = None,
) -> ExportedNetwork:  # fmt: skip
    """Write a graph to `directory` for the machine that `target` names: as a function of C, or as modules of
    WebAssembly with their `weights` beside or inside them. Several levels of x86-64 with commas between, the best
    first, become one library, whose function chooses among them at its first call.

    The example compares its results with those of the kernels of this machine. Where this machine does not run code for
    the target, an emulator packs the weights. UsageError for an unknown target, and for a place of weights where they
    have only one; UnsupportedError if the target is a device, or there is no emulator.
    """
    with import_lock:
        from convsmith.codegen import llvm_bind
        from convsmith.exporter.target import export_machine
        from convsmith.network.c_texts import sample
        from convsmith.network.export import export_program
        from convsmith.network.levels import check_levels, export_levels
        from convsmith.network.web import WEIGHTS_PLACES, export_web

    if "," in target and weights is None:
        machines = [export_machine(one) for one in target.split(",")]
        check_levels(machines)
        samples = network_of(graph, 1).run({x.name: sample(x.shape, x.type) for x in graph.inputs})
        programs = [program_of(graph, thread_count(threads), one) for one in machines]
        return export_levels(programs, directory, name, samples)
    machine = export_machine(target)
    if machine.device is not None:
        raise UnsupportedError(f"a network for {machine.name}; available are CPUs and WebAssembly", code="target")
    makes_modules = llvm_bind.makes_modules(machine.triple)
    if weights is not None and not makes_modules:
        raise UsageError(
            f"weights {weights}: in a library of C for {machine.name} they are always inside", code="bad-option"
        )
    samples = network_of(graph, 1).run({x.name: sample(x.shape, x.type) for x in graph.inputs})
    if makes_modules:
        program = program_of(graph, threads or 1, machine)
        return export_web(program, directory, name, samples, weights or WEIGHTS_PLACES[0])
    program = program_of(graph, thread_count(threads), machine)
    return export_program(program, directory, name, samples)


def network_of(graph: Graph, threads: int | None = None) -> Network:
    """Return the function of a graph, compiled for this machine."""
    program = program_of(graph, thread_count(threads))
    return Network(image_of(program), program)
