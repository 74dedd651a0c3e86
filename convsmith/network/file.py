"""Files of networks: machine code and packed weights, which a process maps and runs.

    magic, bytes of the header, the header (JSON), SHA-256 of all these bytes and of the code
    the code: artifacts, one after the other
    the weights, from a multiple of 4096 bytes on

Nothing in a file is unpickled. Its code runs in the process that loads it, as that of any library does.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import zlib
from itertools import pairwise

import numpy as np

from convsmith.codegen.artifact import Artifact
from convsmith.codegen.decode import decoder, encoded
from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.diag.files import open_regular
from convsmith.diag.printable import printable
from convsmith.diag.record import record
from convsmith.network.image import ImageStep, NetworkImage, NetworkValue
from convsmith.runtime.arrays import Array
from convsmith.runtime.host import obstacle

__all__ = ["load_image", "save_image"]

_MAGIC = b"convsmith network 3\n"
_DIGEST = hashlib.sha256().digest_size
_PAGE = 4096
_CHUNK = 1 << 24
"""Bytes of weights that share a checksum."""
_LARGEST_HEAD = 1 << 28
"""Most bytes of a header, and of all code."""


@record(frozen=True)
class _Head:
    """The header: the fields of an image, sizes of artifacts (the driver first), and checksums of the weights."""

    name: str
    inputs: tuple[NetworkValue, ...]
    outputs: tuple[NetworkValue, ...]
    workspace: int
    bound: int
    kernels: tuple[int, ...]
    entries: tuple[str, ...]
    steps: tuple[ImageStep, ...]
    code: tuple[int, ...]
    weights: int
    checksums: tuple[int, ...]


def save_image(image: NetworkImage, path: str | os.PathLike[str]) -> None:
    """Write an image to the file `path`. UsageError if it cannot be written."""
    code = [x.to_bytes() for x in (image.driver, *image.kernels)]
    head = _Head(
        image.name, image.inputs, image.outputs, image.workspace, image.bound, tuple(n for n, _ in image.table),
        tuple(name for _, name in image.table), image.steps, tuple(map(len, code)), image.weights.size,
        tuple(_checksums(image.weights)),
    )  # fmt: skip
    text = json.dumps(encoded(head), separators=(",", ":")).encode()
    start = b"".join((_MAGIC, len(text).to_bytes(8, "little"), text))
    whole = b"".join((start, hashlib.sha256(b"".join((start, *code))).digest(), *code))
    try:
        with open(path, "wb") as file:
            file.write(whole)
            file.write(bytes(-len(whole) % _PAGE))
            file.write(image.weights.tobytes())
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{printable(os.fspath(path))}: cannot be written: {why}", code="bad-file") from None


def load_image(path: str | os.PathLike[str]) -> NetworkImage:
    """Return the image in the file `path`, whose weights are mapped.

    UsageError if it is no such file, or is damaged; UnsupportedError if this CPU cannot run its code.
    """
    name = printable(os.fspath(path))
    try:
        with open_regular(path) as file:
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise UsageError(f"{name}: there is no such file", code="bad-file") from None
    except (OSError, ValueError) as error:  # ValueError: an empty file, or a name with a zero byte
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{name}: cannot be read: {why}", code="bad-file") from None
    try:
        return _decoded(memory)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name}: is damaged: {error}", code="bad-network") from None
    except UsageError as error:
        raise UsageError(f"{name}: is damaged: {error.message}", code="bad-network") from None
    except UnsupportedError as error:
        raise UnsupportedError(f"{name}: {error.message}", code=error.code) from None


def _decoded(memory: mmap.mmap) -> NetworkImage:
    """Return the image in memory. ValueError if it is damaged."""
    first = len(_MAGIC) + 8
    if memory[: len(_MAGIC)] != _MAGIC:
        raise ValueError("it does not begin as a file that `save` of this version writes")
    end = first + int.from_bytes(memory[len(_MAGIC) : first], "little")
    if not first < end <= min(len(memory), _LARGEST_HEAD):
        raise ValueError(f"its header ends at byte {end} of {len(memory)}")
    try:
        head: _Head = decoder(_Head)(json.loads(memory[first:end]))
    except UnicodeDecodeError as error:
        raise ValueError(f"its header is no text: {error}") from None
    starts = [end + _DIGEST]
    for size in head.code:
        starts.append(starts[-1] + size)
    weights = starts[-1] + -starts[-1] % _PAGE
    if min(head.code, default=-1) < 0 or head.weights < 0 or len(memory) != weights + head.weights:
        raise ValueError(f"it has {len(memory)} bytes; its header announces {weights + head.weights}")
    digest = hashlib.sha256(memory[:end])
    digest.update(memory[end + _DIGEST : starts[-1]])
    if digest.digest() != memory[end : end + _DIGEST]:
        raise ValueError("the checksum of its code differs")
    driver, *kernels = (Artifact.from_bytes(memory[a:b]) for a, b in pairwise(starts))
    for artifact in (driver, *kernels):
        if why := obstacle(artifact):
            raise UnsupportedError(why, code="target")
    table = tuple(zip(head.kernels, head.entries))
    if any(not 0 <= n < len(kernels) or entry not in kernels[n].entries for n, entry in table):
        raise ValueError("its table names a kernel that it does not have")
    held = np.frombuffer(memory, np.uint8, head.weights, weights) if head.weights else np.zeros(0, np.uint8)
    if tuple(_checksums(held)) != head.checksums:
        raise ValueError("the checksum of its weights differs")
    return NetworkImage(
        head.name, head.inputs, head.outputs, head.workspace, head.bound, table, head.steps, driver, tuple(kernels),
        held,
    )  # fmt: skip


def _checksums(weights: Array) -> list[int]:
    """Return a checksum of each chunk: the CRC-32 of the sums of its pages, and of the bytes after the last page.

    A sum of words takes a fifth of the time of a CRC-32 of the bytes.
    """
    found = []
    for n in range(0, weights.size, _CHUNK):
        chunk = weights[n : n + _CHUNK]
        end = chunk.size - chunk.size % _PAGE
        sums = chunk[:end].view(np.uint64).reshape(-1, _PAGE // 8).sum(1)
        found.append(zlib.crc32(chunk[end:].data, zlib.crc32(sums.data)))
    return found


