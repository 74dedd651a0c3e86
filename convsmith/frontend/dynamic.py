"""Kernels with fixed channels and window that serve any batch, height, width and padding, or any rows of a product.

    k = cs.compile("mb1ic64ih56oc64oh56kh3ph1", dynamic="mb,ih,iw")
    y = k(x, k.pack(w))                       # the pads of the line, at both ends
    y = k(x, w, pads=((0, 2), (1, 1)))        # front and back pad of each axis

Sizes follow from arrays and pads (`call_sizes.py`).  The code is compiled and linked once; the first call with a shape
binds the code to that shape.  A device has a kernel for each shape (`sized_kernels.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from convsmith.codegen.artifact import Artifact
from convsmith.compiler.dynamic import at_call, given_tensor, requirements
from convsmith.diag.choices import choices
from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.diag.expect import shown
from convsmith.diag.forking import import_lock
from convsmith.frontend.call_sizes import Pads, deciding, pad_pairs, problem_of_call
from convsmith.frontend.inspection import Inspected
from convsmith.frontend.nothing import EmptyKernel, has_empty_tensor
from convsmith.machine.base import Machine
from convsmith.problem.chain import Chain
from convsmith.problem.conv import Conv
from convsmith.problem.problem import Problem
from convsmith.problem.tensor import Tensor
from convsmith.runtime.arrays import Array, beyond_text, is_within
from convsmith.runtime.border import Given
from convsmith.runtime.host_kernel import HostKernel
from convsmith.runtime.loading import library_of
from convsmith.runtime.packed import Packed
from convsmith.schedule.config import Config
from convsmith.schedule.dynamic import check_dynamic, general, symbolic_dims
from convsmith.schedule.wish import Decisions
from convsmith.tune.compile import compile_problem

if TYPE_CHECKING:
    from convsmith.schedule.planned import AnyPlan

__all__ = ["DynamicKernel", "dynamic_dims"]

_SIDES = {"src": "source", "diff_dst": "result's gradient"}
"""Arrays that determine the sizes of a call, and their descriptions."""


def dynamic_dims(problem: Problem, names: str) -> frozenset[str]:
    """Return the dims that a text such as "mb,ih,iw" names. UsageError if one of them must be fixed."""
    legal = [name for name in given_tensor(problem).dims if name in symbolic_dims(problem)]
    dims = [name.strip() for name in names.split(",") if name.strip()]
    for name in dims:
        if name not in legal:
            message = f"dynamic={shown(names)}: {shown(name)} is fixed; legal are {choices(name, legal)}"
            raise UsageError(message, code="dynamic")
    if not dims:
        raise UsageError(f"dynamic={shown(names)} names no dim; legal are {', '.join(legal)}", code="dynamic")
    return frozenset(dims)


def _require_within(name: str, weights: Array, limit: float) -> None:
    """Raise UnsupportedError if `weights` hold elements beyond `limit`."""
    if not is_within(weights, limit):
        raise UnsupportedError(
            f"{name} hold {beyond_text(limit)}, with which this kernel would compute wrong results; legal are plain "
            "weights at each call, which runs another kernel",
            code="non-finite",
        )


class DynamicKernel(Inspected):
    """The kernel of `problem` for any sizes of the dims in `dynamic`, and any pads: `k(x, k.pack(w))` or `k(x, w)`.

    Gradients and chains are computed by `run`; a chain uses the pads of its line.

    `requirements` lists what a call must satisfy. Several threads may call the kernel at once.
    """

    KEPT = 8
    """Maximum number of shapes that stay bound to the code."""
    problem: Problem
    config: Config
    artifact: Artifact

    def __init__(
        self, problem: Problem, dims: str, target: Machine, config: Decisions | None = None, threads: int = 1
    ) -> None:
        if isinstance(problem, Conv | Chain):
            axb = {tag: "axb" for tag in ("stag", "dtag") if getattr(problem, tag) == "any"}
            problem = replace(problem, **axb)  # type: ignore[arg-type]
        self.problem = p = check_dynamic(problem)
        self.dynamic = dynamic_dims(p, dims)
        self.target = target
        self.artifact = self._compiled(config, threads)
        self.config = Config.parse(self.artifact.config)
        self._library = library_of(self.artifact)
        self._fixed = requirements(p, self.dynamic).fixed
        self._deciding = deciding(p)
        self._bound = lru_cache(self.KEPT)(self._bind)
        self._packing = HostKernel(self.artifact, library=self._library)

    def _compiled(self, config: Decisions | None, threads: int) -> Artifact:
        """Return the code that all calls share."""
        sizes = requirements(self.problem, self.dynamic)
        return compile_problem(self.problem, target=self.target, config=config, threads=threads, requirements=sizes)

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
        for limit in self.artifact.limits.values():
            _require_within("weights", checked, limit)
        return self._packing.pack(weights, bias)

    def pack_each(self, **operands: Array) -> dict[str, Packed | Array]:
        """Return packed operands by name, for any number of calls of `run` of any shape, such as the weights of the
        stages of a chain.
        """
        for name, limit in self.artifact.limits.items():
            if name in operands:
                _require_within(name, self._packing._border.specs[name].check(operands[name], name), limit)
        return self._packing.pack_each(operands)

    def __call__(
        self, x: Array, weights: Packed | Array, bias: Array | None = None, *, pads: Pads | None = None,
        out: Array | None = None,
    ) -> Array:  # fmt: skip
        """Return the convolution of `x` (N, C, *spatial), in `out` or a new array in the result's layout.

        `pads`: a number for all axes, or per axis a number or (front, back); by default the front pads of the line, at
        both ends. Other arguments are as in `CompiledKernel`.
        """
        return self._at({self._deciding[0]: x, "dst": out}, pads).call(x, weights, bias, out)

    def bind(self, x: Array, weights: Packed, out: Array, pads: Pads | None = None) -> Callable[[], object]:
        """Return a function that computes on these arrays at each call, like `CompiledKernel.bind`; sizes are
        determined once.
        """
        kernel = self._at({self._deciding[0]: x, "dst": out}, pads)
        if isinstance(kernel, HostKernel):
            return kernel.bind(x, weights, out)
        return partial(kernel.call, x, weights, None, out)

    def bind_each(self, *, pads: Pads | None = None, **arrays: Given) -> Callable[[], object]:
        """Return a function that computes on these arrays, by name, at each call; see `bind`."""
        return self._at(arrays, pads).bind_each(arrays)

    def run(self, *, pads: Pads | None = None, **arrays: Given) -> dict[str, Array]:
        """Compute on arrays by name, like `CompiledKernel.run`, with the pads of the call."""
        return self._at(arrays, pads).run(arrays)

    def _new_plan(self) -> AnyPlan:
        with import_lock:
            from convsmith.schedule.plan import plan

        return plan(general(self.problem).canonical(), self.config, self.target, self.artifact.requirements)

    def _at(self, arrays: Mapping[str, Given | None], pads: Pads | None) -> HostKernel | EmptyKernel:
        """Return the kernel bound to the sizes of a call."""
        shapes = tuple([self._shape(name, arrays) for name in self._deciding])
        # Equal numbers have equal hashes, so only legal values may become keys.
        known = pads is None or (type(pads) is int and isinstance(self.problem, Conv))
        return self._bound(shapes, pads if known else pad_pairs(self.problem, pads))  # type: ignore[arg-type]

    def _shape(self, name: str, arrays: Mapping[str, Given | None]) -> tuple[int, ...] | None:
        """Return the shape of an array that determines the sizes of a call; None for a result that is not passed."""
        array = arrays.get(name)
        if array is None and self.problem.tensor(name).role == "out":
            return None
        if name not in arrays:
            raise UsageError(f"{name}: missing; the sizes of a call are those of its {_SIDES[name]}", code="missing")
        shape = getattr(array, "shape", None)
        if shape is None:
            raise UsageError(f"{name}: expected an array, got {type(array).__name__}", code="not-an-array")
        return tuple(shape)

    def _bind(self, shapes: tuple[tuple[int, ...] | None, ...], given: Pads | None) -> HostKernel | EmptyKernel:
        pads = None if given is None else pad_pairs(self.problem, given)
        q = problem_of_call(self.problem, self._fixed, dict(zip(self._deciding, shapes)), pads)
        if has_empty_tensor(q):
            return EmptyKernel(q, self._packing.signature)
        return self._of_call(q)

    def _of_call(self, q: Problem) -> HostKernel:
        """Return the kernel at the sizes of the problem ``q`` of a call."""
        return HostKernel(at_call(self.artifact, q), lambda: self._of_these_sizes(q), self._library)

    def _of_these_sizes(self, q: Problem) -> HostKernel:
        """Return a kernel for exactly these sizes, which multiplies no stored zeros."""
        q = q.without_transforms()
        artifact = compile_problem(q, target=self.target, threads=self.config.threads)
        config = Config.parse(artifact.config).of_each(realise="peel")
        return HostKernel(compile_problem(q, target=self.target, config=config))

    def __repr__(self) -> str:
        return f"<DynamicKernel {self.problem} dynamic={','.join(sorted(self.dynamic))}>"

