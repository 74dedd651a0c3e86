"""`Networks`: a part of a network as native functions, one for each region that a graph of networks can express.

Each set of source shapes has its own functions. Those for the shapes of the example are compiled with the network,
others at the first call with their sizes.
"""

from __future__ import annotations

import io
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from operator import getitem
from typing import Any, TypeAlias

import torch
from torch import _C, Tensor, fx, nn

from convsmith.diag.errors import ConvsmithError
from convsmith.diag.forking import RenewedLock
from convsmith.diag.record import record
from convsmith.network.network import Network
from convsmith.onnx.network import network_of
from convsmith.torch.devices import CPU
from convsmith.torch.layouts import check_memory
from convsmith.torch.part_forward import torchscript_error
from convsmith.torch.program import ReadProgram
from convsmith.torch.purity import version_of
from convsmith.torch.regions import ProgramDivision, ProgramRegion, division_of
from convsmith.torch.report import OtherSizes
from convsmith.torch.segment import MAX_SIZES, check_source
from convsmith.torch.segment_operator import is_traced
from convsmith.torch.statement import statement_of, statement_of_export
from convsmith.torch.without_writes import WritesToParts

__all__ = ["NetworkRun", "Networks", "Progress", "SizedProgram", "in_words", "read_program", "sized_program"]

_Shape: TypeAlias = tuple[int, ...]

_tracer = _C._get_tracing_state
_making = RenewedLock()
"""Held while functions for further sizes are made."""
_CPU_INDEX = -1
"""Torch's number of the CPU among devices."""


class NetworkRun(nn.Module):
    """The native function of a region: its call returns the tensors of the outputs, which have the types `dtypes`."""

    def __init__(self, network: Network, dtypes: Sequence[torch.dtype]) -> None:
        super().__init__()
        self.network = network
        self._results = [(shape, dtype) for shape, dtype in zip(network.outputs.values(), dtypes)]

    def forward(self, *tensors: Tensor) -> Any:
        """Return the outputs, a tuple if there are several."""
        for x in tensors:
            if not x.data_ptr():
                check_memory((("source", x),))
        results = [torch.empty(shape, dtype=dtype) for shape, dtype in self._results]
        arrays = [*(x.resolve_neg().contiguous() for x in tensors), *results]
        self.network.run_on([x.data_ptr() for x in arrays], arrays)
        return results[0] if len(results) == 1 else tuple(results)

    def extra_repr(self) -> str:
        """Return what the function computes, in short."""
        return repr(self.network)


Progress: TypeAlias = Callable[[str, int], Callable[[], object]]
"""Shows the number of things to do, and returns the function that counts one as done."""


def _silent(verb: str, count: int) -> Callable[[], object]:
    return lambda: None


@record(frozen=True, eq=False)
class SizedProgram:
    """A program for some sizes: its `graph`, in which the functions of its regions are modules of class `NetworkRun`,
    and the functions, `runs`.

    The graph returns a tuple unless its result `is_single`; PyTorch computes the operators whose names are `kept`,
    and others for the reasons `why`.
    """

    program: ReadProgram
    graph: fx.GraphModule
    runs: tuple[NetworkRun, ...]
    is_single: bool
    kept: tuple[str, ...]
    why: dict[fx.Node, str]


def read_program(part: nn.Module, inputs: Sequence[Tensor]) -> ReadProgram | str:
    """Return the program of a module for sizes and types of `inputs`, or the reason why it has none."""
    name = type(part).__name__
    try:
        try:
            return ReadProgram(statement_of(part, inputs, name))
        except WritesToParts:
            with _quiet():
                return ReadProgram(statement_of_export(torch.export.export(part, _apart(inputs), strict=False), name))
    except Exception as error:  # the module's own code, and torch.export, raise any error
        return in_words(error)


def _apart(inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return inputs without one that is given twice, which `torch.export` takes for one input of the program."""
    return tuple([x.clone() if any(x is y for y in inputs[:n]) else x for n, x in enumerate(inputs)])


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence what torch logs about modules that it cannot export, and a warning about a class of its own."""
    log = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    before = log.disabled
    try:
        log.disabled = True
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()), torch.no_grad():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        log.disabled = before


def sized_program(
    program: ReadProgram, threads: int, is_single: bool, kept: Sequence[str] = (), progress: Progress = _silent
) -> SizedProgram | str:
    """Return a program with functions of its regions, or the reason why it has none.

    Operators whose names are `kept` stay PyTorch's. The graph returns a tuple unless its result `is_single`. `progress`
    takes a verb and the number of functions, and returns what is called after each of them.
    """
    try:
        division = division_of(program, kept)
        done = progress("compile", len(division.regions))
        runs = dict[int, NetworkRun]()
        for number, region in division.regions.items():
            runs[number] = _run(program, region, threads)
            done()
    except ConvsmithError as error:
        return in_words(error)
    if not runs:
        return "no part of it is a graph of networks"
    graph = _graph(program, division, runs, is_single)
    return SizedProgram(program, graph, tuple(runs.values()), is_single, tuple(kept), division.why)


def _run(program: ReadProgram, region: ProgramRegion, threads: int) -> NetworkRun:
    """Return the function of a region."""
    network = network_of(program.part(region.nodes, region.inputs, region.outputs), threads)
    return NetworkRun(network, [node.meta["val"].dtype for node in region.outputs])


def _graph(
    program: ReadProgram, division: ProgramDivision, runs: Mapping[int, NetworkRun], is_single: bool
) -> fx.GraphModule:
    """Return a program as a graph that calls the functions of its regions, and PyTorch's operators in between; it
    returns a tuple unless it has a single result.
    """
    graph, root, made = fx.Graph(), nn.Module(), dict[fx.Node, fx.Node]()

    def value(x: fx.Node) -> fx.Node:
        if x not in made:
            root.register_buffer(x.name, program.tensors[x.name])
            made[x] = graph.get_attr(x.name)
        return made[x]

    for node in program.inputs:
        made[node] = graph.placeholder(node.name)
    for number in sorted({*division.regions, *division.others}):
        if number in runs:
            root.add_module(f"network_{number}", runs[number])
            region = division.regions[number]
            call = graph.call_module(f"network_{number}", tuple(value(x) for x in region.inputs))
            for n, node in enumerate(region.outputs):
                made[node] = call if len(region.outputs) == 1 else graph.call_function(getitem, (call, n))
        for node in division.others.get(number, ()):
            made[node] = graph.node_copy(node, value)
    results = fx.map_arg(program.outputs, value)
    graph.output(results[0] if is_single else results)
    return fx.GraphModule(root, graph, class_name=program.name)


class Networks(nn.Module):
    """The module `part` by native functions, for the sizes of `inputs` and of later calls.

    `other` computes calls that PyTorch's compilers trace, and sizes without functions. Functions for further sizes, and
    the number of their `layers`, are recorded in `others`.
    """

    _versions: list[int]

    def __init__(
        self, part: nn.Module, other: nn.Module, sized: SizedProgram, inputs: Sequence[Tensor], threads: int,
        others: list[OtherSizes], layers: int,
    ) -> None:  # fmt: skip
        super().__init__()
        self._threads, self._others, self._layers = threads, others, layers
        self._is_single, self._kept = sized.is_single, sized.kept
        self._modules_of_calls = (part, other)  # no modules of this one: they may contain the module that calls it
        self._forms = tuple([(x.shape, x.dtype) for x in inputs])
        self._dtype = sized.program.dtype
        self._prepare()
        self._by_sizes[self._forms] = sized.graph
        self._versions = self._writes()

    def _prepare(self) -> None:
        """Start without functions, and without the numbers of writes to parameters before the first were made."""
        self._versions = []
        self._by_sizes: dict[tuple[tuple[_Shape, torch.dtype], ...], fx.GraphModule | None] = {}

    @property
    def dtype(self) -> torch.dtype:
        """The coarsest type of the floats that are computed."""
        return self._dtype

    @property
    def graphs(self) -> list[fx.GraphModule]:
        """The graphs for all sizes that have functions, in the order of the first calls."""
        return [graph for graph in self._by_sizes.values() if graph is not None]

    def forward(self, *tensors: Tensor) -> Any:
        """Return the results of the graph."""
        for x, (_, dtype) in zip(tensors, self._forms):
            is_elsewhere = x.get_device() != _CPU_INDEX or x.is_meta
            if is_elsewhere or x.requires_grad or (x.dtype is not dtype and dtype.is_floating_point):
                check_source(x, dtype, CPU)
        if _tracer() is not None:
            raise torchscript_error("torch.jit.trace")
        if is_traced():
            return self.other.forward(*tensors)
        try:
            graph = self._by_sizes[tuple([(x.shape, x.dtype) for x in tensors])]
        except KeyError:
            graph = self._further(tensors)
        return (self.other if graph is None else graph).forward(*tensors)

    def _further(self, tensors: Sequence[Tensor]) -> fx.GraphModule | None:
        """Return the graph for other sizes, compiled now and recorded; None if there is none."""
        key = tuple([(x.shape, x.dtype) for x in tensors])
        with _making.lock:
            if key in self._by_sizes:
                return self._by_sizes[key]
            start, graph = time.perf_counter(), None
            if not self._by_sizes:
                self._versions = self._writes()
            if self._writes() == self._versions:
                program = read_program(self.part, tensors)
                if isinstance(program, ReadProgram):
                    sized = sized_program(program, self._threads, self._is_single, self._kept)
                    graph = sized.graph if isinstance(sized, SizedProgram) else None
            if graph is not None and key != self._forms:
                shapes = tuple([tuple(shape) for shape, _ in key])
                self._others.append(OtherSizes(shapes, self._layers, time.perf_counter() - start))
            if len(self._by_sizes) > MAX_SIZES:
                del self._by_sizes[next(known for known in self._by_sizes if known != self._forms)]
            self._by_sizes[key] = graph
            return graph

    @property
    def part(self) -> nn.Module:
        """The module whose results functions compute."""
        return self._modules_of_calls[0]

    @property
    def other(self) -> nn.Module:
        """The module that computes calls without functions."""
        return self._modules_of_calls[1]

    def _writes(self) -> list[int]:
        """Return the numbers of writes to the parameters and buffers of the part."""
        return [version_of(x) for x in (*self.part.parameters(), *self.part.buffers())]

    def __getstate__(self) -> dict[str, Any]:
        # Memory and code belong to this process and are created anew.
        return {name: value for name, value in self.__dict__.items() if name not in ("_by_sizes", "_versions")}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()


def in_words(error: Exception) -> str:
    """Return the first line of an error, preceded by its class if the class is not convsmith's."""
    line = str(error).partition("\n")[0]
    return line if isinstance(error, ConvsmithError) else f"{type(error).__name__}: {line}"
