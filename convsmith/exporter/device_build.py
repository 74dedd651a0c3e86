"""The code of a kernel that is exported for a device, and the places of its entries' arguments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, fields
from typing import Any

from convsmith.codegen.artifact import Argument, Artifact, MapArgument
from convsmith.diag.errors import UnsupportedError
from convsmith.diag.record import record
from convsmith.exporter.c_nests import CNests, nests_of
from convsmith.exporter.constants import stored_bytes
from convsmith.exporter.interface import WORKSPACE, EntryUse, Interface, PackingFunction, Parameter, interface_of
from convsmith.exporter.kernel import ExportedKernel, exportable, for_any_operands
from convsmith.frontend.kernel import CompiledKernel
from convsmith.machine.base import Machine
from convsmith.problem.reference import is_exact
from convsmith.runtime.arrays import ArraySpec
from convsmith.runtime.border import tensors_of
from convsmith.runtime.operand_packing import PackedParts
from convsmith.runtime.tensor_maps import encoding_of

__all__ = ["ArgumentPlace", "DeviceKernel", "build_device_kernel"]


@record(frozen=True)
class ArgumentPlace:
    """The memory of an entry's argument: ``nbytes`` at an ``offset`` in the array behind a ``parameter``, of which
    other arguments have other parts if ``is_part``.

    ``constant`` is the number of the array of the loaded module that takes its place where a call omits the array, or
    where there is no parameter.
    """

    nbytes: int
    parameter: str = ""
    offset: int = 0
    is_part: bool = False
    constant: int | None = None


@record(frozen=True)
class DeviceKernel(ExportedKernel):
    """A kernel of a device: its ``code`` by the ends of its files' names, in the order in which a program tries them.

    ``constants`` are arrays that the loaded module keeps in the device's memory: values of arrays that a call omits,
    and zeros. ``nests`` compute the same in C; results on small integers are equal if ``is_exact``.
    """

    code: dict[str, bytes] = field(repr=False)
    constants: dict[str, bytes] = field(repr=False)
    nests: CNests = field(repr=False)
    is_exact: bool

    @property
    def load(self) -> str:
        """Name of the function that loads the code."""
        return f"{self.name}_load"

    @property
    def unload(self) -> str:
        """Name of the function that frees what `load` has made."""
        return f"{self.name}_unload"

    @property
    def make_maps(self) -> str:
        """Name of the function that makes the tensor maps of a call."""
        return f"{self.name}_tensor_maps"

    @property
    def symbols(self) -> tuple[str, ...]:
        packs = (packing.symbol for packing in self.interface.packings)
        return (self.load, *([self.make_maps] if self.has_maps else []), *packs, self.name, self.unload)

    @property
    def codes(self) -> dict[str, str]:
        return {}

    @property
    def has_maps(self) -> bool:
        """Whether entries of a call take tensor maps."""
        return any(use.entry.launch.maps for use in self.interface.uses)

    @property
    def mapped(self) -> tuple[Parameter, ...]:
        """The parameters of the arrays that the maps of a call describe."""
        read = set()
        for use in self.interface.uses:
            of = {m.of for m in use.entry.launch.maps}
            read |= {self.place(a, use).parameter for a in use.entry.arguments if a.name in of}
        return tuple(p for p in self.interface.parameters if p.name in read)

    @property
    def uses(self) -> tuple[EntryUse, ...]:
        """The entries of a call, followed by those of the packing functions."""
        return (*self.interface.uses, *(use for packing in self.interface.packings for use in packing.uses))

    @property
    def functions(self) -> Iterator[tuple[Interface | PackingFunction, int]]:
        """Each function that runs entries, packing functions first, with the number of its first entry in `uses`."""
        start = len(self.interface.uses)
        for packing in self.interface.packings:
            yield packing, start
            start += len(packing.uses)
        yield self.interface, 0

    def place(self, a: Argument, use: EntryUse) -> ArgumentPlace:
        """Return the memory of an argument of an entry that a function uses."""
        numbers = {name: n for n, name in enumerate(self.constants)}
        if a.name in use.places:
            return ArgumentPlace(a.nbytes, WORKSPACE, use.places[a.name], is_part=True)
        if a.role == "packed":
            parts = PackedParts.of(self.interface.artifact, a.of)
            return ArgumentPlace(a.nbytes, f"packed_{a.of}", parts.offsets[a.name], is_part=len(parts.arguments) > 1)
        if a.role == "zero":
            return ArgumentPlace(a.nbytes, constant=numbers[a.name])
        return ArgumentPlace(a.nbytes, a.name, constant=numbers.get(a.name))

    def manifest_rows(self) -> dict[str, Any]:
        entries = [
            self._launched(use, made.name if isinstance(made, Interface) else made.symbol)
            for made, _ in self.functions
            for use in made.uses
        ]
        return {"code": [f"{self.name}{end}" for end in self.code], "entries": entries}

    def _launched(self, use: EntryUse, function: str) -> dict[str, Any]:
        """Return the row of an entry that a function of the header runs."""
        launch = use.entry.launch
        return {
            "symbol": use.entry.symbol, "function": function, "grid": list(launch.grid), "group": list(launch.group),
            "shared": launch.shared, "registers": launch.registers,
            "arguments": [self._argument(a, use) for a in use.entry.arguments],
            "maps": [_map(m) for m in launch.maps],
        }  # fmt: skip

    def _argument(self, a: Argument, use: EntryUse) -> dict[str, Any]:
        place = self.place(a, use)
        memory = {"parameter": place.parameter, "offset": place.offset} if place.parameter else {"zeros": a.nbytes}
        return {
            "name": a.name, "role": a.role, "of": a.of, "dtype": a.dtype, "shape": list(a.shape), "layout": a.layout,
            "bytes": a.nbytes, "memory": memory,
        }  # fmt: skip


def build_device_kernel(kernel: CompiledKernel, name: str, nodes: tuple[str, ...] = ()) -> DeviceKernel:
    """Return the code of ``kernel`` under ``name``; it computes the ``nodes`` of a model.

    UnsupportedError if the kernel reads its source through tables of pointers.
    """
    kernel = for_any_operands(kernel, {})
    artifact = exportable(kernel)
    if any(a.role in ("table", "size") or a.recipe for entry in artifact.entries.values() for a in entry.arguments):
        raise UnsupportedError(
            f"{kernel.problem}: the kernel for {kernel.target.name} takes tables or sizes, which no launch header "
            "makes; available are kernels of another --realise=",
            code="export",
        )
    interface = interface_of(name, artifact, [t.name for t in kernel.problem.tensors])
    exact = is_exact(kernel.problem) and not kernel.transforms
    return DeviceKernel(
        kernel.target, str(kernel.problem), str(kernel.config), nodes, (), interface, _code(artifact, kernel.target),
        dict(_constants(artifact)), nests_of(name, kernel.problem, kernel.target), exact,
    )  # fmt: skip


def _map(made: MapArgument) -> dict[str, Any]:
    """Return the row of a tensor map: the function of the driver that makes it, and its parameters."""
    encoding = encoding_of(made)
    return {"of": made.of} | {f.name: getattr(encoding, f.name) for f in fields(encoding)}


def _code(artifact: Artifact, machine: Machine) -> dict[str, bytes]:
    """Return the code by the ends of its files' names: machine code, and PTX, from which the driver makes machine code
    of later generations; SPIR-V; or WGSL.
    """
    ptx = artifact.notes.get("ptx", "").encode()
    if not ptx:
        assert machine.device is not None
        return {".wgsl" if machine.device.code == "wgsl" else ".spv": artifact.code}
    return {".ptx": ptx} if artifact.code == ptx else {".cubin": artifact.code, ".ptx": ptx}


def _constants(artifact: Artifact) -> Iterator[tuple[str, bytes]]:
    """Yield the arrays that a call may omit, and those of zeros, by name."""
    for tensor in tensors_of(artifact).values():
        if tensor.default is not None:
            yield tensor.name, stored_bytes(ArraySpec(tensor), tensor.default)
    for entry in artifact.steps.values():
        for a in entry.arguments:
            if a.role == "zero":
                yield a.name, bytes(a.nbytes)
