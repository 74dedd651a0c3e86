"""Kernels of which only channels and window are fixed: one serves any batch, height, width and padding.

    k = cs.compile("mb1ic64ih56oc64oh56kh3ph1", dynamic="mb,ih,iw")
    y = k(x, k.pack(w))                       # the pads of the line, at both ends
    y = k(x, w, pads=((0, 2), (1, 1)))        # front and back pad of each axis

The output size follows by the floor formula.  Tables of pointers are made once a shape; what they point into moves.
"""

from __future__ import annotations

import ctypes
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from convsmith.build.dynamic import dynamic_window, size_values
from convsmith.codegen.artifact import Artifact
from convsmith.compiler.dynamic import dynamic_artifact
from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.frontend.kernel import Kernel
from convsmith.layout.indirection import Window, table
from convsmith.problem.conv import Conv
from convsmith.problem.descriptor import output_size
from convsmith.problem.problem import Problem
from convsmith.runtime.arrays import Array, address_of, aligned_empty, all_finite, numpy_dtype
from convsmith.runtime.host import HostLibrary
from convsmith.runtime.packed import Packed
from convsmith.runtime.pointers import MovingTable
from convsmith.schedule.config import Config
from convsmith.target.base import Target

__all__ = ["DynamicKernel", "dynamic_dims"]

Pads = Sequence[int | tuple[int, int]] | int

_KEPT = 8
"""Shapes whose tables a thread keeps."""


def dynamic_dims(problem: Conv, names: str) -> frozenset[str]:
    """The dims that a text such as "mb,ih,iw" names; UsageError where one cannot differ from call to call."""
    legal = ("mb", *(f"i{a}" for a in problem.axes))
    found = [name.strip() for name in names.split(",") if name.strip()]
    for name in found:
        if name not in legal:
            raise UsageError(f"dynamic={names!r}: {name!r} is fixed; legal are {', '.join(legal)}", code="dynamic")
    if not found:
        raise UsageError(f"dynamic={names!r} names no dim; legal are {', '.join(legal)}", code="dynamic")
    return frozenset(found)


class DynamicKernel:
    """The kernel of `problem` for any sizes of the dims in `dynamic`, and any pads: `k(x, k.pack(w))` or `k(x, w)`.

    `requirements` says what a call must keep to. May be called from several threads at once.
    """

    def __init__(self, problem: Problem, dims: str, target: Target, config: Config | None = None) -> None:
        if not isinstance(problem, Conv):
            raise UnsupportedError(f"dynamic sizes: {problem} is no convolution", code="dynamic")
        self.dynamic = dynamic_dims(problem, dims)
        axb = {tag: "axb" for tag in ("stag", "dtag") if getattr(problem, tag) == "any"}
        self.problem = p = replace(problem, **axb)  # type: ignore[arg-type]
        self.artifact: Artifact = dynamic_artifact(p.canonical(), target, config)
        self.config = Config.parse(self.artifact.config)
        self._library = HostLibrary(self.artifact)
        self._target = target
        self._item = {name: numpy_dtype(p.tensor(name).dtype) for name in ("src", "wei", "dst")}
        zeros = next((a for a in self.artifact.entries["main"].arguments if a.role == "zero"), None)
        self._zero = np.zeros(zeros.size if zeros else 1, self._item["src"])
        self._defaults = {
            t.name: np.resize(np.array(t.default), t.shape).astype(numpy_dtype(t.dtype))
            for t in p.tensors if t.default is not None
        }  # fmt: skip
        self._own = threading.local()

    @property
    def requirements(self) -> dict[str, int]:
        """The dims of a call that must be those of the line, and their sizes."""
        fixed = {"ic": self.problem.ic, "mb": self.problem.mb}
        fixed |= {f"i{a}": size for a, size in zip(self.problem.axes, self.problem.i)}
        return {name: size for name, size in fixed.items() if name not in self.dynamic}

    def pack(self, weights: Array, bias: Array | None = None) -> Packed:
        """Pack weights, and the bias where the problem has one, for any number of calls of any shape."""
        p = self.problem
        weights = self._checked("weights", weights, p.wei_shape, "wei")
        if (bias is not None) != p.bias:
            raise UsageError(f"{p}: {'a bias is missing' if p.bias else 'there is no bias'}", code="bias")
        finite = all_finite(weights)
        entry = self.artifact.entries["pack"]
        packed = next(a for a in entry.arguments if a.role == "packed")
        dtype = numpy_dtype(packed.dtype)
        buffer = aligned_empty(packed.size * dtype.itemsize).view(dtype)
        plain = np.ascontiguousarray(weights)
        self._run("pack", {"wei": address_of(plain), packed.name: address_of(buffer)}, {})
        own = None if bias is None else self._checked("bias", bias, p.bias_shape, "bia").copy()
        return Packed(self.artifact.notes["packing"], buffer, own, finite)

    def __call__(
        self, x: Array, weights: Packed | Array, bias: Array | None = None, *, pads: Pads | None = None,
        out: Array | None = None,
    ) -> Array:  # fmt: skip
        """Compute the convolution of `x` (N, C, *spatial); returns `out`, or a new array, channels last in memory.

        `pads`: a number for all, or for each axis a number or (front, back); without it the front pads of the line, at
        both ends. UsageError names what does not fit; nothing has been written then.
        """
        p = self.problem
        self._check_source(x)
        plain = None if isinstance(weights, Packed) else weights
        if not isinstance(weights, Packed):
            weights = self.pack(weights, bias)
        elif weights.key != self.artifact.notes["packing"]:
            raise UsageError(f"weights are packed as {weights.key}, not as {self.artifact.notes['packing']}",
                             code="packed-elsewhere")  # fmt: skip
        both = self._pads(pads)
        shape = (x.shape[0], p.oc, *self._output(x.shape[2:], both))
        if out is not None and (out.shape != shape or out.dtype != self._item["dst"]):
            raise UsageError(
                f"out is {out.dtype} {out.shape}, the result {self._item['dst']} {shape}", code="bad-array"
            )
        if out is not None and np.may_share_memory(out, x):
            raise UsageError("out shares memory with the source; expected memory of its own", code="overlap")
        if not weights.finite and plain is not None:
            result = self._of_these_sizes(x.shape, shape, both)(x, plain, bias)
            if out is None:
                return result
            np.copyto(out, result)
            return out
        if not weights.finite:
            raise UnsupportedError(
                "weights hold infinities or NaN, which this kernel would multiply by stored zeros: compile the sizes "
                "of the call, or give finite weights",
                code="non-finite",
            )
        last = np.empty((shape[0], *shape[2:], p.oc), self._item["dst"])
        result = np.moveaxis(last, -1, 1)
        if result.size:
            self._compute(np.ascontiguousarray(np.moveaxis(x, 1, -1)), weights, last, both)
        if out is None:
            return result
        np.copyto(out, result)
        return out

    def _of_these_sizes(self, src: tuple[int, ...], dst: tuple[int, ...], pads: list[tuple[int, int]]) -> Kernel:
        """A kernel of these sizes alone, which multiplies no stored zeros."""
        fronts = tuple(front for front, _ in pads)
        sizes = replace(self.problem, mb=src[0], i=tuple(src[2:]), o=tuple(dst[2:]), p=fronts, name=None)
        return Kernel(sizes, self._target)

    def _compute(self, x: Array, weights: Packed, last: Array, pads: list[tuple[int, int]]) -> None:
        p = self.problem
        window = dynamic_window(p, x.shape[1:-1], last.shape[1:-1], tuple(front for front, _ in pads))
        pointers = self._table(window)
        pointers.follow(address_of(x))
        names = {"src": address_of(x), "dst": address_of(last), "src_table": pointers.address}
        names |= {"src_0": address_of(self._zero), "wei_p": address_of(weights.buffer)}
        names |= {name: address_of(array) for name, array in self._defaults.items()}
        if weights.bias is not None:
            names["bia"] = address_of(weights.bias)
        self._run("main", names, size_values(p, x.shape[0], window))

    def _table(self, window: Window) -> MovingTable:
        """This thread's table of a shape."""
        kept: OrderedDict[Window, MovingTable] = self._own.__dict__.setdefault("tables", OrderedDict())
        if window not in kept:
            kept[window] = MovingTable(table(window), self._zero)
            if len(kept) > _KEPT:
                kept.popitem(last=False)
        kept.move_to_end(window)
        return kept[window]

    def _run(self, name: str, addresses: dict[str, int], sizes: dict[str, int]) -> None:
        function = self._library[name]
        entry = function.entry
        values = [*(addresses[a.name] for a in entry.arguments), *(sizes[size] for size in entry.sizes)]
        block = (ctypes.c_int64 * len(values))(*values)
        function(ctypes.addressof(block))

    def _pads(self, pads: Pads | None) -> list[tuple[int, int]]:
        """Front and back pad of each axis."""
        p = self.problem
        if pads is None:
            return [(pad, pad) for pad in p.p]
        given = [pads] * p.rank if isinstance(pads, int) else list(pads)
        found = [(pad, pad) if isinstance(pad, int) else tuple(pad) for pad in given]
        if len(found) != p.rank or any(len(pair) != 2 or min(pair) < 0 for pair in found):
            raise UsageError(
                f"pads={pads!r}: expected a number of at least 0, or one or (front, back) for each of "
                f"the {p.rank} axes",
                code="bad-pads",
            )
        return found  # type: ignore[return-value]

    def _output(self, extents: tuple[int, ...], pads: list[tuple[int, int]]) -> list[int]:
        p, found = self.problem, []
        for n, (i, (front, back)) in enumerate(zip(extents, pads)):
            size = output_size(i, p.k[n], p.s[n], p.d[n], front, back)
            if size < 0:
                a = p.axes[n]
                raise UsageError(
                    f"i{a}={i} with pads {front} and {back} is smaller than the kernel's {p.keff[n]}: expected "
                    f"i{a} >= {p.keff[n] - front - back - p.s[n]}",
                    code="bad-shape",
                )
            found.append(size)
        return found

    def _check_source(self, x: Array) -> None:
        p = self.problem
        names = ("mb", "ic", *(f"i{a}" for a in p.axes))
        if x.ndim != len(names) or x.dtype != self._item["src"]:
            raise UsageError(
                f"source is {x.dtype} with {x.ndim} axes; expected {self._item['src']} ({', '.join(names)})",
                code="bad-array",
            )
        for name, size in zip(names, x.shape):
            wanted = self.requirements.get(name, size)
            if size != wanted:
                raise UsageError(f"source has {name}={size}; the kernel is for {name}={wanted}", code="bad-shape")

    def _checked(self, what: str, array: Array, shape: tuple[int, ...], name: str) -> Array:
        dtype = numpy_dtype(self.problem.tensor(name).dtype)
        if array.shape != shape or array.dtype != dtype:
            raise UsageError(f"{what}: {array.dtype} {array.shape}; expected {dtype} {shape}", code="bad-array")
        return array

    def __repr__(self) -> str:
        return f"<DynamicKernel {self.problem} dynamic={','.join(sorted(self.dynamic))}>"
