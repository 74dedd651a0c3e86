"""oneDNN's C interface: handles, memory descriptors, memory, and primitives that run.

The library is a file of the package `onednn-cpu-gomp`, which has no Python module.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from convsmith.diag.errors import ToolchainError, UnsupportedError
from convsmith.diag.record import record
from convsmith.measure.peer import Array
from convsmith.problem.conv import Conv
from convsmith.runtime.arrays import aligned_copy, aligned_empty, numpy_dtype

__all__ = [
    "BIAS", "DST", "INFERENCE", "PACKAGE", "SRC", "STEPS", "TYPES", "WEIGHTS", "Handle", "OnednnLibrary",
    "OnednnMemory", "channels_last", "library_on", "packed_arguments", "row_major", "sizes_of", "weights_shape",
]  # fmt: skip

PACKAGE = "onednn-cpu-gomp"

_CPU, _IN_ORDER, _ANY = 1, 1, 1
TYPES = {"f16": 1, "bf16": 2, "f32": 3, "s32": 4, "s8": 5, "u8": 6}
"""oneDNN's numbers of the types of elements."""
_IMPLEMENTATION = 8
"""oneDNN's number of the query for the name of an implementation."""
SRC, WEIGHTS, BIAS, DST = 1, 33, 41, 17
"""oneDNN's numbers of the arguments of a forward convolution."""
INFERENCE = (96, 1)
"""oneDNN's numbers of forward inference and of a convolution without transforms."""
STEPS = {"relu": 0x20, "linear": 0x26, "clip": 0x2E, "clip_v2": 0x2F}
"""oneDNN's numbers of element-wise algorithms of post-ops."""
OVERRUN = 1 << 18
"""Bytes that belong to a memory object beyond its own size. oneDNN 3.2 rounds the pixels of a product of bytes with
zero points up to whole tiles of AMX, and writes all of them: 12 rows too many for an image of 6x6.
"""


class Handle(ctypes.c_void_p):
    """A pointer to an object of the library."""


class _Argument(ctypes.Structure):
    _fields_ = [("name", ctypes.c_int), ("memory", ctypes.c_void_p)]


@record(frozen=True)
class OnednnMemory:
    handle: Handle
    array: Array


class OnednnLibrary:
    """The C functions with an engine and a stream; a non-zero status raises ToolchainError."""

    def __init__(self, path: Path) -> None:
        self._functions = ctypes.CDLL(str(path))
        self._functions.dnnl_primitive_desc_query_md.restype = ctypes.c_void_p
        self._functions.dnnl_memory_desc_get_size.restype = ctypes.c_size_t
        self.engine = self.make("engine", "dnnl_engine_create", _CPU, ctypes.c_size_t(0))
        self.stream = self.make("stream", "dnnl_stream_create", self.engine, _IN_ORDER)
        self.execute = self._functions.dnnl_primitive_execute
        self.next = self._functions.dnnl_primitive_desc_next_impl

    def make(self, kind: str, name: str, *arguments: object) -> Handle:
        """Call a function that makes an object of a ``kind``, such as "primitive", and return its handle.

        The object, and the memory that a primitive works in, live as long as the handle.
        """
        handle = Handle()
        if status := getattr(self._functions, name)(ctypes.byref(handle), *arguments):
            raise ToolchainError(f"oneDNN: {name} returned {status}")
        destroy = getattr(self._functions, f"dnnl_{kind}_destroy")
        weakref.finalize(handle, destroy, ctypes.c_void_p(handle.value)).atexit = False
        return handle

    def check(self, name: str, *arguments: object) -> None:
        """Call a function that returns only a status."""
        if status := getattr(self._functions, name)(*arguments):
            raise ToolchainError(f"oneDNN: {name} returned {status}")

    def plain(self, shape: Sequence[int], strides: Sequence[int] | None, type_: str) -> Handle:
        """Return the memory descriptor of an array of `type_`; with `strides` None, the library chooses the layout."""
        dims = (ctypes.c_int64 * len(shape))(*shape)
        if strides is None:
            return self.make("memory_desc", "dnnl_memory_desc_create_with_tag", len(shape), dims, TYPES[type_], _ANY)
        steps = (ctypes.c_int64 * len(shape))(*strides)
        return self.make("memory_desc", "dnnl_memory_desc_create_with_strides", len(shape), dims, TYPES[type_], steps)

    def wanted(self, description: Handle, what: int, index: int = 0) -> Handle:
        """Return a clone of the memory descriptor that an implementation requires for the argument `what`, or for
        number `index`.

        The original is freed when `description` moves to its next implementation.
        """
        answer = ctypes.c_void_p(self._functions.dnnl_primitive_desc_query_md(description, what, index))
        return self.make("memory_desc", "dnnl_memory_desc_clone", answer)

    def is_reference(self, description: Handle) -> bool:
        """Return whether an implementation is the library's reference, which takes seconds where others take
        milliseconds.
        """
        name = ctypes.c_char_p()
        self.check("dnnl_primitive_desc_query", description, _IMPLEMENTATION, 0, ctypes.byref(name))
        return (name.value or b"").startswith(b"ref")

    def memory(self, description: Handle, array: Array | None = None) -> OnednnMemory:
        """Return a memory object for `array`, or for a new array if it is None."""
        if array is None:
            size = self._functions.dnnl_memory_desc_get_size(description)
            array = aligned_empty(size + OVERRUN)[:size]
        address = ctypes.c_void_p(array.ctypes.data)
        return OnednnMemory(self.make("memory", "dnnl_memory_create", description, self.engine, address), array)

    def run(self, primitive: Handle, arguments: Mapping[int, OnednnMemory]) -> None:
        """Execute a primitive once."""
        packed = packed_arguments(arguments)
        if status := self.execute(primitive, self.stream, len(packed), packed):
            raise ToolchainError(f"oneDNN: dnnl_primitive_execute returned {status}")

    def placed(self, array: Array, shape: tuple[int, ...], type_: str, wanted: Handle) -> OnednnMemory:
        """Return a memory object with the elements of a logical `array` in the layout of the memory descriptor
        `wanted`.
        """
        form = self.plain(shape, row_major(shape), type_)
        plain = np.ascontiguousarray(array, numpy_dtype(type_)).reshape(shape)
        target = self.memory(wanted)
        self.reorder(self.memory(form, aligned_copy(plain)), form, target, wanted)
        return target

    def reorder(self, source: OnednnMemory, source_form: Handle, target: OnednnMemory, target_form: Handle) -> None:
        """Copy an array from one memory descriptor to another."""
        self.run(self.reordering(source_form, target_form), {SRC: source, DST: target})

    def reordering(self, source: Handle, target: Handle) -> Handle:
        """Return the primitive that copies from one memory descriptor to another."""
        ends = source, self.engine, target, self.engine
        description = self.make("primitive_desc", "dnnl_reorder_primitive_desc_create", *ends, None)
        return self.make("primitive", "dnnl_primitive_create", description)

    def is_same(self, one: Handle, other: Handle) -> bool:
        """Return whether two memory descriptors are equal."""
        return bool(self._functions.dnnl_memory_desc_equal(one, other))


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(np.prod(shape[n + 1 :])) for n in range(len(shape)))


def packed_arguments(arguments: Mapping[int, OnednnMemory]) -> ctypes.Array[_Argument]:
    """Return the arguments as the C array that the library takes."""
    pairs = [_Argument(name, memory.handle) for name, memory in arguments.items()]
    return (_Argument * len(pairs))(*pairs)


def channels_last(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of an array of images whose channels are contiguous."""
    image, *pixels, channel = row_major((shape[0], *shape[2:], shape[1]))
    return (image, channel, *pixels)


def weights_shape(conv: Conv) -> tuple[int, ...]:
    """Return (G, OC/G, IC/G, *K), with one group if the weights have no group dim."""
    return (conv.g, conv.oc // conv.g, conv.ic // conv.g, *conv.k)


def sizes_of(conv: Conv) -> list[ctypes.Array[ctypes.c_int64]]:
    """Return strides, dilations, front pads and back pads as the C arrays that describe a convolution."""
    return [(ctypes.c_int64 * conv.rank)(*values) for values in (conv.s, conv.d, conv.p, conv.pr)]


def library_on(threads: int) -> OnednnLibrary:
    """Return the library; its primitives run on ``threads``. UnsupportedError if it is not installed."""
    found = _library()
    _openmp().omp_set_num_threads(threads)
    return found


@cache
def _library() -> OnednnLibrary:
    files = metadata.files(PACKAGE) or []
    path = next((Path(str(f.locate())) for f in files if f.name.startswith("libdnnl.so")), None)
    if path is None or not path.exists():
        raise UnsupportedError(f"package {PACKAGE} has no libdnnl.so", code="library")
    return OnednnLibrary(path.resolve())


@cache
def _openmp() -> Any:
    """Return the OpenMP runtime with which the library is linked."""
    return ctypes.CDLL("libgomp.so.1")
