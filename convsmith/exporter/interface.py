"""The interface of an exported kernel: the parameters of its functions, and the memory behind each.

    void NAME(tensors..., workspace, parallel, pool)     the kernel
    void NAME_pack(tensors..., packed)                   packs an operand; NAME_pack_wei_1 if there are several
    int NAME_check(pointer, bytes, ...)                  checks the memory of a call
    const char *NAME_message(int code)                   describes the result of NAME_check

Built-in arrays are no parameters. `workspace` holds the kernel's private memory: intermediate results between entries,
the scratch memory of each thread, and tables of pointers. It is absent if the kernel needs no such memory; `parallel`
and `pool` are absent if one thread runs the whole kernel.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from convsmith.codegen.artifact import Argument, Artifact, Entry
from convsmith.diag.record import record
from convsmith.runtime.arrays import ALIGNMENT, ArraySpec
from convsmith.runtime.border import tensors_of
from convsmith.runtime.device_library import ALIGNMENT as OF_DEVICE
from convsmith.runtime.operand_packing import PackedParts

__all__ = ["WORKSPACE", "EntryUse", "Interface", "PackingFunction", "Parameter", "interface_of"]

WORKSPACE = "workspace"
"""The name of the parameter for the kernel's own memory."""


@record(frozen=True)
class Parameter:
    """A pointer that a function takes: to a tensor, to a packed operand (``of`` a tensor), or to the workspace.

    The memory behind it has ``nbytes`` from an address that is a multiple of ``alignment``. An optional pointer may be
    null, which selects the values in the problem's line.
    """

    name: str
    nbytes: int
    alignment: int
    is_written: bool
    tensor: Argument | None = None
    of: str = ""

    @property
    def is_optional(self) -> bool:
        """Whether the pointer may be null."""
        return self.tensor is not None and self.tensor.default is not None

    @property
    def type(self) -> str:
        """The type of the elements; empty for memory with the kernel's private contents."""
        return self.tensor.dtype if self.tensor is not None else ""

    @property
    def elements(self) -> int:
        """The number of elements of a tensor in memory, with those between its own."""
        assert self.tensor is not None
        return self.nbytes // ArraySpec(self.tensor).dtype.itemsize


@record(frozen=True)
class EntryUse:
    """An entry that a function runs; ``places`` are the offsets of arguments in the workspace, by name."""

    entry: Entry
    places: dict[str, int]


@record(frozen=True)
class PackingFunction:
    """A function that packs an operand: its symbol, its parameters, the entries that it runs, and its workspace."""

    symbol: str
    operand: str
    parameters: tuple[Parameter, ...]
    uses: tuple[EntryUse, ...]
    workspace: int


@record(frozen=True)
class Interface:
    """The functions of an exported kernel; ``built_in`` are names of tensors whose values the code contains.

    ``threads`` is the maximum number of parts in which the kernel can run.
    """

    name: str
    artifact: Artifact
    parameters: tuple[Parameter, ...]
    uses: tuple[EntryUse, ...]
    packings: tuple[PackingFunction, ...]
    workspace: int
    threads: int
    built_in: frozenset[str]

    def function(self, operand: str = "") -> Interface | PackingFunction:
        """Return the kernel, or the function that packs an operand: its symbol, its parameters, the entries it runs."""
        return next((p for p in self.packings if p.operand == operand), self) if operand else self

    @property
    def symbol(self) -> str:
        """Name of the kernel's function."""
        return self.name

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of the functions that a program can call."""
        packs = (packing.symbol for packing in self.packings)
        return (self.name, *packs, self.check, self.message)

    @property
    def check(self) -> str:
        """Name of the function that checks sizes, alignment and overlaps of the arrays of a call."""
        return f"{self.name}_check"

    @property
    def message(self) -> str:
        """Name of the function that returns the message of a code."""
        return f"{self.name}_message"

    @property
    def faults(self) -> tuple[tuple[int, str, str], ...]:
        """The faults that `check` reports: the number of a parameter, the kind of the fault (with a second parameter's
        number for an overlap), and the message. The code of a fault is its position in this list, counted from 1.
        """
        return tuple(_faults(self.parameters))


def interface_of(
    name: str, artifact: Artifact, order: Sequence[str], built_in: Collection[str] = ()
) -> Interface:
    """Return the interface of the kernel of ``artifact`` under ``name``, with ``built_in`` tensors in the code.

    Parameters are in the ``order`` of their tensors' names; tensors that the kernel writes come last.
    """
    tensors = tensors_of(artifact)
    steps = tuple(artifact.steps.values())
    arguments = [a for entry in steps for a in entry.arguments]
    plain = {a.name for a in arguments if a.role in ("in", "out", "inout")}
    packed = [of for of in artifact.packs if any(a.of == of and a.role == "packed" for a in arguments)]
    least = OF_DEVICE if artifact.is_for_device else 1
    parameters: list[Parameter] = []
    for tensor in sorted(tensors.values(), key=lambda t: (t.role != "in", order.index(t.name))):
        if tensor.name in built_in:
            continue
        if tensor.name in packed:
            parameters.append(_packed_parameter(artifact, tensor.name))
        if tensor.name in plain:
            parameters.append(_tensor_parameter(tensor, tensor.role != "in", least))
    uses, workspace = _uses(steps)
    threads = max(entry.launch.threads for entry in steps)
    if workspace:
        parameters.append(_workspace(workspace))
    free = [of for of in packed if of not in built_in]
    packings = tuple(
        _packing(artifact, of, f"{name}_pack" + (f"_{of}" if len(packed) > 1 else ""), built_in, least)
        for of in free
    )
    return Interface(
        name, artifact, tuple(parameters), uses, packings, workspace, threads, frozenset(built_in)
    )  # fmt: skip


def _tensor_parameter(tensor: Argument, is_written: bool, least: int) -> Parameter:
    spec = ArraySpec(tensor)
    return Parameter(tensor.name, max(spec.extent, 1), max(spec.dtype.itemsize, least), is_written, tensor)


def _packed_parameter(artifact: Artifact, operand: str, is_written: bool = False) -> Parameter:
    parts = PackedParts.of(artifact, operand)
    return Parameter(
        f"packed_{operand}", parts.size * parts.dtype.itemsize, ALIGNMENT, is_written, of=operand
    )  # fmt: skip


def _workspace(nbytes: int) -> Parameter:
    return Parameter(WORKSPACE, nbytes, ALIGNMENT, True)


def _packing(
    artifact: Artifact, operand: str, symbol: str, built_in: Collection[str], least: int
) -> PackingFunction:  # fmt: skip
    """Return the function that packs ``operand``; one thread runs its entries."""
    entries = tuple(artifact.entries[name] for name in artifact.packs[operand])
    read = {a.name: a for entry in entries for a in entry.arguments if a.role == "in" and a.name not in built_in}
    uses, workspace = _uses(entries, artifact.passed_on(operand))
    parameters = [
        *(_tensor_parameter(a, False, least) for a in read.values()), _packed_parameter(artifact, operand, True)
    ]  # fmt: skip
    return PackingFunction(
        symbol, operand, (*parameters, *([_workspace(workspace)] if workspace else [])), uses, workspace
    )  # fmt: skip


def _uses(entries: tuple[Entry, ...], passed_on: Iterable[Argument] = ()) -> tuple[tuple[EntryUse, ...], int]:
    """Return the use of each entry, and the bytes of the workspace that they share.

    Memory that only one entry uses is reused by the next entry; shared memory is not, nor are the arrays that one entry
    has ``passed_on`` to the next.
    """
    shared: dict[str, int] = {}
    sizes = {a.name: _bytes(a) for a in passed_on}
    for entry in entries:
        for a in entry.arguments:
            if a.role == "shared":
                sizes[a.name] = max(sizes.get(a.name, 0), _bytes(a))
    end = 0
    for name, size in sizes.items():
        shared[name], end = end, end + size
    uses, most = [], end
    for entry in entries:
        places, last = {}, end
        for a in entry.arguments:
            if a.name in shared:
                places[a.name] = shared[a.name]
            elif a.role in ("scratch", "table") or (a.role == "zero" and a.recipe):
                places[a.name] = last
                last += _bytes(a, entry.launch.threads if a.role == "scratch" else 1)
        uses.append(EntryUse(entry, places))
        most = max(most, last)
    return tuple(uses), most


def _bytes(a: Argument, count: int = 1) -> int:
    """Return the bytes of ``count`` copies of an argument's memory, rounded up to a multiple of the alignment."""
    return -(-a.nbytes * count // ALIGNMENT) * ALIGNMENT


def _faults(parameters: tuple[Parameter, ...]) -> Iterator[tuple[int, str, str]]:
    for n, p in enumerate(parameters):
        if not p.is_optional:
            yield n, "null", f"{p.name} is null"
        yield n, "bytes", f"{p.name} has too few bytes: the kernel needs {p.nbytes}"
        if p.alignment > 1:
            yield n, "alignment", f"{p.name} is not aligned: its address must be a multiple of {p.alignment}"
    for n, p in enumerate(parameters):
        for m, other in enumerate(parameters):
            if p.is_written and (m > n or not other.is_written) and m != n:
                yield n, f"overlap {m}", f"{p.name} and {other.name} overlap"
