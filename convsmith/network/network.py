"""`Network`: the one function of a network, as a callable on arrays."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from convsmith.codegen.artifact import Artifact
from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.diag.forking import import_lock
from convsmith.diag.system import at_fork
from convsmith.network.files.file import save_image
from convsmith.network.image import BEFORE, NetworkImage, tensor_arguments
from convsmith.network.outside import returned, taken
from convsmith.runtime.arrays import Array, address_of, aligned_empty, as_array, numpy_dtype
from convsmith.runtime.border import Border
from convsmith.runtime.host import HostFunction, HostLibrary
from convsmith.runtime.prepared_call import LoadedEntry, PreparedCall

if TYPE_CHECKING:
    from convsmith.network.files.export import ExportedNetwork
    from convsmith.network.program import NetworkProgram
    from convsmith.network.report.step_times import NetworkTimes
    from convsmith.problem.problem import Problem

__all__ = ["Network", "prepared_driver"]


class Network:
    """A network as one native function: `net(x)` returns the output, or a tuple of several; `net(y=..., x=...)` names
    inputs.

    Arrays are numpy's, or come from any library with DLPack or the array interface, on the CPU. Row-major arrays are
    not copied, and results belong to the library of the first input. `run` returns results by name, and writes to
    arrays that are passed under the names of outputs. Several threads may call a network at once, each call with a
    workspace of its own.
    """

    def __init__(self, image: NetworkImage, program: NetworkProgram | None = None) -> None:
        self.image, self._program = image, program
        self._border = Border(tensor_arguments(image.inputs, image.outputs), "")
        self._libraries = [HostLibrary(kernel) for kernel in image.kernels]
        arrays = len(self._border.specs)
        self._call = prepared_driver(image.driver, image.table, self._libraries, image.weights, arrays)

    @property
    def inputs(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the inputs, by name, in order."""
        return {x.name: x.shape for x in self.image.inputs}

    @property
    def outputs(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the outputs, by name, in order."""
        return {x.name: x.shape for x in self.image.outputs}

    @property
    def threads(self) -> int:
        """Threads on which kernels run."""
        launches = (kernel.entries["main"].launch for kernel in self.image.kernels)
        return max((launch.threads for launch in launches), default=1)

    @property
    def workspace(self) -> int:
        """Bytes of memory that a call needs beside its arrays and the weights."""
        return self.image.workspace

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """Return the output for inputs by position or by name, or a tuple of all outputs if there are several.

        UsageError names an array that does not fit, before anything is computed.
        """
        names = [x.name for x in self.image.inputs]
        if len(arrays) > len(names):
            raise UsageError(
                f"{len(arrays)} arrays are given; the network has {len(names)} inputs: {', '.join(names)}",
                code="inputs",
            )
        given = dict(zip(names, arrays))
        if twice := given.keys() & named.keys():
            raise UsageError(f"{min(twice)} is given twice; legal is one array for each input", code="inputs")
        results = self.run({**given, **named})
        found = tuple(results[x.name] for x in self.image.outputs)
        return found[0] if len(found) == 1 else found

    def problems(self) -> list[tuple[Problem, tuple[str, ...]]]:
        """Return the convolutions and products in order, each with the names of the nodes of the model that it
        computes, and for an operator the first of its products; there are none for a network that was loaded from a
        file.
        """
        with import_lock:
            from convsmith.problem.problem import Problem

        steps = () if self._program is None else self._program.steps
        works = [(self._program.kernels[step.kernel].work, step) for step in steps if self._program is not None]
        made = (((work,) if isinstance(work, Problem) else work.products[:1], step) for work, step in works)
        return [(problem, step.names) for own, step in made if not step.operand for problem in own]

    def run_on(self, addresses: Sequence[int], keep: object) -> None:
        """Run on row-major arrays at `addresses`, those of inputs and then of outputs; `keep` holds their memory."""
        self._call.run(addresses, keep)

    def run(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs by name; an output in `arrays` is written in place."""
        inputs, results = self._border.take(self._taken(arrays))
        specs = self._border.specs
        ready: dict[str, Array] = {name: specs[name].prepare(x) for name, x in inputs.items()}  # type: ignore[arg-type]
        made = {name: x if specs[name].fits(x) else specs[name].empty() for name, x in results.items()}
        keep = [{**ready, **made}[name] for name in specs]
        self._call.run([address_of(x) for x in keep], keep)
        for name, x in results.items():
            if made[name] is not x:
                np.copyto(x, made[name])
        shaped = {x.name: results[x.name] if x.shape else results[x.name].reshape(()) for x in self.image.outputs}
        for value in self.image.outputs:
            if value.outside:
                shaped[value.name] = returned(value, shaped[value.name], arrays.get(value.name))
        return self._border.give(arrays, shaped)

    def _taken(self, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return arrays of a call in the types of kernels, without outputs that have another type outside."""
        values = {x.name: x for x in (*self.image.inputs, *self.image.outputs) if x.outside}
        scalars = [x.name for x in self.image.inputs if not x.shape and x.name in arrays]
        if scalars:
            arrays = {**arrays, **{name: as_array(name, arrays[name]).reshape(-1) for name in scalars}}
        if not values:
            return arrays
        results = {x.name for x in self.image.outputs}
        return {
            name: taken(values[name], x) if name in values else x
            for name, x in arrays.items() if name not in values or name not in results
        }  # fmt: skip

    def explain(self, timed: Mapping[str, Any] | None = None, html: str | os.PathLike[str] | None = None) -> str:
        """Return a text about the network: inputs, outputs, memory, and what each step computes.

        With inputs by name in `timed`, it states the time of each step on them too. `html` is a file to which a page
        for a browser is written. UnsupportedError for times of a network that was loaded from a file, and for a page
        without the packages of pages; UsageError if the file cannot be written.
        """
        with import_lock:
            from convsmith.network.report.explain import explain_image

        times = None if timed is None else self._times(timed)
        if html is not None:
            with import_lock:
                from convsmith.network.report.page import write_network_page

            write_network_page(html, self.image, times)
        return explain_image(self.image, times)

    def _times(self, inputs: Mapping[str, Any]) -> NetworkTimes:
        if self._program is None:
            raise self._loaded("states no time of a step alone")
        with import_lock:
            from convsmith.network.report.step_times import network_times

        arrays = {**self._taken(inputs), **{x.name: np.zeros(x.shape, numpy_dtype(x.type)) for x in self.image.outputs}}
        specs = self._border.specs
        ready: list[Array] = [spec.prepare(arrays[name]) for name, spec in specs.items()]
        return network_times(self._program, self._libraries, ready)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the network to a file that `convsmith.load` maps in another process. UsageError if it cannot be
        written.
        """
        save_image(self.image, path)

    def export(self, directory: str | os.PathLike[str], name: str = "net") -> ExportedNetwork:
        """Write the network as one function of C, `name`, to `directory`, and return the names of the files.

        UsageError if the name is not legal, or the directory cannot be written; UnsupportedError for a network that was
        loaded from a file.
        """
        if self._program is None:
            raise self._loaded("holds no code for programs of C")
        with import_lock:
            from convsmith.network.files.c_texts import sample
            from convsmith.network.files.export import export_program

        samples = self.run({x.name: sample(x.shape, x.type) for x in self.image.inputs})
        return export_program(self._program, directory, name, samples)

    def _loaded(self, lack: str) -> UnsupportedError:
        """Return the error about a file, which has a `lack`."""
        return UnsupportedError(
            f"{self.image.name} was loaded from a file, which {lack}; available are networks that this process "
            "compiled",
            code="export",
        )

    def __repr__(self) -> str:
        shapes = [f"{name} {shape}" for name, shape in (*self.inputs.items(), *self.outputs.items())]
        return f"<Network {self.image.name}: {', '.join(shapes)}, {len(self.image.steps)} steps>"


def prepared_driver(
    driver: Artifact, table: Sequence[tuple[int, str]], libraries: Sequence[HostLibrary], weights: Array, arrays: int
) -> PreparedCall:
    """Return a call of a `driver` that runs the entries of `libraries` in its `table`, on so many `arrays`."""
    entries = _EntryTable.of([libraries[n][name] for n, name in table])
    held = {"0": entries.addresses.view(np.int32), "1": weights if weights.size else aligned_empty(1)}
    entry = LoadedEntry(HostLibrary(driver)["main"], driver.entries["main"], held)
    call = PreparedCall([entry], [{str(n): 0} for n in range(BEFORE, BEFORE + arrays)])
    _tables[call] = entries
    return call


class _EntryTable(NamedTuple):
    """The addresses in the table of a driver, and the functions that they are of."""

    functions: Sequence[HostFunction]
    addresses: Array

    @classmethod
    def of(cls, functions: Sequence[HostFunction]) -> _EntryTable:
        """Return the table of `functions`, with one address that nothing calls if there are none."""
        made = cls(functions, np.zeros(max(len(functions), 1), np.uint64))
        made.renew()
        return made

    def renew(self) -> None:
        """Write the addresses of functions that this process can run."""
        for n, function in enumerate(self.functions):
            self.addresses[n] = function.address


_tables = WeakKeyDictionary[PreparedCall, _EntryTable]()


def _renew_tables() -> None:
    """Replace the functions that start tasks on an OpenMP runtime, whose threads a forked child does not have."""
    for table in _tables.values():
        table.renew()


at_fork(after_in_child=_renew_tables)
