"""Arrays of a problem in guarded memory: what a kernel reads, and writes, beyond its elements is noticed.

Memory that belongs to no logical element holds what spoils a sum, and canaries surround every buffer.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Collection, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from convsmith.codegen.artifact import Argument, Artifact
from convsmith.codegen.binder import AddressMemory, Binder, element_type
from convsmith.layout.layout import Layout
from convsmith.problem import Problem, reference
from convsmith.problem.data import keep_within
from convsmith.problem.types import TYPES
from convsmith.runtime.host import HostLibrary

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]

MARGIN = 64
"""Elements of canary before and after each buffer."""


def canary(dtype: np.dtype[Any]) -> Any:
    """A number that no result is, as far as the type has one."""
    return dtype.type(30000 if dtype.kind not in "iu" else np.iinfo(dtype).max // 3 * 2)


def poison(dtype: np.dtype[Any]) -> Any:
    """A value that spoils every sum: NaN, or the largest number."""
    is_integer = dtype.kind in "iu" or dtype in (ml_dtypes.int4, ml_dtypes.uint4)
    return dtype.type(ml_dtypes.iinfo(dtype).max if is_integer else np.nan)


def expected(problem: Problem, arrays: Arrays) -> dict[str, Array]:
    """The logical outputs that the reference computes, each step rounded as in kernels."""
    with np.errstate(invalid="ignore"):
        return reference(problem, arrays, np.float64 if problem.acc == "f64" else np.float32)


def memory_of(x: Array, layout: Layout, slack: Any = None) -> Array:
    """The memory of a logical array in a layout; what belongs to no logical element holds ``slack``, or poison."""
    memory = np.full(layout.size, poison(x.dtype) if slack is None else slack, x.dtype)
    memory[places_of(layout)] = x.ravel()
    return memory


def places_of(layout: Layout) -> Array:
    """Offsets of all logical elements, in row-major order of their coordinates."""
    total = np.zeros(layout.shape, np.int64)
    for dim, size in enumerate(layout.shape):
        rest = np.arange(size)
        along = np.zeros(size, np.int64)
        for b in reversed(layout.blocks):
            if b.dim == dim:
                along += rest % b.size * b.stride
                rest = rest // b.size
        total += along.reshape([-1 if n == dim else 1 for n in range(len(layout.shape))])
    return total.ravel()


def padding_lanes(layout: Layout) -> Array:
    """Offsets of the elements that the blocks hold beyond the shape: zero in a result."""
    full = Layout(layout.padded_shape, layout.blocks)
    inside = np.zeros(layout.size, bool)
    inside[places_of(layout)] = True
    every = places_of(full)
    return every[~inside[every]]


def memories(problem: Problem, arrays: Arrays) -> dict[str, Array]:
    """Memory of every array of a problem; canaries stand where outputs shall come."""
    found = {}
    for t in problem.tensors:
        dtype = TYPES[t.dtype].numpy
        if t.role == "out":
            found[t.name] = np.full(t.layout.size, canary(dtype), dtype)
        else:
            found[t.name] = memory_of(arrays[t.name], t.layout, None if t.role == "in" else canary(dtype))
    return found


def logical(problem: Problem, memory: Arrays, name: str | None = None) -> Array:
    """A logical array within its memory, by default that of the first output."""
    t = problem.outputs[0] if name is None else problem.tensor(name)
    return memory[t.name][places_of(t.layout)].reshape(t.shape)


def check_result(problem: Problem, memory: Arrays, truth: Arrays, names: Collection[str] = ()) -> None:
    """Every logical element of the outputs is exact, lanes of padding are zero, and nothing else has changed.

    ``names`` are the outputs that are meant, by default all.
    """
    for t in (t for t in problem.outputs if not names or t.name in names):
        got, right = (x.astype(np.float64) for x in (logical(problem, memory, t.name), truth[t.name]))
        wrong = np.argwhere((got != right) & ~(np.isnan(got) & np.isnan(right)))
        assert not len(wrong), (
            f"{t.name}: {len(wrong)} of {got.size} wrong, first {tuple(map(int, wrong[0]))}: "
            f"{got[tuple(wrong[0])]}, not {right[tuple(wrong[0])]}"
        )
        found = memory[t.name]
        lanes = found[padding_lanes(t.layout)]
        assert (lanes == 0).all(), f"{t.name}: lanes of padding hold {lanes[lanes != 0][:4]}"
        rest = np.ones(len(found), bool)
        rest[places_of(t.layout)] = False
        rest[padding_lanes(t.layout)] = False
        assert (found[rest] == canary(found.dtype)).all(), f"{t.name}: elements between the logical ones changed"


def held_type(a: Argument) -> np.dtype[Any]:
    """The type of the elements of a packed argument, or of bytes where elements share them."""
    dtype = TYPES[a.dtype].numpy
    return dtype if a.nbytes == a.size * dtype.itemsize else np.dtype(np.uint8)


class Guarded:
    """Memory with a margin on both sides that must not change."""

    def __init__(self, contents: Array, margin: Any) -> None:
        self.whole = np.full(len(contents) + 2 * MARGIN, margin, contents.dtype)
        self.inside = self.whole[MARGIN : MARGIN + len(contents)]
        self.inside[:] = contents
        self.before = self.whole.copy()

    @property
    def address(self) -> int:
        return self.inside.ctypes.data

    @property
    def same(self) -> Array:
        """A mask of the elements that hold the same bits as at first."""
        word = f"u{self.whole.itemsize}"
        return np.asarray(self.whole.view(word) == self.before.view(word))

    def check_margin(self, name: str) -> None:
        same = self.same
        same[MARGIN : MARGIN + len(self.inside)] = True
        assert same.all(), f"{name}: elements {np.flatnonzero(~same) - MARGIN} beyond its {len(self.inside)} changed"

    def check_unchanged(self, name: str) -> None:
        assert self.same.all(), f"{name} was written to"


class Compiled:
    """An artifact in this process, called with poison in all slack and canaries around all buffers."""

    def __init__(self, problem: Problem, artifact: Artifact) -> None:
        self.problem, self.artifact = problem, artifact
        self.library = HostLibrary(artifact)

    def __call__(self, arrays: Arrays, chunks: int = 0) -> dict[str, Array]:
        """The memory of the outputs, for logical inputs, which are clipped to the limits of the artifact.

        Fails where an input changes, or what lies around a buffer. With ``chunks`` the tasks run as that many chunks,
        last one first, instead of through the entries.
        """
        keep_within(self.artifact.limits, arrays)
        outputs = [t.name for t in self.problem.outputs]
        buffers = {
            name: Guarded(x, (canary if name in outputs else poison)(x.dtype))
            for name, x in memories(self.problem, arrays).items()
        }
        for names in self.artifact.packs.values():
            for name in names:
                self._pack(name, buffers)
        for name in self.artifact.steps:
            self._call(name, buffers, chunks)
        arguments = [a for entry in self.artifact.steps.values() for a in entry.arguments]
        own = {a.name for a in arguments if a.role in ("scratch", "shared")}
        for name, b in buffers.items():
            if name in outputs or name in own:
                b.check_margin(name)
            else:
                b.check_unchanged(name)
        return {name: buffers[name].inside for name in outputs}

    def _pack(self, entry: str, buffers: dict[str, Guarded]) -> None:
        """Run a packing entry twice, into memory that holds something else: what it leaves out differs."""
        made = [a for a in self.artifact.entries[entry].arguments if a.role == "packed" and a.name not in buffers]
        runs = []
        for fill in (1, 2):
            for a in made:
                dtype = held_type(a)
                buffers[a.name] = Guarded(np.full(a.nbytes // dtype.itemsize, fill, dtype), canary(dtype))
            self._call(entry, buffers)
            for a in made:
                buffers[a.name].check_margin(a.name)
            runs.append([buffers[a.name].inside for a in made])
        for a, one, two in zip(made, *runs):
            dtype = held_type(a)
            assert one.tobytes() == two.tobytes(), f"{entry} leaves elements of {a.name} out"
            finite = dtype.kind in "iu" or not np.isnan(one.astype(np.float64)).any()
            operand = logical(self.problem, {a.of: buffers[a.of].inside}, a.of)
            assert finite or np.isnan(operand.astype(np.float64)).any(), f"{a.name} holds slack"
            buffers[a.name] = Guarded(one, poison(dtype))

    def _call(self, name: str, buffers: dict[str, Guarded], chunks: int = 0) -> None:
        function = self.library[name]
        entry = function.entry
        words = (ctypes.c_uint64 * len(entry.arguments))()
        Binder(GuardedMemory(buffers), {n: b.address for n, b in buffers.items()}).bind(entry, words)
        address = ctypes.addressof(words)
        if not chunks:
            function(address)
        for part in reversed(range(chunks)):
            function._chunk(address, part, chunks)


class GuardedMemory(AddressMemory):
    """Memory of a kernel's own among other buffers, by name: canaries surround it."""

    def __init__(self, buffers: dict[str, Guarded]) -> None:
        self._buffers = buffers

    def reserve(self, argument: Argument, elements: int) -> int:
        dtype, written = element_type(argument), argument.role not in ("table", "zero")
        made = Guarded(np.full(elements, canary(dtype), dtype), canary(dtype) if written else poison(dtype))
        self._buffers[argument.name] = made
        return made.address

    def read(self, place: int, nbytes: int) -> bytes:
        return ctypes.string_at(place, nbytes)

    def write(self, place: int, contents: Array) -> None:
        made = next(b for b in self._buffers.values() if b.address == place)
        made.inside[:] = contents.ravel()
        made.before = made.whole.copy()


class PageEnd:
    """Copies that end where a page begins that cannot be read."""

    def __init__(self) -> None:
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.kept: list[mmap.mmap] = []

    def __call__(self, x: Array) -> Array:
        page = mmap.PAGESIZE
        whole = -(-max(x.nbytes, 1) // page) * page
        m = mmap.mmap(-1, whole + page)
        start = ctypes.addressof(ctypes.c_char.from_buffer(m))
        assert not self.libc.mprotect(ctypes.c_void_p(start + whole), ctypes.c_size_t(page), 0)
        self.kept.append(m)
        out = np.frombuffer(m, np.uint8, x.nbytes, whole - x.nbytes).view(x.dtype).reshape(x.shape)
        out[...] = x
        return out
