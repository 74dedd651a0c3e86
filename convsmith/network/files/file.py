"""Files of networks: machine code and packed weights, which a process maps and runs.

    magic, bytes of the header, the header (JSON), CRC-32 of all these bytes and of the code
    the code: artifacts, one after the other, those of each plan after those of the plan before
    the weights, from a multiple of 4096 bytes on

Nothing in a file is unpickled. Its code runs in the process that loads it, as that of any library does.
"""

from __future__ import annotations

import json
import mmap
import os
import zlib
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from convsmith.codegen.artifact import Artifact
from convsmith.codegen.decode import decoder, encoded
from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.diag.files import open_regular, whole_file
from convsmith.diag.printable import printable
from convsmith.diag.record import record
from convsmith.ir.types import DTYPES
from convsmith.network.image import (
    BEFORE,
    OUTSIDE,
    ImageStep,
    NetworkForm,
    NetworkImage,
    NetworkValue,
    tensor_arguments,
)
from convsmith.runtime.all_cpus import on_other_cpus
from convsmith.runtime.arrays import Array
from convsmith.runtime.host import obstacle

__all__ = ["load_image", "load_images", "save_image", "save_images"]

_MAGIC = b"convsmith network 4\n"
_CRC = 4
_PAGE = 4096
_CHUNK = 1 << 24
"""Bytes of weights that share a checksum."""
_MOST_DIGITS = 18
"""Most digits of a size."""
_LARGEST_HEAD = 1 << 28
"""Most bytes of a header, and of all code."""


@record(frozen=True)
class _PlanHead:
    """The fields of an image, the sizes of its artifacts (the driver first), and the bytes of weights that it reads."""

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


@record(frozen=True)
class _Head:
    """The header: a head for each plan, the form of a network of several sizes, and checksums of the weights."""

    plans: tuple[_PlanHead, ...]
    form: NetworkForm
    weights: int
    checksums: tuple[int, ...]


def save_image(image: NetworkImage, path: str | os.PathLike[str]) -> None:
    """Write an image to the file `path`. UsageError if it cannot be written."""
    save_images([image], NetworkForm(), path)


def save_images(images: Sequence[NetworkImage], form: NetworkForm, path: str | os.PathLike[str]) -> None:
    """Write the images of a network for several sizes to the file `path`; the weights of each are the first of one
    area. UsageError if the file cannot be written.
    """
    artifacts = [[x.content() for x in (image.driver, *image.kernels)] for image in images]
    code = [x for own in artifacts for x in own]
    largest = max((image.weights for image in images), key=lambda x: x.size)
    heads = tuple(
        _PlanHead(
            image.name, image.inputs, image.outputs, image.workspace, image.bound, tuple(n for n, _ in image.table),
            tuple(name for _, name in image.table), image.steps, tuple(map(len, own)), image.weights.size,
        )
        for image, own in zip(images, artifacts)
    )  # fmt: skip
    checksums = tuple(_checksum(largest[n : n + _CHUNK]) for n in range(0, largest.size, _CHUNK))
    head = _Head(heads, form, largest.size, checksums)
    text = json.dumps(encoded(head), separators=(",", ":")).encode()
    start = b"".join((_MAGIC, len(text).to_bytes(8, "little"), text))
    whole = b"".join((start, _crc(start, *code), *code))
    try:
        with whole_file(path) as file:
            file.write(whole)
            file.write(bytes(-len(whole) % _PAGE))
            file.write(largest.tobytes())
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{printable(os.fspath(path))}: cannot be written: {why}", code="bad-file") from None


def load_image(path: str | os.PathLike[str]) -> NetworkImage:
    """Return the first image in the file `path`, whose weights are mapped. Errors are those of `load_images`."""
    return load_images(path)[0][0]


def load_images(path: str | os.PathLike[str]) -> tuple[tuple[NetworkImage, ...], NetworkForm]:
    """Return the images in the file `path`, whose weights are mapped, and the form of a network of several sizes.

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


def _decoded(memory: mmap.mmap) -> tuple[tuple[NetworkImage, ...], NetworkForm]:
    """Return the images in memory. ValueError if it is damaged."""
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
    sizes = [size for plan in head.plans for size in plan.code]
    starts = [end + _CRC]
    for size in sizes:
        starts.append(starts[-1] + size)
    weights = starts[-1] + -starts[-1] % _PAGE
    if min((*sizes, head.weights), default=-1) < 0 or len(memory) != weights + head.weights:
        raise ValueError(f"it has {len(memory)} bytes; its header announces {weights + head.weights}")
    if _crc(memory[:end], memory[end + _CRC : starts[-1]]) != memory[end : end + _CRC]:
        raise ValueError("the checksum of its code differs")
    held = np.frombuffer(memory, np.uint8, head.weights, weights) if head.weights else np.zeros(0, np.uint8)
    checksums: dict[int, int] = {}
    firsts = range(0, held.size, _CHUNK)
    with on_other_cpus(lambda n: checksums.update({n: _checksum(held[n : n + _CHUNK])}), firsts):
        _check_form(head)
        places = iter(pairwise(starts))
        images = tuple(_image(plan, memory, [next(places) for _ in plan.code], held) for plan in head.plans)
    if tuple(checksums[n] for n in firsts) != head.checksums:
        raise ValueError("the checksum of its weights differs")
    return images, head.form


def _check_form(head: _Head) -> None:
    """Raise ValueError unless each plan has the inputs of the network, and a network of one size has one plan."""
    form, count = head.form, len(head.plans)
    if count < 1 or (count > 1 and not form.names) or len(form.names) != len(form.dims):
        raise ValueError(f"it has {count} plans for {len(form.names)} inputs of several sizes")
    if any(dim.isdecimal() and len(dim) > _MOST_DIGITS for dims in form.dims for dim in dims):
        raise ValueError(f"a size has more than {_MOST_DIGITS} digits")
    for plan in head.plans if form.names else ():
        own = tuple(x.name for x in plan.inputs)
        if own != form.names or any(len(x.shape) != len(dims) for x, dims in zip(plan.inputs, form.dims)):
            raise ValueError("its plans have other inputs than the network")


def _image(plan: _PlanHead, memory: mmap.mmap, places: Sequence[tuple[int, int]], weights: Array) -> NetworkImage:
    """Return the image of a plan whose artifacts are at `places`."""
    if not places or not 0 <= plan.weights <= weights.size:
        raise ValueError(f"a plan has {len(places)} artifacts and {plan.weights} of {weights.size} bytes of weights")
    driver, *kernels = (Artifact.of_content(memory[a:b]) for a, b in places)
    for artifact in (driver, *kernels):
        if why := obstacle(artifact):
            raise UnsupportedError(why, code="target")
    _check_driver(plan, driver)
    table = tuple(zip(plan.kernels, plan.entries))
    if len(plan.kernels) != len(plan.entries):
        raise ValueError(f"its table has {len(plan.kernels)} kernels for {len(plan.entries)} entries")
    if any(not 0 <= n < len(kernels) or entry not in kernels[n].entries for n, entry in table):
        raise ValueError("its table names a kernel that it does not have")
    if len({*table}) < len(table):
        raise ValueError("its table names an entry of a kernel twice")
    return NetworkImage(
        plan.name, plan.inputs, plan.outputs, plan.workspace, plan.bound, table, plan.steps, driver, tuple(kernels),
        weights[: plan.weights],
    )  # fmt: skip


def _check_driver(plan: _PlanHead, driver: Artifact) -> None:
    """Raise ValueError unless the function of a plan takes its inputs, outputs and workspace."""
    values = (*plan.inputs, *plan.outputs)
    if len({x.name for x in values}) < len(values) or any(x.outside not in ("", *OUTSIDE) for x in values):
        raise ValueError("two values of a plan have one name, or a type of callers is unknown")
    if any(x.type not in DTYPES or min(x.shape, default=1) < 1 for x in values):
        raise ValueError("a value of a plan has a size below 1, or an unknown type")
    given = driver.entries["main"].arguments
    own = [(x.role, x.dtype, x.shape) for x in tensor_arguments(plan.inputs, plan.outputs)]
    if len(given) < BEFORE or [(x.role, x.dtype, x.shape) for x in given[BEFORE:]] != own:
        raise ValueError("its function takes other arrays than its header states")
    if (given[0].size, given[1].size, given[2].size) != (
        2 * max(len(plan.kernels), 1), max(plan.weights, 1), plan.workspace,
    ):  # fmt: skip
        raise ValueError("its function takes other memory than its header states")


def _crc(*parts: bytes) -> bytes:
    """Return the CRC-32 of bytes in several parts."""
    found = 0
    for part in parts:
        found = zlib.crc32(part, found)
    return found.to_bytes(_CRC, "little")


def _checksum(chunk: Array) -> int:
    """Return the CRC-32 of the sums of a chunk's pages, and of the bytes after the last page.

    A sum of words takes a fifth of the time of a CRC-32 of the bytes.
    """
    end = chunk.size - chunk.size % _PAGE
    sums = chunk[:end].view(np.uint64).reshape(-1, _PAGE // 8).sum(1)
    return zlib.crc32(chunk[end:].data, zlib.crc32(sums.data))


