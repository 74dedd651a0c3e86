"""From a graph to a program: layouts, memory, kernels, and packed weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from convsmith.codegen.artifact import Artifact
from convsmith.codegen.memory import KernelMemory
from convsmith.compiler.operator import operator_artifact
from convsmith.diag.errors import ConvsmithError
from convsmith.diag.forking import import_lock
from convsmith.diag.settings import settings
from convsmith.exporter.constants import stored
from convsmith.exporter.interface import WORKSPACE as WORKSPACE_PARAMETER
from convsmith.exporter.interface import Parameter, interface_of
from convsmith.exporter.kernel import for_any_operands
from convsmith.frontend.kernel import CompiledKernel
from convsmith.frontend.side_by_side import MachineFor
from convsmith.machine import registry
from convsmith.machine.base import Machine
from convsmith.network.ahead import Compiling, compiling_ahead, silent
from convsmith.network.graph import Graph, NetworkNode, Work, result_of
from convsmith.network.placement.concat_in_place import with_parts
from convsmith.network.placement.layout_choice import chosen_layouts, operator_cycles
from convsmith.network.placement.layouts import with_layouts
from convsmith.network.placement.memory import Life, alive_bytes, memory_plan
from convsmith.network.placement.placing import Placed, placed
from convsmith.network.placement.scratch import bounded, with_bounded_scratch
from convsmith.network.placement.slices_in_place import with_slices
from convsmith.network.program import (
    TENSORS,
    WEIGHTS,
    WORKSPACE,
    MemoryPlace,
    NetworkProgram,
    ProgramKernel,
    ProgramStep,
)
from convsmith.network.rewrites.apart import reasons_apart
from convsmith.network.rewrites.attention import with_attention
from convsmith.network.rewrites.attention_cost import attention_choice
from convsmith.network.rewrites.chaining import RowJoints, with_chains
from convsmith.network.rewrites.composed_products import with_composed_products
from convsmith.network.rewrites.fold import folded
from convsmith.network.rewrites.rearrangements import with_rearrangements
from convsmith.network.rewrites.repeated_pixels import with_deconvolutions
from convsmith.network.rewrites.resized_products import with_resized_products
from convsmith.network.rewrites.shared_norms import with_shared_norms
from convsmith.network.rewrites.shared_operands import with_shared_operands
from convsmith.network.rewrites.small_floats import with_small_floats
from convsmith.network.weight_limits import KernelMachines
from convsmith.network.weights import PackedWeights
from convsmith.problem.problem import Problem
from convsmith.runtime.all_cpus import on_all_cpus
from convsmith.runtime.arrays import Array, ArraySpec, numpy_dtype
from convsmith.runtime.denormals import with_denormals
from convsmith.runtime.packed import Packed
from convsmith.statement.operator import Operator
from convsmith.tune.kept_defaults import kept_default
from convsmith.tune.stage_configs import StageConfigs

__all__ = ["program_of"]

T = TypeVar("T")

_TYPES = ("f32", "f32", "f32")
"""Types of products for whose level operators are compiled."""


def program_of(
    graph: Graph, threads: int = 1, machine: Machine | None = None, weights: PackedWeights | None = None,
    compiling: Compiling = silent, dtype: str = "f32",
) -> NetworkProgram:  # fmt: skip
    """Return the program of `graph` for `machine`, by default this one, whose kernels use `threads`. Works that are
    equal share a kernel. Packed weights follow those in the area `weights`, by default one of its own. `compiling`
    reports the kernels that the cache lacks. Values of f32 inside of the network are stored in `dtype`.
    """
    target = machine or registry.target(settings.target, _TYPES)
    cold = target.with_cold_weights
    pays = attention_choice(machine, cold, threads, dtype)
    plain = with_composed_products(with_resized_products(folded(graph), cold, threads), cold, threads)
    plain = with_deconvolutions(plain, cold, threads)
    attending = with_attention(plain, cold.l2.bytes // 2, cold.lanes(32), pays)
    whole = with_small_floats(with_shared_operands(attending), dtype)
    whole = with_rearrangements(whole, partial(operator_cycles, machine=cold))
    split, layouts, parts = with_slices(*with_parts(whole, chosen_layouts(whole, cold, threads)))
    held = {*parts, *(part.whole for part in parts.values())}
    laid = with_shared_norms(with_layouts(split, layouts), cold, threads)
    joints_of = RowJoints(StageConfigs(cold, kept_default), threads)
    machine_for = KernelMachines(machine, laid.constants)
    likely = placed(laid, parts).nodes  # those of the program, but for convolutions that become chains
    machine_for.examine(likely)
    works = [node.work for node in likely]
    with compiling_ahead(works, threads, machine_for, target, compiling) as finish:
        joined = with_chains(laid, held, joints_of)
        apart = reasons_apart(laid, joined, parts, joints_of)
        where = placed(joined, parts)
        machine_for.examine(where.nodes)
        finish(node.work for node in where.nodes)
    return _Builder(joined, where, apart, target, threads, machine_for, machine, weights).program()


class _Builder:
    """Makes the program of a graph whose values are placed."""

    def __init__(
        self, graph: Graph, where: Placed, apart: Mapping[str, str], target: Machine, threads: int,
        machine_for: MachineFor, machine: Machine | None = None, weights: PackedWeights | None = None,
    ) -> None:  # fmt: skip
        self._graph, self._where, self._target, self._threads = graph, where, target, threads
        self._apart, self._machine, self._machine_for = apart, machine, machine_for
        self._known: dict[Problem, CompiledKernel] = {}
        self._operators: dict[Operator, Artifact] = {}
        self._kernels: dict[Any, int] = {}
        self._made: list[ProgramKernel] = []
        self._compiled: list[CompiledKernel | None] = []
        self._weights = weights or PackedWeights()
        outside = [*(x.name for x in graph.inputs), *graph.outputs]
        self._areas = {name: n for n, name in enumerate(outside, TENSORS)}
        self._nodes = where.nodes

    def program(self) -> NetworkProgram:
        """Return the program."""
        calls: list[tuple[NetworkNode, int, dict[str, MemoryPlace], str]] = []
        nodes = self._nodes = self._bounded_nodes()
        found = [self._tried(node, partial(self._kernel, node)) for node in nodes]
        packed: list[Mapping[str, Array]] = [{} for _ in nodes]

        def pack(n: int) -> None:
            packed[n] = self._tried(nodes[n], partial(self._contents, *found[n]))

        if self._machine is None:
            on_all_cpus(pack, range(len(nodes)))
        else:  # an emulator may run the functions that pack
            for n in range(len(nodes)):
                pack(n)
        for node, (number, _), constants in zip(nodes, found, packed):
            interface = self._made[number].interface
            own = {name: MemoryPlace(WEIGHTS, self._weights.stored(content)) for name, content in constants.items()}
            for packing in interface.packings:
                if f"packed_{packing.operand}" not in own:
                    calls.append((node, number, {}, packing.operand))
            calls.append((node, number, own, ""))
        return self._placed(calls, self._where.lives)

    def _tried(self, node: NetworkNode, function: Callable[[], T]) -> T:
        """Return the result of a function about a node, which its errors name."""
        try:
            return function()
        except ConvsmithError as error:
            raise error.located(f"{self._graph.name}: node {node.name}") from None

    # -- kernels
    def _bounded_nodes(self) -> tuple[NetworkNode, ...]:
        """Return the nodes, whose kernels need less scratch memory where that makes the network's memory smaller."""
        memories: dict[Work, KernelMemory] = {}
        for node in self._where.nodes:
            if node.work not in memories:
                memories[node.work] = KernelMemory.of(self._tried(node, partial(self._artifact, node.work)))

        def bound(problem: Problem, memory: KernelMemory, saved: int) -> Problem | None:
            other = bounded(problem, memory, saved, self._machine_for(problem), self._threads)
            if other is not None:
                memories[other] = KernelMemory.of(self._artifact(other))
            return other

        return with_bounded_scratch(self._where.nodes, self._where.lives.values(), memories.__getitem__, bound)

    def _artifact(self, work: Work) -> Artifact:
        """Return the artifact of an operator, or of the default kernel of a problem."""
        if isinstance(work, Operator):
            if work not in self._operators:
                self._operators[work] = operator_artifact(work, self._target, self._threads)
            return self._operators[work]
        if work not in self._known:
            self._known[work] = CompiledKernel(work, self._machine_for(work), threads=self._threads)
        artifact = self._known[work].artifact
        assert artifact is not None
        return artifact

    def _kernel(self, node: NetworkNode) -> tuple[int, Mapping[str, Array]]:
        """Return the number of the kernel of a node, and the node's constants."""
        arrays = self._constants(node)
        if isinstance(node.work, Operator):
            number = self._numbered(node.work, None)
        else:
            number = self._numbered(node.work, for_any_operands(self._known[node.work], arrays))
        return number, arrays

    def _contents(self, number: int, arrays: Mapping[str, Array]) -> Mapping[str, Array]:
        """Return the memory of constants of a kernel by its parameters."""
        own, made = self._compiled[number], self._made[number]
        plain = {p.name: p for p in made.interface.parameters}
        contents: dict[str, Array] = {}
        left = dict(arrays)
        if own is not None and "packed_wei" in plain and "wei" in arrays:
            weights, bias = left.pop("wei"), left.pop("bia", None)
            packed = own.host.pack(weights, bias)
            contents["packed_wei"] = packed.buffer
            if packed.bias is not None:
                contents["bia"] = packed.bias
        if own is not None:
            of_stages = [name for name in own.host.packable if name in left and f"packed_{name}" in plain]
            for name, x in own.host.pack_each({name: left.pop(name) for name in of_stages}).items():
                contents[f"packed_{name}"] = x.buffer if isinstance(x, Packed) else x
        for name, x in left.items():
            tensor = plain[name].tensor
            assert tensor is not None
            contents[name] = stored(ArraySpec(tensor), x)
        return contents

    def _numbered(self, work: Work, kernel: CompiledKernel | None) -> int:
        """Return the number of a kernel, which is added if it is new."""
        key = (work, None if kernel is None else (kernel.problem, str(kernel.config)))
        if key not in self._kernels:
            if kernel is None:
                assert isinstance(work, Operator)
                artifact, machine = self._artifact(work), self._target
            else:
                assert kernel.artifact is not None
                artifact, machine = kernel.artifact, kernel.target
            self._kernels[key] = number = len(self._made)
            interface = interface_of(f"k{number}", artifact, [t.name for t in work.tensors])
            self._made.append(ProgramKernel(work, artifact, interface, machine))
            self._compiled.append(self._callable(kernel))
        return self._kernels[key]

    def _callable(self, kernel: CompiledKernel | None) -> CompiledKernel | None:
        """Return a kernel that packs operands here: in an emulator if this machine does not run it. Where the emulator
        lacks features, it is the kernel of an alternative, whose packed operands are the same.
        """
        if kernel is None or self._machine is None:
            return kernel
        with import_lock:
            from convsmith.emulate.emulators import emulated, is_native

        return kernel if is_native(self._machine) else kernel.on(emulated(kernel.target)).emulated()

    def _constants(self, node: NetworkNode) -> dict[str, Array]:
        """Return the constants among the arguments of a node, in the shapes that its work gives them."""
        found = {}
        tensors = {t.name: t for t in node.work.tensors}
        for array, name in node.arguments.items():
            if name in self._graph.constants:
                t = tensors[array]
                held = np.ascontiguousarray(self._graph.constants[name], numpy_dtype(t.dtype)).reshape(t.shape)
                found[array] = with_denormals("flush", array, held) if t.holds == "wei" else held
        return found

    # -- memory
    def _placed(
        self, calls: Sequence[tuple[NetworkNode, int, dict[str, MemoryPlace], str]], lives: Mapping[str, Life]
    ) -> NetworkProgram:
        """Return the program of `calls`, after values, packed operands and workspaces of kernels have offsets."""
        first = {id(node): n for n, (node, *_) in reversed([*enumerate(calls)])}
        last = {id(node): n for n, (node, *_) in enumerate(calls)}
        nodes = self._nodes
        moved = {
            home: Life(x.nbytes, first[id(nodes[x.first])], last[id(nodes[x.last])]) for home, x in lives.items()
        }
        for n, (node, number, _, operand) in enumerate(calls):
            for p in self._parameters(number, operand):
                if p.name == WORKSPACE_PARAMETER:
                    moved[f"workspace of step {n}"] = Life(p.nbytes, n, n)
                elif p.of and operand:
                    moved[f"{p.name} of {node.output}"] = Life(p.nbytes, n, last[id(node)])
        plan, alive = memory_plan(moved), alive_bytes(moved.values(), len(calls))
        steps = [
            ProgramStep(
                number, operand,
                tuple(self._place(n, node, p, own, plan.offsets) for p in self._parameters(number, operand)),
                node.names, alive[n], "" if operand else self._apart.get(node.output, ""),
            )
            for n, (node, number, own, operand) in enumerate(calls)
        ]  # fmt: skip
        outputs = tuple(self._graph.values[name] for name in self._graph.outputs)
        return NetworkProgram(
            self._graph.name, tuple(self._made), tuple(steps), self._graph.inputs, outputs,
            self._weights.array(), plan.nbytes, plan.bound, self._target, self._threads,
        )  # fmt: skip

    def _parameters(self, number: int, operand: str) -> tuple[Parameter, ...]:
        """Return the parameters of a kernel, or of the function that packs an operand."""
        return self._made[number].interface.function(operand).parameters

    def _place(
        self, n: int, node: NetworkNode, p: Parameter, own: Mapping[str, MemoryPlace], offsets: Mapping[str, int]
    ) -> MemoryPlace:
        """Return the place behind a parameter of step `n`."""
        if p.name in own:
            return own[p.name]
        if p.name == WORKSPACE_PARAMETER:
            return MemoryPlace(WORKSPACE, offsets[f"workspace of step {n}"])
        if p.of:
            return MemoryPlace(WORKSPACE, offsets[f"{p.name} of {node.output}"])
        is_result = p.name == result_of(node.work).name
        home, start = self._where.homes[node.output if is_result else node.arguments[p.name]]
        if home in offsets:
            return MemoryPlace(WORKSPACE, offsets[home] + start)
        return MemoryPlace(self._areas[home], start)
