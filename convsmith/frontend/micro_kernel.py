"""Depthwise micro-kernels with XNNPACK's interface, for callers that run them row by row.

k = cs.micro_kernel("f32_dwconv_up16x9")
weights = k.pack(kernel, bias)                      # kernel (channels, rows, columns)
rows = k.pointers(window, source, zero)             # a table of pointers into source
for y in range(h):                                  # the call finds the pointers of row y, and their offset
    k(channels=c, output_width=w, input=rows, output_y=y, weights=weights, output=out[y], zero=zero, params=(low, high))

A call through such a table is checked: each pixel must lie in the source, and weights and table must order the taps
alike. A call with raw addresses reads wherever they point, unless it names the `source` into which they must point.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from convsmith.diag.errors import UsageError
from convsmith.diag.expect import shown
from convsmith.diag.record import record
from convsmith.frontend.micro_kernel_texts import MicroKernelTexts
from convsmith.frontend.micro_order import check_order, packed_order, taps_first
from convsmith.layout.block import ABSENT
from convsmith.layout.indirection import FORMS, Table, Window, table
from convsmith.machine import registry
from convsmith.problem.micro_kernel import MicroKernel
from convsmith.runtime.arrays import Array, address_of, aligned_empty, numpy_dtype, without_mask
from convsmith.runtime.host import HostLibrary
from convsmith.runtime.prepared_call import LoadedEntry, PreparedCall
from convsmith.statement.micro_kernel import MEMORY, POINTS, WEIGHTS, sums_type

__all__ = ["HostMicroKernel", "PointerTable", "Weights", "micro_kernel"]

ARGUMENTS = {"weights": (f"{WEIGHTS}_p",), "input": ("input", "source")}
"""Arguments of the entries by the caller's names. No code uses the address of the source, only the addresses of its
pixels.
"""
POINTER = 8
"""Bytes of a pointer."""
_LARGEST = 1 << 62
"""Upper limit of sizes in bytes, so that sums of two fit in 64 bits."""


@record(frozen=True, eq=False)
class Weights:
    """Packed biases, weights and scales for kernels of one name, in reading order.

    `kernel` holds the extents of the window for which the taps were packed, `order` is "row" or "column"; both are
    empty if the taps were passed as one axis.
    """

    name: str
    channels: int
    kernel_size: int
    buffer: Array
    kernel: tuple[int, ...] = ()
    order: str = ""


@record(frozen=True, eq=False)
class PointerTable:
    """A pointer table as addresses into `source`; absent entries point to `zero`."""

    table: Table
    source: Array
    zero: Array
    addresses: npt.NDArray[np.uint64]


class HostMicroKernel(MicroKernelTexts):
    """A micro-kernel in this process, with its texts. All strides, increments and offsets of a call are in bytes."""

    def __init__(self, m: MicroKernel, target: str | None = None) -> None:
        super().__init__(m, registry.target(target))
        self._library = HostLibrary(self.artifact)
        self._memory = numpy_dtype(MEMORY[m.type].name)
        self._calls: dict[tuple[str, ...], PreparedCall] = {}

    def pack(self, kernel: Array, bias: Array, scale: Array | None = None, form: str = "sections") -> Weights:
        """Return packed weights, with a bias and a scale per channel.

        Weights of the shape (channels, *window) are packed in the order of the taps in a table of that `form`. Weights
        of the shape (channels, taps) keep their order, which must be that of the pointers.
        """
        m = self.kernel
        self._check_form(form)
        self._check_array("kernel", kernel)
        if not 2 <= kernel.ndim <= 4 or 0 in kernel.shape:
            raise UsageError(
                f"{m}: kernel has the shape {kernel.shape}; legal are (channels, taps) and (channels, *window), "
                "none of them 0",
                code="bad-shape",
            )
        window, order = packed_order(kernel.shape, form)
        kernel = taps_first(kernel, order)
        channels, taps = kernel.shape
        pointers = m.pointers(taps)
        arrays = {"kernel": self._input("kernel", kernel, self._memory, channels * taps)}
        bias_type = np.dtype(np.int32) if m.quantised else self._memory
        arrays["bias"] = self._input("bias", bias, bias_type, channels)
        if m.quantised:
            if scale is None:
                raise UsageError(f"{m}: a scale for each channel is missing", code="missing-array")
            arrays["scale"] = self._input("scale", scale, np.dtype(np.float32), channels)
        elif scale is not None:
            raise UsageError(f"{m}: scale is given; a kernel that does not requantise has none", code="bad-array")
        arrays["weights"] = aligned_empty(self._packed_bytes(channels, pointers))
        self._run("pack", arrays, {"channels": channels, "kernel_size": taps})
        return Weights(m.name, channels, taps, arrays["weights"], window, order)

    def pointers(
        self, window: Window, source: Array, zero: Array, form: str = "sections", kernel_tile: int | None = None
    ) -> PointerTable:
        """Return the table of a window over a source whose first element is the array's; absent taps point to `zero`.

        UsageError if a pixel of the window is outside the source.
        """
        m = self.kernel
        if not isinstance(window, Window):
            raise UsageError(f"{m}: window is {window!r}; legal is a Window", code="bad-window")
        self._check_form(form)
        for name, array in (("source", source), ("zero", zero)):
            self._typed(name, array, self._memory)
        self._input("zero", zero, self._memory, 1)
        tile = m.pointers(window.taps) if kernel_tile is None else self._size("kernel_tile", kernel_tile, 1)
        t = table(window, form, tile)
        # Rows of a middle section move with a call's offset, so the last of them is farther than any entry.
        strides = zip(window.axes, window.strides)
        ends = [sorted((0, (axis.i - 1) * stride)) for axis, stride in strides if axis.i]
        if len(ends) == len(window.axes) and (t.entries != ABSENT).any():
            item = self._memory.itemsize
            start, end = _bounds(source)
            low, high = (address_of(source) + sum(end[n] for end in ends) * item for n in (0, 1))
            if low < start or high + item > end:
                extents = " x ".join(str(axis.i) for axis in window.axes)
                raise UsageError(
                    f"{m}: a window over {extents} pixels with strides {window.strides} reaches from element "
                    f"{(low - address_of(source)) // item} to {(high - address_of(source)) // item}; source has the "
                    f"shape {source.shape}, and ends after element {(end - address_of(source)) // item - 1}",
                    code="bad-window",
                )
        addresses = t.pointers(address_of(source), address_of(zero), self._memory.itemsize)
        return PointerTable(t, source, zero, addresses)

    def __call__(
        self, *, channels: int, output_width: int, input: Array | PointerTable, weights: Weights, output: Array,
        input_stride: int | None = None, output_increment: int = 0, input_offset: int = 0, zero: Array,
        params: Sequence[float], buffer: Array | None = None, output_y: int | Sequence[int] | None = None,
        source: Array | None = None,
    ) -> None:  # fmt: skip
        """Compute one row of outputs.

        `input` is an array of addresses, or a table. `output_y` is the row's coordinate, or its coordinates along the
        table's outer axes (default: zeros): the table determines the section, the row of pointers and the offset,
        to which `input_offset` is added. Every pixel that is read must lie in `source` (default: the source of the
        table); addresses without a `source` are not checked. `params` are minimum and maximum; for quantised kernels
        the zero points of input, weights and output, and the output's minimum and maximum. `buffer` holds the sums of
        kernels of several passes.

        UsageError for arrays and sizes that do not fit each other, for pixels outside the source, and for a row that
        the table does not have.
        """
        m, item = self.kernel, self._memory.itemsize
        channels = self._size("channels", channels, 1)
        width = self._size("output_width", output_width, 0)
        self._check_weights(weights, channels)
        offset = self._size("input_offset", input_offset, -_LARGEST, item)
        if isinstance(input, PointerTable):
            stride = input.table.input_stride * POINTER if input_stride is None else input_stride
            addresses, moved = self._row(input, output_y, zero, weights, width)
            offset += moved * item
            source = input.source if source is None else source
        elif output_y is not None:
            raise UsageError(
                f"{m}: output_y is given, and input holds addresses; legal is the table of `pointers`, which knows its "
                "rows",
                code="table",
            )
        elif input_stride is None:
            raise UsageError(f"{m}: input_stride is missing: the bytes from one output's pointers to the next's",
                             code="missing-array")  # fmt: skip
        else:
            addresses, stride = input, input_stride
        sizes = {
            "channels": channels, "output_width": width, "kernel_size": weights.kernel_size,
            "input_stride": self._size("input_stride", stride, 0, POINTER),
            "output_increment": self._size("output_increment", output_increment, 0, item),
            "input_offset": offset,
        }  # fmt: skip
        need = (width - 1) * (sizes["input_stride"] // POINTER) + m.pointers(weights.kernel_size) if width else 0
        last = (width - 1) * (channels + sizes["output_increment"] // item) + channels if width else 0
        arrays = {
            "input": self._input("input", addresses, np.dtype(np.uint64), need),
            "output": self._output("output", output, self._memory, last),
            "zero": self._input("zero", zero, self._memory, channels),
            "weights": weights.buffer,
            "params": self._params(params),
        }  # fmt: skip
        if m.multipass:
            sums = numpy_dtype(sums_type(m).name)
            arrays["buffer"] = self._output("buffer", np.empty(channels, sums) if buffer is None else buffer, sums,
                                            channels)  # fmt: skip
        if source is not None:
            self._typed("source", source, self._memory)
            self._check_reach(arrays["input"][:need], sizes, source, zero, channels * item)
        self._check_overlaps(arrays, source)
        if width:
            self._run("main", arrays, sizes)

    def _row(
        self, given: PointerTable, output_y: int | Sequence[int] | None, zero: Array, weights: Weights, width: int
    ) -> tuple[Array, int]:
        """Return the addresses of a row of outputs, and the offset in elements to add to them.

        UsageError if the table does not fit the call, or has no such outputs.
        """
        m, t = self.kernel, given.table
        self._typed("zero", zero, self._memory)
        if address_of(zero) != address_of(given.zero):
            raise UsageError(
                f"{m}: the table points to zeros at {address_of(given.zero):#x}, not {address_of(zero):#x}",
                code="pointers",
            )
        taps = weights.kernel_size
        if t.window.taps != taps or t.kernel_tile != m.pointers(taps) or t.window.axes[-1].o < width:
            raise UsageError(
                f"{m}: the table is for {t.window.taps} taps in {t.kernel_tile} pointers and {t.window.axes[-1].o} "
                f"outputs; expected {taps} in {m.pointers(taps)} and {width}",
                code="table",
            )
        check_order(m.name, weights.kernel, weights.order, t)
        outer = t.window.axes[:-1]
        listed = output_y if isinstance(output_y, list | tuple) else [output_y]
        listed = [0] * len(outer) if output_y is None else listed
        rows = [self._size("output_y", y, 0) for y in listed]
        if len(rows) != len(outer) or any(y >= axis.o for y, axis in zip(rows, outer)):
            extents = " x ".join(str(axis.o) for axis in outer) or "no"
            raise UsageError(
                f"{m}: output_y={shown(output_y)}: the table has {extents} rows of outputs; legal is a "
                "coordinate below each of these",
                code="table",
            )
        place = t.place(*rows)
        addresses: Array = given.addresses[place.row]
        return addresses, place.offset

    def _check_weights(self, weights: Weights, channels: int) -> None:
        m = self.kernel
        if not isinstance(weights, Weights):
            raise UsageError(f"{m}: weights are {type(weights).__name__}; legal is what pack returns", code="bad-array")
        if weights.name != m.name or weights.channels != channels:
            raise UsageError(
                f"{m}: weights are packed for {weights.channels} channels of {weights.name}, not for {channels}",
                code="packed-elsewhere",
            )
        need = self._packed_bytes(channels, m.pointers(self._size("kernel_size", weights.kernel_size, 1)))
        self._input("weights", weights.buffer, np.dtype(np.uint8), need)

    def _packed_bytes(self, channels: int, pointers: int) -> int:
        """Return the bytes of packed weights: bias, taps and scale of each channel, in whole tiles of channels."""
        m = self.kernel
        channel_bytes = (4 if m.quantised else self._memory.itemsize) + pointers * self._memory.itemsize
        return -(-channels // m.channel_tile) * m.channel_tile * (channel_bytes + (4 if m.quantised else 0))

    def _check_reach(self, addresses: Array, sizes: dict[str, int], source: Array, zero: Array, nbytes: int) -> None:
        """Raise UsageError unless each pixel of `nbytes` bytes, other than `zero`, is in the source."""
        read = addresses[addresses != np.uint64(address_of(zero))]
        if not read.size:
            return
        low, high = (int(place) + sizes["input_offset"] for place in (read.min(), read.max()))
        start, end = _bounds(source)
        if low < start or high + nbytes > end:
            raise UsageError(
                f"{self.kernel}: the pixels read, {nbytes} bytes each with an input_offset of "
                f"{sizes['input_offset']}, lie from {low:#x} to {high + nbytes:#x}, and source from "
                f"{start:#x} to {end:#x}: make the pointers again, or give the distance as input_offset",
                code="pointers",
            )

    def _check_overlaps(self, arrays: dict[str, Array], source: Array | None) -> None:
        """Raise UsageError if an array that a call writes shares memory with another array of the call."""
        used = {name: _bounds(array) for name, array in arrays.items() if array.size}
        if source is not None and source.size:
            used["source"] = _bounds(source)
        for name in ("output", "buffer"):
            low, high = used.get(name, (0, 0))
            for other, (start, end) in used.items():
                if other != name and low < end and start < high:
                    raise UsageError(f"{self.kernel}: {name} shares memory with {other}; legal is memory of its own",
                                     code="overlap")  # fmt: skip

    def _params(self, params: Sequence[float]) -> Array:
        m = self.kernel
        names = POINTS if m.quantised else ("minimum", "maximum")
        try:
            values = [operator.index(x) if m.quantised else float(x) for x in params]  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise UsageError(
                f"{m}: params are {params!r}; legal are {'whole ' * m.quantised}numbers {', '.join(names)}",
                code="bad-params",
            ) from None
        if len(values) != len(names):
            raise UsageError(f"{m}: params are {', '.join(names)}; {len(values)} were given", code="bad-params")
        low, high = MEMORY[m.type].limits if m.quantised else (-math.inf, math.inf)
        for name, value in zip(names, values):
            if not low <= value <= high:  # NaN too
                legal = f"legal are {low} to {high}" if m.quantised else "legal are numbers"
                raise UsageError(f"{m}: params have a {name} of {value}; {legal}", code="bad-params")
        if values[-2] > values[-1]:
            raise UsageError(f"{m}: params have a minimum of {values[-2]} above the maximum of {values[-1]}",
                             code="bad-params")  # fmt: skip
        return np.array(values, np.int32 if m.quantised else np.float32)

    def _size(self, name: str, size: object, least: int, unit: int = 1) -> int:
        """Return a size as an int; UsageError if it is not an integer, too small, or not a multiple of `unit`."""
        legal = f"a multiple of {unit}" if least < 0 else f"at least {least}" + f", a multiple of {unit}" * (unit > 1)
        try:
            found = operator.index(size)  # type: ignore[arg-type]
        except TypeError:
            found = None
        if found is None or isinstance(size, bool) or not least <= found < _LARGEST or found % unit:
            bytes_ = "bytes, " if unit > 1 else ""
            raise UsageError(f"{self.kernel}: {name}={shown(size)}: expected {bytes_}{legal}", code="bad-size")
        return found

    def _check_form(self, form: object) -> None:
        if form not in FORMS:
            raise UsageError(f"{self.kernel}: form is {form!r}; legal are {', '.join(FORMS)}", code="bad-form")

    def _check_array(self, name: str, given: object) -> None:
        if not isinstance(given, np.ndarray):
            raise UsageError(
                f"{self.kernel}: {name} is {type(given).__name__}; legal is a numpy array", code="bad-array"
            )
        without_mask(name, given)

    def _typed(self, name: str, array: Array, dtype: np.dtype[np.generic]) -> None:
        self._check_array(name, array)
        if array.dtype != dtype:
            raise UsageError(f"{self.kernel}: {name} is {array.dtype}; legal is {dtype}", code="bad-array")

    def _input(self, name: str, array: Array, dtype: np.dtype[np.generic], size: int) -> Array:
        self._check_array(name, array)
        if array.dtype != dtype or array.size < size or not array.flags.c_contiguous:
            raise UsageError(
                f"{self.kernel}: {name} has {array.size} elements of {array.dtype}; expected at least {size} of "
                f"{dtype}, one after the other",
                code="bad-array",
            )
        return array

    def _output(self, name: str, array: Array, dtype: np.dtype[np.generic], size: int) -> Array:
        checked = self._input(name, array, dtype, size)
        if not checked.flags.writeable:
            raise UsageError(f"{self.kernel}: {name} is read-only; legal is a writeable array", code="read-only")
        return checked

    def _run(self, entry: str, arrays: dict[str, Array], sizes: dict[str, int]) -> None:
        names = (entry, *arrays, *sizes)
        call = self._calls.get(names)
        if call is None:
            function = self._library[entry]
            given = [dict.fromkeys(ARGUMENTS.get(name, (name,)), 0) for name in names[1:]]
            call = self._calls[names] = PreparedCall([LoadedEntry(function, function.entry, {})], given)
        call.run([*map(address_of, arrays.values()), *sizes.values()], arrays)


def _bounds(array: Array) -> tuple[int, int]:
    """Return the addresses of an array's first byte and of the byte after its last."""
    start = address_of(array)
    if not array.size:
        return start, start
    reach = [(n - 1) * stride for n, stride in zip(array.shape, array.strides)]
    return start + sum(min(r, 0) for r in reach), start + sum(max(r, 0) for r in reach) + array.itemsize


@cache
def _micro_kernel(m: MicroKernel, target: str | None) -> HostMicroKernel:
    return HostMicroKernel(m, target)


def micro_kernel(name: str, target: str | None = None) -> HostMicroKernel:
    """Return the micro-kernel `name`, such as `f32_dwconv_up16x9`, for an instruction-set level (default: the best).

    ConfigError if the name is not legal. A call raises UnsupportedError if the machine lacks the level.
    """
    for what, given in (("name", name), ("target", target)):
        if not isinstance(given, str) and not (what == "target" and given is None):
            raise UsageError(f"micro_kernel: {what} is {given!r}; legal is a text", code="bad-type")
    return _micro_kernel(MicroKernel.parse(name), target)
