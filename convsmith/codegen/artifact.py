"""The artifact: object code and the manifest of how to call it. All that a run time ever sees of a kernel.

The object holds, for each `Entry`, two functions:

    void symbol(ptr block)                           the whole entry
    void symbol_chunk(ptr block, i64 tid, i64 n)     part tid of n of it, 0 <= tid < n

`block` points to 64-bit addresses in the order of `Entry.arguments`. The n parts may run in any order, at the same
time, and on any threads. With `threads == 1`, `symbol` is `symbol_chunk(block, 0, 1)`; else it asks an OpenMP runtime
(`GOMP_parallel`) for `threads` threads and takes tid and n from `omp_get_thread_num` and `omp_get_num_threads`, so
1 <= n <= threads.

The file form is a magic word, the length of a JSON header, the header, the object code, and the SHA-256 of all that
stands before it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from convsmith.diag.errors import UsageError

__all__ = ["ABI_VERSION", "Argument", "Artifact", "Entry", "Role"]

ABI_VERSION = 1
"""Version of the calling convention above. Artifacts of another version are not run."""

Role = Literal["src", "wei", "bia", "dst", "packed", "scratch"]

_MAGIC = b"convsmith\x00\x01\x00"
_DIGEST = hashlib.sha256().digest_size


@dataclass(frozen=True)
class Argument:
    """One address of the argument block.

    `shape` is logical, `layout` a tag or block text of that shape, `size` the elements of memory (padding included).
    A `scratch` argument is memory private to one call: `size` elements for each thread, part tid using its own.
    """

    name: str
    role: Role
    dtype: str
    shape: tuple[int, ...]
    layout: str
    size: int
    writes: bool

    def __post_init__(self) -> None:
        if self.role not in get_args(Role):
            raise UsageError(f"argument {self.name}: role {self.role!r} is not one of {', '.join(get_args(Role))}")


@dataclass(frozen=True)
class Entry:
    """One callable of the object code: its symbol, its arguments in order, and how many threads it was made for."""

    symbol: str
    arguments: tuple[Argument, ...]
    threads: int = 1

    @property
    def chunk_symbol(self) -> str:
        """The function that runs one part of the entry."""
        return f"{self.symbol}_chunk"


@dataclass(frozen=True)
class Artifact:
    """Object code (ELF, relocatable) with its manifest.

    `entries` has "main", and "pack" where weights are packed. `needs`: CPU features (LLVM's names) without
    which the code must not run. `needs_finite_weights`: the kernel multiplies stored
    zeros, so weights with infinities or NaN must run through another one. `notes` are texts for people and for the
    run time ("packing": two kernels with the same text read the same packed weights).
    """

    code: bytes = field(repr=False)
    isa: str
    entries: dict[str, Entry]
    problem: str
    config: str
    abi: int = ABI_VERSION
    needs: tuple[str, ...] = ()
    needs_finite_weights: bool = False
    notes: dict[str, str] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """The file form; `from_bytes` is the exact inverse."""
        manifest = {
            "isa": self.isa,
            "entries": {name: asdict(entry) for name, entry in self.entries.items()},
            "problem": self.problem,
            "config": self.config,
            "abi": self.abi,
            "needs": list(self.needs),
            "needs_finite_weights": self.needs_finite_weights,
            "notes": self.notes,
        }
        header = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
        body = b"".join((_MAGIC, len(header).to_bytes(4, "little"), header, self.code))
        return body + hashlib.sha256(body).digest()

    @staticmethod
    def from_bytes(data: bytes) -> Artifact:
        """Read the file form. UsageError (code `bad-artifact`) when it is not whole, or of another ABI version."""
        if not data.startswith(_MAGIC):
            raise _bad(f"{len(data)} bytes that do not begin with {_MAGIC!r} are not an artifact")
        body, digest = data[:-_DIGEST], data[-_DIGEST:]
        if hashlib.sha256(body).digest() != digest:
            raise _bad(f"artifact of {len(data)} bytes is damaged: its checksum differs")
        start = len(_MAGIC) + 4
        end = start + int.from_bytes(body[len(_MAGIC) : start], "little")
        manifest = json.loads(body[start:end])
        if manifest["abi"] != ABI_VERSION:
            raise _bad(f"artifact has ABI version {manifest['abi']}; this convsmith runs {ABI_VERSION}")
        manifest["needs"] = tuple(manifest["needs"])
        manifest["entries"] = {name: _entry(entry) for name, entry in manifest["entries"].items()}
        return Artifact(code=body[end:], **manifest)


def _bad(message: str) -> UsageError:
    return UsageError(message, code="bad-artifact")


def _entry(fields: dict[str, Any]) -> Entry:
    arguments = tuple(Argument(**{**argument, "shape": tuple(argument["shape"])}) for argument in fields["arguments"])
    return Entry(fields["symbol"], arguments, fields["threads"])
