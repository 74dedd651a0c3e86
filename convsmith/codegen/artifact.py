"""The artifact: object code and a manifest of how to call it; a run time sees nothing else of a kernel.

The object of a CPU holds, for each `Entry`, two functions:

    void symbol(ptr block)                           the whole entry
    void symbol_chunk(ptr block, word tid, word n)   part tid of n of it, 0 <= tid < n

A word has the bits of an address, `Artifact.address_bits`. `block` points to words in the order of `Entry.arguments`:
an address for each argument in memory, then the value of each size. The n parts may run in any order, at the same
time, and on any threads; 1 <= n <= `Launch.threads`.
`Launch.kind` says what `symbol` does: for a "call" it is `symbol_chunk`, which ignores `tid` and `n`; "tasks" asks the
library `Launch.runtime` for `threads` threads, and each runs its part; the entry points that it calls are
`RUNTIME_SYMBOLS[runtime]`. Before a call, the system must have granted the process all of `Artifact.permissions`. A
call runs its entries one after the other.

The object of a device holds a kernel `symbol` for each entry, whose parameters are the entry's arguments: pointers to
the memory of the device, then sizes. Its launch is a "grid": the library `Launch.runtime` runs `Launch.grid` groups of
`Launch.group` threads.

The file form is a magic word, the length of a JSON header, the header, the object code, and the SHA-256 of all these
bytes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import field
from typing import Any, Literal, get_args

from convsmith.codegen.decode import decoder, encoded
from convsmith.diag.errors import UsageError
from convsmith.diag.forking import cached_property, import_lock
from convsmith.diag.record import record
from convsmith.diag.settings import MAX_THREADS
from convsmith.ir.tensor_map import TensorMap
from convsmith.ir.types import DTYPES, POINTERS
from convsmith.layout.requirements import FIXED, Requirements

__all__ = [
    "ABI_VERSION", "ALIGNMENT", "AXES", "FINITE", "GOMP", "RUNTIME_SYMBOLS", "SIZES", "Argument", "Artifact", "Entry",
    "Launch", "LaunchKind", "MapArgument", "MemoryKind", "ObjectFormat", "Role", "build_options", "host_launch",
    "object_format", "size_argument",
]  # fmt: skip

ABI_VERSION = 11
"""Version of the calling convention above. Artifacts of other versions are refused."""
ALIGNMENT = 128
"""Bytes to which memory of a kernel is aligned: the widest vector of any machine, and two cache lines."""
FINITE = sys.float_info.max
"""The limit of a tensor whose elements can be any finite numbers."""

Role = Literal["in", "out", "inout", "packed", "scratch", "shared", "table", "zero", "size"]
LaunchKind = Literal["call", "tasks", "grid"]
MemoryKind = Literal["host", "device", "constant"]
ObjectFormat = Literal["elf", "coff", "mach-o", "wasm"]
_FORMATS: dict[bytes, ObjectFormat] = {
    b"\x7fELF": "elf", b"\0asm": "wasm", b"\xcf\xfa\xed\xfe": "mach-o", b"\x64\x86": "coff", b"\x64\xaa": "coff",
}  # fmt: skip
"""By the first bytes of object code; those of COFF are the numbers of x86-64 and AArch64."""

GOMP = "gomp"
RUNTIME_SYMBOLS = {GOMP: ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")}
"""Entry points that object code calls to start its tasks, by the name of the library that has them."""

SIZES = {64: "s64", 32: "s32"}
"""Types of a size in the argument block, by the bits of a word."""

AXES = ("x", "y", "z")
"""Axes of a grid and of a group; the threads of a warp are neighbours along the first."""

_ROLES, _KINDS, _MEMORIES = get_args(Role), get_args(LaunchKind), get_args(MemoryKind)
_TYPES = dict.fromkeys((*DTYPES, *(t.name for t in POINTERS.values())))
"""Types of arguments in memory, in the order of messages."""
_SIZE_TYPES = tuple(SIZES.values())

_MEMORY = {t.name: t for t in (*DTYPES.values(), *POINTERS.values())}
"""Types of elements in memory."""

_MAGIC = b"convsmith\x00\x01\x00"
_DIGEST = 32


@record(frozen=True)
class Argument:
    """One word of the argument block: the address of a tensor `name`, of memory of the kernel's own, or a size.

    `role` is what happens to it: "in" (read), "out" (written), "inout" (read, then written), "packed" (tensor `of` in
    the kernel's own order, or sums of it: written by a packing entry; it lasts as long as the packed tensor if an entry
    of calls reads it, and otherwise until the operand is packed), "scratch" (memory private to one call: `size`
    elements for each thread, part tid using its own) or "shared" (memory of a call, from one entry to the next),
    "table" (addresses within tensor `of`, which `recipe` says, and those of absent elements: of the entry's "zero"
    argument of the same tensor), "zero" (memory of zeros, or of the tensor's zero points: those of the argument that
    `recipe` names, one for all or one for each channel) or "size" (an integer in place of an address: `value`, or what
    the call gives where that is None).

    `holds` says what a tensor of the problem holds, in the words of `problem/tensor.py`: "src", "wei", "bia" and "dst"
    (also for their gradients), "scales", "zero_points", "operand" or "rounding". It is empty for other memory.

    `memory` says where the address points: into memory of the host, of a device, or constant memory of a device.
    `shape` is logical, `dims` are its dims' names, `layout` is a tag or block text of that shape, `size` the elements
    of memory (padding included). Elements of a tensor have a byte each at least; others may share bytes. `default`
    holds the values that are used if a call omits the array: one for all elements, or one for each; None if a call must
    pass the array.
    """

    name: str
    role: Role
    dtype: str
    shape: tuple[int, ...]
    layout: str
    size: int
    dims: tuple[str, ...] = ()
    default: tuple[float, ...] | None = None
    of: str = ""
    recipe: str = ""
    memory: MemoryKind = "host"
    value: int | None = None
    holds: str = ""

    def __post_init__(self) -> None:
        if self.role not in _ROLES:
            raise UsageError(f"argument {self.name}: role {self.role!r} is not one of {', '.join(_ROLES)}")
        if (self.role in ("packed", "table", "zero")) != bool(self.of):
            raise UsageError(f"argument {self.name}: of={self.of!r} with role {self.role}; packed tensors name theirs")
        if self.dims and len(self.dims) != len(self.shape):
            raise UsageError(f"argument {self.name}: {len(self.dims)} names for the {len(self.shape)} dims")
        if self.memory not in _MEMORIES:
            legal = ", ".join(_MEMORIES)
            raise UsageError(f"argument {self.name}: memory {self.memory!r} is not one of {legal}")
        if self.value is not None and self.role != "size":
            raise UsageError(f"argument {self.name}: value {self.value} with role {self.role}; only a size has one")
        types = _SIZE_TYPES if self.role == "size" else _TYPES
        if self.dtype not in types:
            legal = ", ".join(types)
            raise UsageError(f"argument {self.name}: type {self.dtype!r} is not one of {legal}")
        if self.size < 0 or (self.shape and min(self.shape) < 0):
            raise UsageError(f"argument {self.name}: {self.size} elements of shape {self.shape}; no size is negative")

    def bytes_of(self, elements: int) -> int:
        """Return the bytes of ``elements`` elements of an argument in memory; each element of a tensor has whole bytes.
        """
        t = _MEMORY[self.dtype]
        return elements * t.bytes_of(1) if self.role in ("in", "out", "inout") else t.bytes_of(elements)

    @property
    def nbytes(self) -> int:
        """Bytes of the argument's memory."""
        return self.bytes_of(self.size)


def size_argument(name: str, bits: int = 64) -> Argument:
    """Return the argument of a size that a call gives, as a word of `bits`."""
    return Argument(name, "size", SIZES[bits], (), "", 0)


@record(frozen=True)
class MapArgument:
    """A parameter after an entry's arguments: the map of the tensor that the argument ``of`` points to.

    Its elements are of type ``dtype``. ``swizzle`` are the bytes within which copies permute pieces of 16 bytes.
    """

    of: str
    dtype: str
    swizzle: int
    map: TensorMap


@record(frozen=True)
class Launch:
    """The way in which an entry is started.

    `kind` is "call" (the calling thread runs all of it), "tasks" (up to `threads` host threads run a part each, started
    by the library `runtime`) or "grid" (the library `runtime` runs it on a device). `threads` is also the number of
    scratch memories. A `grid` and a `group` have an extent along each of `AXES`: groups, and threads of a group, which
    share `shared` bytes. The run time makes the tensor `maps` of the arrays of a call. A thread has so many
    `registers`, or if that is 0 the usual number. Groups form clusters, whose extents divide those of the grid, unless
    `cluster` is empty.
    """

    kind: LaunchKind = "call"
    threads: int = 1
    runtime: str = ""
    grid: tuple[int, ...] = ()
    group: tuple[int, ...] = ()
    shared: int = 0
    maps: tuple[MapArgument, ...] = ()
    registers: int = 0
    cluster: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise UsageError(f"launch: kind {self.kind!r} is not one of {', '.join(_KINDS)}")
        if not 1 <= self.threads <= MAX_THREADS:
            raise UsageError(f"launch: {self.threads} threads; expected 1 to {MAX_THREADS}")
        if (self.kind == "call") == bool(self.runtime) or (self.kind != "tasks" and self.threads > 1):
            raise UsageError(
                f"launch: kind {self.kind} with {self.threads} threads of the runtime {self.runtime!r}; a call has one "
                "thread and no runtime, tasks have a runtime, a grid has a runtime and one thread of the host"
            )
        axes = len(AXES) if self.kind == "grid" else 0
        if (len(self.grid), len(self.group)) != (axes, axes) or min((*self.grid, *self.group, self.shared + 1)) < 1:
            raise UsageError(
                f"launch: kind {self.kind} of {self.grid} groups of {self.group} threads that share {self.shared} "
                f"bytes; a grid has extents of at least 1 along {', '.join(AXES)}, others have none"
            )


def object_format(code: bytes) -> ObjectFormat | None:
    """Return the format of relocatable object code; None for other bytes."""
    return _FORMATS.get(code[:4]) or _FORMATS.get(code[:2])


def build_options(launches: Iterable[Launch]) -> list[str]:
    """Return the options with which an OpenCL driver compiles the kernels of ``launches``."""
    most = max((x.registers for x in launches), default=0)
    return [f"-cl-intel-{most}-GRF-per-thread"] if most else []


def host_launch(threads: int) -> Launch:
    """Return the launch of an entry for `threads` host threads."""
    return Launch() if threads == 1 else Launch("tasks", threads, GOMP)


@record(frozen=True)
class Entry:
    """One callable of the object code: its symbol, its arguments in order (sizes last), and how it is started.

    An entry that packs a tensor has the identity of its `packing`: two entries of one identity write the same contents.
    Every call runs the entries without a `packing`.
    """

    symbol: str
    arguments: tuple[Argument, ...]
    launch: Launch = Launch()
    packing: str = ""

    def __post_init__(self) -> None:
        roles = [a.role for a in self.arguments]
        if "size" in roles and {*roles[roles.index("size") :]} != {"size"}:
            raise UsageError(f"entry {self.symbol}: an argument in memory follows a size; sizes come last")
        if "table" not in roles and "zero" not in roles:
            return
        names, zeros = {a.name for a in self.arguments}, {a.of for a in self.arguments if a.role == "zero"}
        for a in self.arguments:
            if a.role == "table" and not (a.of in names and a.of in zeros):
                raise UsageError(f"entry {self.symbol}: {a.name} needs {a.of} and its zero argument beside it")
            if a.role == "zero" and a.recipe and a.recipe not in names:
                raise UsageError(f"entry {self.symbol}: {a.name} needs {a.recipe} beside it")

    @property
    def chunk_symbol(self) -> str:
        """Name of the function that runs one part of the entry."""
        return f"{self.symbol}_chunk"


@record(frozen=True)
class _Manifest:
    """The header of the file form; the fields are those of `Artifact`."""

    target: str
    entries: tuple[tuple[object, ...], ...]
    problem: str
    config: str
    abi: int
    needs: tuple[str, ...]
    permissions: tuple[str, ...]
    limits: dict[str, float]
    requirements: tuple[tuple[object, ...], ...]
    notes: dict[str, str]
    address_bits: int


@record(frozen=True)
class Artifact:
    """Object code (of a CPU: ELF, relocatable) with its manifest.

    `entries` are in the order in which a call runs them; the entries that pack a tensor ("pack", or "pack:wei_p" if
    there are several) run when an operand is packed. `needs`: CPU features (LLVM's names) without which the code must
    not run. `permissions`: requests to the system that a process must make before the code runs ("amx": the state of
    tile registers). `limits`: by tensor, the largest magnitude of its elements with which the results are right; with
    larger ones or NaN, another kernel must run. A tensor that is multiplied by stored zeros has the limit `FINITE`.
    `requirements` are the legal sizes of a call, if sizes are arguments of the code. `notes` are texts for people. An
    address, a word of the argument block and an entry of a table have `address_bits`. `plan` is the plan with its nodes
    (`schedule/planned.py`) where this process compiled the kernel, and None where it was loaded.
    """

    code: bytes = field(repr=False)
    target: str
    entries: dict[str, Entry]
    problem: str
    config: str
    abi: int = ABI_VERSION
    needs: tuple[str, ...] = ()
    permissions: tuple[str, ...] = ()
    limits: dict[str, float] = field(default_factory=dict)
    requirements: Requirements = FIXED
    notes: dict[str, str] = field(default_factory=dict)
    address_bits: int = 64
    plan: Any = field(default=None, compare=False, repr=False)

    @property
    def is_for_device(self) -> bool:
        """Whether a device runs the entries."""
        return self.entries["main"].launch.kind == "grid"

    @cached_property
    def steps(self) -> dict[str, Entry]:
        """The entries of every call, in order."""
        return {name: entry for name, entry in self.entries.items() if not entry.packing}

    @cached_property
    def packs(self) -> dict[str, tuple[str, ...]]:
        """Names of the packing entries, in order, by the tensor that they pack."""
        packing_entries: dict[str, tuple[str, ...]] = {}
        for name, entry in self.entries.items():
            if entry.packing:
                of = next(a.of for a in entry.arguments if a.role == "packed")
                packing_entries[of] = (*packing_entries.get(of, ()), name)
        return packing_entries

    def passed_on(self, operand: str) -> tuple[Argument, ...]:
        """Return the arrays that a packing entry of `operand` passes on to the next one, and that no step reads."""
        read = {a.name for entry in self.steps.values() for a in entry.arguments}
        written = {a.name: a for name in self.packs[operand] for a in self.entries[name].arguments if a.of == operand}
        return tuple(a for a in written.values() if a.name not in read)

    def to_bytes(self) -> bytes:
        """Return the file form, the content with its SHA-256; inverse of `from_bytes`."""
        content = self.content()
        return content + _digest(content)

    def content(self) -> bytes:
        """Return the file form without a checksum; inverse of `of_content`."""
        manifest = {
            "target": self.target,
            "entries": [[name, encoded(entry)] for name, entry in self.entries.items()],  # in order
            "problem": self.problem,
            "config": self.config,
            "abi": self.abi,
            "needs": list(self.needs),
            "permissions": list(self.permissions),
            "limits": self.limits,
            "requirements": [list(pair) for pair in self.requirements.sizes],
            "notes": self.notes,
            "address_bits": self.address_bits,
        }
        header = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
        return b"".join((_MAGIC, len(header).to_bytes(4, "little"), header, self.code))

    @staticmethod
    def from_bytes(data: bytes) -> Artifact:
        """Return the artifact of a file form. UsageError (code `bad-artifact`) if it is damaged or of another ABI
        version.
        """
        _check_begin(data)
        content, digest = data[:-_DIGEST], data[-_DIGEST:]
        if _digest(content) != digest:
            raise _bad(f"artifact of {len(data)} bytes is damaged: its checksum differs")
        return Artifact.of_content(content)

    @staticmethod
    def of_content(data: bytes) -> Artifact:
        """Return the artifact of a content. UsageError (code `bad-artifact`) as from `from_bytes`.

        Every field has the type that `Artifact` declares, whatever the bytes are.
        """
        _check_begin(data)
        start = len(_MAGIC) + 4
        end = start + int.from_bytes(data[len(_MAGIC) : start], "little")
        try:
            manifest = json.loads(data[start:end])
            if isinstance(manifest, dict) and manifest.get("abi", ABI_VERSION) != ABI_VERSION:
                raise _bad(f"artifact has ABI version {manifest['abi']!r:.80}; this convsmith runs {ABI_VERSION}")
            head = decoder(_Manifest)(manifest)
            entries = _entries(head.entries)
            requirements = _requirements(head.requirements)
        except (ValueError, RecursionError) as error:
            raise _bad(f"artifact of {len(data)} bytes is damaged: its manifest is not legal: {error}") from None
        except UsageError as error:
            raise _bad(error.message) from None
        return Artifact(**{**vars(head), "code": data[end:], "entries": entries, "requirements": requirements})


def _digest(content: bytes) -> bytes:
    with import_lock:  # loading a network needs no digest, and its import takes 3 ms
        from hashlib import sha256

    return sha256(content).digest()


def _check_begin(data: bytes) -> None:
    if not data.startswith(_MAGIC):
        raise _bad(f"{len(data)} bytes that do not begin with {_MAGIC!r} are not an artifact")


def _bad(message: str) -> UsageError:
    return UsageError(message, code="bad-artifact")


def _entries(pairs: tuple[tuple[Any, ...], ...]) -> dict[str, Entry]:
    """Return the entries by name, in order. ValueError if an entry that calls need is missing."""
    entries = {}
    for pair in pairs:
        if len(pair) != 2 or type(pair[0]) is not str:
            raise ValueError(f"{pair!r:.80} is no entry with its name")
        entries[pair[0]] = entry = decoder(Entry)(pair[1])
        if entry.packing and all(a.role != "packed" for a in entry.arguments):
            raise ValueError(f"entry {pair[0]} packs nothing")
    if "main" not in entries:
        raise ValueError("no entry main")
    return entries


def _requirements(pairs: tuple[tuple[Any, ...], ...]) -> Requirements:
    for pair in pairs:
        if len(pair) != 2 or type(pair[0]) is not str or not (pair[1] is None or type(pair[1]) is int):
            raise ValueError(f"{pair!r:.80} is no name of a dim with its size")
    return Requirements(tuple((name, size) for name, size in pairs))
