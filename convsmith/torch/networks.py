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
from torch._subclasses.fake_tensor import FakeTensor

from convsmith.diag.errors import ConvsmithError
from convsmith.diag.forking import RenewedLock
from convsmith.diag.record import record
from convsmith.diag.warning import warn
from convsmith.network.network import Network
from convsmith.onnx.network import network_of
from convsmith.problem.problem import Problem
from convsmith.torch import devices
from convsmith.torch.autocast import casting
from convsmith.torch.devices import CPU
from convsmith.torch.gpu_network import GpuNetwork, NoKernelsError
from convsmith.torch.layouts import check_memory
from convsmith.torch.network_operator import is_traced, named, seen
from convsmith.torch.part_forward import torchscript_error
from convsmith.torch.program import ReadProgram
from convsmith.torch.purity import version_of
from convsmith.torch.regions import ProgramDivision, division_of
from convsmith.torch.report import OtherSizes
from convsmith.torch.sources import OtherSizesWarning, check_source
from convsmith.torch.statement import statement_of, statement_of_export
from convsmith.torch.without_writes import WritesToParts

__all__ = ["GpuRun", "NetworkRun", "Networks", "Progress", "SizedProgram", "in_words", "read_program", "sized_program"]

_Shape: TypeAlias = tuple[int, ...]

_tracer = _C._get_tracing_state
_making = RenewedLock()
"""Held while functions for further sizes are made."""
MAX_SIZES = 8
"""Sets of source shapes for which a part keeps functions, besides the example's."""
_CPU_INDEX = -1
"""Torch's number of the CPU among devices."""


class NetworkRun(nn.Module):
    """The native function of a region: its call returns the tensors of the outputs, which have the types `dtypes`."""

    def __init__(self, network: Network, dtypes: Sequence[torch.dtype]) -> None:
        super().__init__()
        self.network = network
        self._results = [(shape, dtype) for shape, dtype in zip(network.outputs.values(), dtypes)]

    @property
    def steps(self) -> list[str]:
        """The lines of what the steps compute."""
        return [step.work for step in self.network.image.steps]

    def problems(self) -> list[tuple[Problem, tuple[str, ...]]]:
        """Return the products in order, each with the names of the nodes of the program that it computes."""
        return self.network.problems()

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


class GpuRun(nn.Module):
    """The kernels of a region on a GPU: a call launches them, and returns the tensors of the outputs."""

    def __init__(self, network: GpuNetwork, dtypes: Sequence[torch.dtype]) -> None:
        super().__init__()
        self.network, self._dtypes = network, tuple(dtypes)

    @property
    def steps(self) -> list[str]:
        """The lines of what the kernels compute."""
        return self.network.steps

    def problems(self) -> list[tuple[Problem, tuple[str, ...]]]:
        """Return the products in order, each with the names of the nodes of the program that it computes."""
        return self.network.problems()

    def forward(self, *tensors: Tensor) -> Any:
        """Return the outputs, a tuple if there are several."""
        results = self.network(tensors, self._dtypes)
        return results[0] if len(results) == 1 else tuple(results)


Progress: TypeAlias = Callable[[str, int], Callable[[], object]]
"""Shows the number of things to do, and returns the function that counts one as done."""


def _silent(verb: str, count: int) -> Callable[[], object]:
    return lambda: None


@record(frozen=True, eq=False)
class SizedProgram:
    """A program for some sizes: its `graph`, in which the functions of its regions are modules of class `NetworkRun`,
    and the functions, `runs`.

    PyTorch computes the operators whose names are `kept`, and others for the reasons `why`.
    """

    program: ReadProgram
    graph: fx.GraphModule
    runs: tuple[NetworkRun | GpuRun, ...]
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
    program: ReadProgram, threads: int, kept: Sequence[str] = (), progress: Progress = _silent,
    device: torch.device = CPU,
) -> SizedProgram | str:  # fmt: skip
    """Return a program with functions of its regions, or the reason why it has none.

    Operators whose names are `kept`, and nodes for which `device` has no kernels, stay PyTorch's. `progress` takes a
    verb and the number of functions, and returns what is called after each of them.
    """
    without = dict[str, str]()
    while True:
        division = division_of(program, kept, without)
        try:
            runs = _runs(program, division, threads, progress, device)
        except NoKernelsError as error:
            before = len(without)
            without |= error.why
            if len(without) == before:
                return in_words(error)
        except ConvsmithError as error:
            return in_words(error)
        else:
            break
    if not runs:
        return next(iter(without.values()), "no part of it is a graph of networks")
    return SizedProgram(program, _graph(program, division, runs), tuple(runs.values()), tuple(kept), division.why)


def _runs(
    program: ReadProgram, division: ProgramDivision, threads: int, progress: Progress, device: torch.device
) -> dict[int, NetworkRun | GpuRun]:
    """Return the functions of the regions, by number. NoKernelsError names nodes that `device` has no kernels for."""
    done, runs = progress("compile", len(division.regions)), dict[int, NetworkRun | GpuRun]()
    for number, region in division.regions.items():
        graph = program.part(region.nodes, region.inputs, region.outputs)
        dtypes = [node.meta["val"].dtype for node in region.outputs]
        if devices.is_gpu(device):
            runs[number] = GpuRun(GpuNetwork(graph, threads, device), dtypes)
        else:
            runs[number] = NetworkRun(network_of(graph, threads), dtypes)
        done()
    return runs


def _graph(
    program: ReadProgram, division: ProgramDivision, runs: Mapping[int, NetworkRun | GpuRun]
) -> fx.GraphModule:
    """Return a program as a graph that calls the functions of its regions, and PyTorch's operators in between."""
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
    graph.output(results[0] if program.is_single else tuple(results))
    return fx.GraphModule(root, graph, class_name=program.name)


class Networks(nn.Module):
    """The module `part` by native functions, for the sizes of `inputs` and of later calls.

    PyTorch computes sizes without functions. Functions for further sizes, and the number of their `layers`, are
    recorded in `others`.
    """

    _versions: list[int]

    def __init__(
        self, part: nn.Module, sized: SizedProgram, inputs: Sequence[Tensor], threads: int, others: list[OtherSizes],
        layers: int,
    ) -> None:  # fmt: skip
        super().__init__()
        self._threads, self._others, self._layers, self._warned = threads, others, layers, False
        self._is_single, self._kept, self._dtype = sized.program.is_single, sized.kept, sized.program.dtype
        self._parts = (part,)  # no module of this one: it may contain the module that calls this one
        self._device = devices.device_of(inputs[0])
        self._index = self._device.index if devices.is_gpu(self._device) else _CPU_INDEX
        self._forms = tuple([(x.shape, x.dtype) for x in inputs])
        self._prepare()
        self._by_sizes[self._forms] = sized.graph
        self._versions = self._writes()

    def _prepare(self) -> None:
        """Start without functions, and without the numbers of writes to parameters before the first were made."""
        self._versions = []
        self._name = named(self)
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
        """Return the results of the graph; torch's compilers see one operator, and exported programs have the part."""
        for x, (_, dtype) in zip(tensors, self._forms):
            is_elsewhere = x.get_device() != self._index or x.is_meta
            if is_elsewhere or x.requires_grad or (x.dtype is not dtype and dtype.is_floating_point):
                check_source(x, dtype, self._device)
        if _tracer() is not None:
            raise torchscript_error("torch.jit.trace")
        if is_traced():
            if torch.compiler.is_exporting():
                return self.part.forward(*tensors)
            results = seen(self._name, tensors)
            return results[0] if self._is_single else tuple(results)
        return self._graph_for(tensors).forward(*tensors)

    def results(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the results in a sequence."""
        found = self._graph_for(tensors).forward(*tensors)
        return [found] if self._is_single else found

    def is_ready(self, tensors: Sequence[Tensor]) -> bool:
        """Return whether it is known who computes sources of these sizes and types."""
        return tuple([(x.shape, x.dtype) for x in tensors]) in self._by_sizes

    def prepare(self, tensors: Sequence[Tensor], cast: torch.dtype | None) -> None:
        """Make functions for sources of these sizes and types, under an autocast to `cast`."""
        with torch.no_grad(), casting(cast):
            self._graph_for(tensors)

    def without_data(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the results for sources without data, which have no data either."""
        mode: Any = next(x.fake_mode for x in tensors if isinstance(x, FakeTensor))
        held = (*self.part.named_parameters(), *self.part.named_buffers())
        own = {name: mode.from_tensor(x, static_shapes=True) for name, x in held}
        found = torch.func.functional_call(self.part, own, tuple(tensors))
        return [found] if self._is_single else found

    def _graph_for(self, tensors: Sequence[Tensor]) -> Any:
        """Return the graph for the sizes and types of sources; the part, if there is none."""
        try:
            graph = self._by_sizes[tuple([(x.shape, x.dtype) for x in tensors])]
        except KeyError:
            graph = self._further(tensors)
        return self.part if graph is None else graph

    def _further(self, tensors: Sequence[Tensor]) -> fx.GraphModule | None:
        """Return the graph for other sizes, compiled now and recorded; None if there is none."""
        key = tuple([(x.shape, x.dtype) for x in tensors])
        with _making.lock:
            if key in self._by_sizes:
                return self._by_sizes[key]
            start, graph, why = time.perf_counter(), None, "later writes have changed its parameters"
            if not self._by_sizes:
                self._versions = self._writes()
            if self._writes() == self._versions:
                program = read_program(self.part, tensors)
                sized = program if isinstance(program, str) else sized_program(
                    program, self._threads, self._kept, device=self._device
                )  # fmt: skip
                graph, why = (None, sized) if isinstance(sized, str) else (sized.graph, "")
            shapes = tuple([tuple(shape) for shape, _ in key])
            if key != self._forms:
                self._others.append(OtherSizes(shapes, self._layers, time.perf_counter() - start, why))
            if len(self._by_sizes) > MAX_SIZES:
                del self._by_sizes[next(known for known in self._by_sizes if known != self._forms)]
            self._by_sizes[key] = graph
        if why and not self._warned:
            self._warned = True
            given = ", ".join(map(str, shapes))
            warn(f"{self._layers} layers get sources of {given}, which PyTorch computes: {why}", OtherSizesWarning)
        return graph

    @property
    def part(self) -> nn.Module:
        """The module whose results functions compute."""
        return self._parts[0]

    def _writes(self) -> list[int]:
        """Return the numbers of writes to the parameters and buffers of the part."""
        return [version_of(x) for x in (*self.part.parameters(), *self.part.buffers())]

    def __getstate__(self) -> dict[str, Any]:
        # Memory and code belong to this process and are created anew.
        return {name: value for name, value in self.__dict__.items() if name not in ("_by_sizes", "_versions", "_name")}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()


def in_words(error: Exception) -> str:
    """Return the first line of an error, preceded by its class if the class is not convsmith's."""
    line = str(error).partition("\n")[0]
    return line if isinstance(error, ConvsmithError) else f"{type(error).__name__}: {line}"
