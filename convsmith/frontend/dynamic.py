"""Kernels with fixed channels and window that serve any batch, height, width and padding.

    k = cs.compile("mb1ic64ih56oc64oh56kh3ph1", dynamic="mb,ih,iw")
    y = k(x, k.pack(w))                       # the pads of the line, at both ends
    y = k(x, w, pads=((0, 2), (1, 1)))        # front and back pad of each axis

The output size follows from the floor formula.  The code is compiled and linked once; the first call with a shape binds
the code to that shape, with a pointer table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from convsmith.codegen.artifact import Artifact
from convsmith.compiler.dynamic import at_call, fixed_sizes, requirements
from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.diag.expect import conforms
from convsmith.diag.forking import import_lock
from convsmith.frontend.inspection import Inspected
from convsmith.frontend.nothing import NothingKernel
from convsmith.machine.base import Machine
from convsmith.plan.config import Config
from convsmith.plan.dynamic import at_sizes, check_dynamic, general
from convsmith.problem.conv import Conv
from convsmith.problem.descriptor import output_size
from convsmith.problem.problem import Problem
from convsmith.problem.tensor import Tensor
from convsmith.runtime.arrays import Array, all_finite
from convsmith.runtime.border import Given
from convsmith.runtime.host import HostLibrary
from convsmith.runtime.host_kernel import HostKernel
from convsmith.runtime.packed import Packed
from convsmith.tune.compile import compile_problem

if TYPE_CHECKING:
    from convsmith.plan.plan import Plan

__all__ = ["DynamicKernel", "dynamic_dims", "dynamic_names"]

Pads = Sequence[int | Sequence[int]] | int
_Pairs = tuple[tuple[int, int], ...]

_KEPT = 8
"""Maximum number of shapes that stay bound to the code."""


def dynamic_dims(problem: Conv, names: str) -> frozenset[str]:
    """Return the dims that a text such as "mb,ih,iw" names. UsageError if one of them must be fixed."""
    legal = ("mb", *(f"i{a}" for a in problem.axes))
    dims = [name.strip() for name in names.split(",") if name.strip()]
    for name in dims:
        if name not in legal:
            raise UsageError(f"dynamic={names!r}: {name!r} is fixed; legal are {', '.join(legal)}", code="dynamic")
    if not dims:
        raise UsageError(f"dynamic={names!r} names no dim; legal are {', '.join(legal)}", code="dynamic")
    return frozenset(dims)


def dynamic_names(given: object) -> str:
    """Return dims as one text, "ih,iw,mb", from such a text or from a collection of names."""
    listed = [given] if isinstance(given, str) else list(given) if isinstance(given, Collection) else [given]
    names = [name for name in listed if isinstance(name, str)]
    if len(names) < len(listed):
        raise UsageError(f"dynamic={given!r}: legal is a text such as 'mb,ih,iw', or a list of names", code="dynamic")
    return ",".join(sorted({part.strip() for name in names for part in name.split(",")}))


class DynamicKernel(Inspected):
    """The kernel of `problem` for any sizes of the dims in `dynamic`, and any pads: `k(x, k.pack(w))` or `k(x, w)`.

    `requirements` lists what a call must satisfy. Several threads may call the kernel at once.
    """

    problem: Conv
    artifact: Artifact

    def __init__(
        self, problem: Problem, dims: str, target: Machine, config: Config | None = None, threads: int = 1
    ) -> None:
        if not isinstance(problem, Conv):
            raise UnsupportedError(f"dynamic sizes: {problem} is no convolution", code="dynamic")
        self.dynamic = dynamic_dims(problem, dims)
        axb = {tag: "axb" for tag in ("stag", "dtag") if getattr(problem, tag) == "any"}
        self.problem = p = check_dynamic(replace(problem, **axb))  # type: ignore[arg-type]
        self.target = target
        self.artifact = compile_problem(
            p, target=target, config=config, threads=threads, requirements=requirements(p, self.dynamic)
        )
        self.config = Config.parse(self.artifact.config)
        self._library = HostLibrary(self.artifact)
        self._fixed = fixed_sizes(self.artifact)
        self._bound = lru_cache(_KEPT)(self._bind)
        self._packing = HostKernel(self.artifact, library=self._library)

    @property
    def requirements(self) -> dict[str, int]:
        """The dims of a call with fixed sizes, and these sizes."""
        return dict(self._fixed)

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        """The arrays that `run` takes and returns, like `CompiledKernel.arguments`, at the sizes of the line."""
        return self.problem.tensors

    def pack(self, weights: Array, bias: Array | None = None) -> Packed:
        """Return packed weights, with the bias if the problem has one, for any number of calls of any shape."""
        checked, _ = self._packing._border.check_operand(weights, bias)
        if not all_finite(checked):
            raise UnsupportedError(
                "weights hold infinities or NaN, which this kernel would multiply by stored zeros; legal are finite "
                "weights, or plain ones at each call, which runs another kernel",
                code="non-finite",
            )
        return self._packing.pack(weights, bias)

    def __call__(
        self, x: Array, weights: Packed | Array, bias: Array | None = None, *, pads: Pads | None = None,
        out: Array | None = None,
    ) -> Array:  # fmt: skip
        """Return the convolution of `x` (N, C, *spatial), in `out` or a new array in the result's layout.

        `pads`: a number for all axes, or per axis a number or (front, back); by default the front pads of the line, at
        both ends. Other arguments are those of `CompiledKernel`.
        """
        return self._at(x, pads).call(x, weights, bias, out)

    def bind(self, x: Array, weights: Packed, out: Array, pads: Pads | None = None) -> Callable[[], object]:
        """Return a function that computes on these arrays at each call, like `CompiledKernel.bind`; sizes are
        determined once.
        """
        kernel = self._at(x, pads)
        if isinstance(kernel, HostKernel):
            return kernel.bind(x, weights, out)
        return partial(kernel.call, x, weights, None, out)

    def run(self, *, pads: Pads | None = None, **arrays: Given) -> dict[str, Array]:
        """Compute on arrays by name, like `CompiledKernel.run`, with the pads of the call."""
        if "src" not in arrays:
            raise UsageError("src: missing; the sizes of a call are those of its source", code="missing")
        return self._at(arrays["src"], pads).run(arrays)

    def plan(self) -> Plan:
        """Return every decision worked out, with the sizes of calls as symbols; `print` shows it."""
        with import_lock:
            from convsmith.plan.plan import plan

        return plan(general(self.problem).canonical(), self.config, self.target, dynamic=True)

    def _at(self, x: Given, pads: Pads | None) -> HostKernel | NothingKernel:
        """Return the kernel bound to the sizes of a call."""
        shape = getattr(x, "shape", None)
        if shape is None:
            raise UsageError(f"src: expected an array, got {type(x).__name__}", code="not-an-array")
        # Numbers that are equal have one hash, so only what is legal may become a key.
        known = pads is None or type(pads) is int
        return self._bound(tuple(shape), pads if known else self._pads(pads))

    def _bind(self, shape: tuple[int, ...], given: Pads | None) -> HostKernel | NothingKernel:
        p, (mb, *extents), pads = self.problem, self._sizes(shape), self._pads(given)
        q = at_sizes(p, mb, tuple(extents), self._output(extents, pads), tuple(front for front, _ in pads))
        if any(0 in t.shape for t in q.tensors):
            return NothingKernel(q, self._packing.signature)
        return HostKernel(at_call(self.artifact, q), lambda: self._of_these_sizes(q), self._library)

    def _of_these_sizes(self, q: Conv) -> HostKernel:
        """Return a kernel for these sizes only, which multiplies no stored zeros."""
        artifact = compile_problem(q, target=self.target, threads=self.config.threads)
        config = replace(Config.parse(artifact.config), realise="peel")
        return HostKernel(compile_problem(q, target=self.target, config=config))

    def _sizes(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return batch and extents of a source of this shape. UsageError if they violate the requirements."""
        p = self.problem
        layout, names = p.src_layout, ("mb", "ic", *(f"i{a}" for a in p.axes))
        dims = range(len(names)) if layout.is_plain else [b.dim for b in layout.blocks]
        if len(shape) != len(dims):
            form = ", ".join(names) if layout.is_plain else f"the physical shape of {layout}, {len(dims)} axes"
            raise UsageError(f"src has {len(shape)} axes; expected ({form})", code="rank")
        sizes = {names[dim]: size for dim, size in zip(dims, shape) if dim != 1 or layout.is_plain}
        for name, size in sizes.items():
            wanted = self._fixed.get(name, size)
            if size != wanted:
                raise UsageError(f"src has {name}={size}; the kernel is for {name}={wanted}", code="shape")
        return tuple(size for name, size in sizes.items() if name != "ic")

    def _pads(self, pads: Pads | None) -> _Pairs:
        """Return (front, back) pad of each axis."""
        p = self.problem
        if pads is None:
            return tuple((pad, pad) for pad in p.p)
        given = _items(pads)
        pairs: list[Any] = [(pads, pads)] * p.rank if given is None else [_items(pad) or (pad, pad) for pad in given]
        whole = all(conforms(pad, int) for pair in pairs for pad in pair)
        if len(pairs) != p.rank or any(len(pair) != 2 for pair in pairs) or not whole or min(map(min, pairs)) < 0:
            raise UsageError(
                f"pads={pads!r}: expected a whole number of at least 0, or one or (front, back) for each of "
                f"the {p.rank} axes",
                code="bad-pads",
            )
        return tuple((int(front), int(back)) for front, back in pairs)

    def _output(self, extents: Sequence[int], pads: _Pairs) -> tuple[int, ...]:
        p, outputs = self.problem, []
        for n, (i, (front, back)) in enumerate(zip(extents, pads)):
            size = output_size(i, p.k[n], p.s[n], p.d[n], front, back)
            if size < 0:
                a, least = p.axes[n], p.keff[n] - front - back
                empty = f" (from {max(0, least - p.s[n])} on the result is empty)"
                raise UsageError(
                    f"i{a}={i} with pads {front} and {back} is smaller than the kernel's {p.keff[n]}: expected "
                    f"i{a} >= {least}{empty}",
                    code="bad-shape",
                )
            outputs.append(size)
        return tuple(outputs)

    def __repr__(self) -> str:
        return f"<DynamicKernel {self.problem} dynamic={','.join(sorted(self.dynamic))}>"


def _items(given: Any) -> list[Any] | None:
    """Return the items of a list, a tuple or an array; None for anything else."""
    return list(given) if isinstance(given, list | tuple) or (isinstance(given, np.ndarray) and given.ndim) else None
