"""Depthwise micro-kernels as they are, with XNNPACK's contract: for those who drive them row by row themselves.

k = cs.micro_kernel("f32_dwconv_up16x9")
weights = k.pack(kernel, bias)                      # kernel (channels, taps)
rows = k.pointers(window, source, zero)             # a table of pointers into source
k(channels=c, output_width=w, input=rows, weights=weights, output=out, zero=zero, params=(low, high))
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from convsmith.build.micro_kernel import MEMORY, POINTS, sums_type
from convsmith.compiler.micro_kernel import micro_kernel_artifact
from convsmith.diag.errors import UsageError
from convsmith.layout.indirection import Table, Window, table
from convsmith.runtime.arrays import Array, address_of, aligned_empty, numpy_dtype
from convsmith.runtime.host import HostLibrary
from convsmith.schedule.micro_kernel import MicroKernel
from convsmith.target.registry import target

__all__ = ["HostMicroKernel", "Pointers", "Weights", "micro_kernel"]

POINTER = 8


@dataclass(frozen=True, eq=False)
class Weights:
    """Packed biases, weights and scales for kernels of one name, in the order in which they read them."""

    name: str
    channels: int
    kernel_size: int
    buffer: Array


@dataclass(frozen=True, eq=False)
class Pointers:
    """A table as addresses: of a source whose first element lies at `base`, and of zeros at `zero`."""

    table: Table
    base: int
    zero: int
    addresses: npt.NDArray[np.uint64]

    def row(self, number: int) -> npt.NDArray[np.uint64]:
        """The pointers of one row of outputs or section."""
        found: npt.NDArray[np.uint64] = self.addresses[number]
        return found


class HostMicroKernel:
    """A micro-kernel in this process. All strides, increments and offsets of a call are in bytes."""

    def __init__(self, m: MicroKernel, isa: str | None = None) -> None:
        self.kernel = m
        self.artifact = micro_kernel_artifact(m, target(isa))
        self._library = HostLibrary(self.artifact)
        self._memory = numpy_dtype(MEMORY[m.type].name)

    @property
    def name(self) -> str:
        return self.kernel.name

    def pack(self, kernel: Array, bias: Array, scale: Array | None = None) -> Weights:
        """Pack weights of shape (channels, taps), and a bias and a scale for each channel."""
        m = self.kernel
        if kernel.ndim != 2 or not kernel.shape[0]:
            raise UsageError(f"{m}: weights have the shape (channels, taps), not {kernel.shape}", code="bad-shape")
        channels, taps = kernel.shape
        pointers = m.pointers(taps)
        arrays = {"kernel": self._checked("kernel", kernel, self._memory, channels * taps)}
        bias_type = np.dtype(np.int32) if m.quantised else self._memory
        arrays["bias"] = self._checked("bias", bias, bias_type, channels)
        if m.quantised:
            if scale is None:
                raise UsageError(f"{m}: a scale for each channel is missing", code="missing-array")
            arrays["scale"] = self._checked("scale", scale, np.dtype(np.float32), channels)
        tiles = -(-channels // m.channel_tile)
        each = bias_type.itemsize + pointers * self._memory.itemsize + (4 if m.quantised else 0)
        arrays["weights"] = aligned_empty(tiles * m.channel_tile * each)
        self._run("pack", arrays, {"channels": channels, "kernel_size": taps})
        return Weights(m.name, channels, taps, arrays["weights"])

    def pointers(
        self, window: Window, source: Array, zero: Array, form: str = "sections", kernel_tile: int | None = None
    ) -> Pointers:
        """The table of a window over a source whose first element is the array's; what is absent points to `zero`."""
        tile = self.kernel.pointers(window.taps) if kernel_tile is None else kernel_tile
        t = table(window, form, tile)
        base, zeros = address_of(source), address_of(zero)
        return Pointers(t, base, zeros, t.pointers(base, zeros, self._memory.itemsize))

    def __call__(
        self, *, channels: int, output_width: int, input: Array | Pointers, weights: Weights, output: Array,
        input_stride: int | None = None, output_increment: int = 0, input_offset: int = 0, zero: Array,
        params: Sequence[float], buffer: Array | None = None, row: int = 0, source: Array | None = None,
    ) -> None:  # fmt: skip
        """Compute one row of outputs.

        `input` are addresses, or a table and the number of its row; with `source`, the array that it must point into.
        `params` are minimum and maximum; of quantised kernels the zero points of input, weights and output, and the
        output's minimum and maximum. `buffer` is for the sums of kernels of several passes.
        """
        m, item = self.kernel, self._memory.itemsize
        if isinstance(input, Pointers):
            input, input_stride = self._row(input, row, input_stride, source, zero, weights.kernel_size, output_width)
        if input_stride is None:
            raise UsageError(f"{m}: input_stride is missing: the bytes from one output's pointers to the next's",
                             code="missing-array")  # fmt: skip
        if weights.name != m.name or weights.channels != channels:
            raise UsageError(
                f"{m}: weights are packed for {weights.channels} channels of {weights.name}, not for {channels}",
                code="packed-elsewhere",
            )
        for name, size, unit in (
            ("input_stride", input_stride, POINTER), ("output_increment", output_increment, item),
            ("input_offset", input_offset, item),
        ):  # fmt: skip
            if size % unit or (name == "input_stride" and size < 0):
                raise UsageError(f"{m}: {name}={size}: expected bytes, a multiple of {unit}", code="bad-size")
        if channels < 1 or output_width < 0:
            raise UsageError(f"{m}: {channels} channels, {output_width} outputs: expected at least 1 and 0",
                             code="bad-size")  # fmt: skip
        if not output_width:
            return
        need = (output_width - 1) * (input_stride // POINTER) + m.pointers(weights.kernel_size)
        arrays = {"input": self._checked("input", input, np.dtype(np.uint64), need)}
        last = (output_width - 1) * (channels * item + output_increment) // item + channels
        arrays["output"] = self._checked("output", output, self._memory, last)
        arrays["zero"] = self._checked("zero", zero, self._memory, channels)
        arrays["weights"] = weights.buffer
        arrays["params"] = self._params(params)
        if m.multipass:
            sums = numpy_dtype(sums_type(m).name)
            if buffer is None:
                buffer = np.empty(channels, sums)
            arrays["buffer"] = self._checked("buffer", buffer, sums, channels)
        sizes = {
            "channels": channels, "output_width": output_width, "kernel_size": weights.kernel_size,
            "input_stride": input_stride, "output_increment": output_increment, "input_offset": input_offset,
        }  # fmt: skip
        self._run("main", arrays, sizes)

    def _row(
        self, given: Pointers, row: int, stride: int | None, source: Array | None, zero: Array, taps: int, width: int
    ) -> tuple[Array, int]:
        """The addresses of one row; UsageError where the table is another's."""
        m, t = self.kernel, given.table
        if source is not None and address_of(source) != given.base:
            raise UsageError(
                f"{m}: the table points into memory from {given.base:#x} on, and the source lies at "
                f"{address_of(source):#x}: make the pointers again, or give the distance as input_offset",
                code="pointers",
            )
        if address_of(zero) != given.zero:
            raise UsageError(f"{m}: the table points to zeros at {given.zero:#x}, not {address_of(zero):#x}",
                             code="pointers")  # fmt: skip
        own = t.input_stride * POINTER
        if t.window.taps != taps or t.kernel_tile != m.pointers(taps) or t.window.axes[-1].o < width:
            raise UsageError(
                f"{m}: the table is for {t.window.taps} taps in {t.kernel_tile} pointers and {t.window.axes[-1].o} "
                f"outputs; expected {taps} in {m.pointers(taps)} and {width}",
                code="table",
            )
        if not 0 <= row < len(given.addresses):
            raise UsageError(f"{m}: the table has {len(given.addresses)} rows, no row {row}", code="table")
        return given.row(row), own if stride is None else stride

    def _params(self, params: Sequence[float]) -> Array:
        m = self.kernel
        names = POINTS if m.quantised else ("minimum", "maximum")
        if len(params) != len(names):
            raise UsageError(f"{m}: params are {', '.join(names)}; {len(params)} were given", code="bad-params")
        return np.array(params, np.int32 if m.quantised else np.float32)

    def _checked(self, name: str, array: Array, dtype: np.dtype[np.generic], size: int) -> Array:
        if array.dtype != dtype or array.size < size or not array.flags.c_contiguous:
            raise UsageError(
                f"{self.kernel}: {name} has {array.size} elements of {array.dtype}; expected at least {size} of "
                f"{dtype}, one after the other",
                code="bad-array",
            )
        return array

    def _run(self, entry: str, arrays: dict[str, Array], sizes: dict[str, int]) -> None:
        function = self._library[entry]
        names = [a.name for a in function.entry.arguments]
        block = (ctypes.c_int64 * (len(names) + len(function.entry.sizes)))()
        for n, name in enumerate(names):
            block[n] = address_of(arrays[name]) if name in arrays else 0
        for n, name in enumerate(function.entry.sizes):
            block[len(names) + n] = sizes[name]
        function(ctypes.addressof(block))


@cache
def micro_kernel(name: str, isa: str | None = None) -> HostMicroKernel:
    """The micro-kernel of that name, such as `f32_dwconv_up16x9`, for a level of instructions (default: the best)."""
    return HostMicroKernel(MicroKernel.parse(name), isa)
