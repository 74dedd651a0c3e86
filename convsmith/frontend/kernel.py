"""`CompiledKernel`: a compiled problem that can be called, and that answers questions about how it was made.

Calling goes straight to the run time's `HostKernel`; everything else (`ir`, `asm`, `explain`) runs the compiler again
when asked, so that a kernel loaded from the cache costs nothing but its code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from convsmith.codegen.artifact import Artifact
from convsmith.compiler.service import repro
from convsmith.diag import trace
from convsmith.diag.forking import import_lock
from convsmith.frontend.inspection import Inspected
from convsmith.frontend.nothing import NothingKernel
from convsmith.machine.base import Machine
from convsmith.machine.registry import target as known_target
from convsmith.plan.config import Config
from convsmith.problem.problem import Problem
from convsmith.problem.tensor import Tensor
from convsmith.runtime.arrays import Array
from convsmith.runtime.border import Given, Names
from convsmith.runtime.denormals import with_denormals
from convsmith.runtime.host_kernel import HostKernel
from convsmith.runtime.packed import Packed
from convsmith.tune.compile import compile_problem

if TYPE_CHECKING:
    from convsmith.compiler.driver import Lowered
    from convsmith.passes.manager import Instrument

__all__ = ["CompiledKernel"]

_CALL = Names({"src": "x", "wei": "weights", "bia": "bias", "dst": "out"})
"""What `CompiledKernel.__call__`, `bind` and `pack` call tensors."""


class CompiledKernel(Inspected):
    """The kernel of `problem` for `target`: `k(x, k.pack(w))` or `k(x, w)`, or `k.run(src=x, wei=w)` by names.

    `config` holds every decision, `artifact` the object code with its manifest. A problem with an empty tensor
    compiles nothing: `artifact` is None, `config` decides nothing, and the result is what bias and post-ops make of
    zero. May be called from several threads at once.

    Arrays are numpy's, or of any library with DLPack or the array interface, on the CPU: nothing is copied for it, and
    a new result is of the library of the activations. Weights with groups may come without a dim of groups, in
    PyTorch's shape (OC, IC/G, *kernel). A kernel can be pickled: problem, config and target are, and make it anew.
    """

    def __init__(self, problem: Problem, target: Machine, config: Config | None = None, threads: int = 1) -> None:
        self.problem = problem
        self.target = target
        self.artifact: Artifact | None = None
        host: HostKernel | NothingKernel
        if any(0 in tensor.shape for tensor in problem.tensors):
            host = NothingKernel(problem)
            self.config = config or Config(target.isa, "oc", threads=threads)
        else:
            self.artifact = compile_problem(problem, target=target, config=config, threads=threads)
            self.config = config or Config.parse(self.artifact.config)
            host = HostKernel(self.artifact, self._fallback)
        self._host = host
        self._call: Callable[..., Array] = host.call
        self._run: Callable[..., dict[str, Array]] = host.run
        if trace.enabled("exec"):
            self._call, self._run = partial(self._traced, host.call), partial(self._traced, host.run)

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        """The arrays that `run` takes and gives: name, role ("in", "out", "inout"), shape, dtype, layout, default."""
        return self.problem.tensors

    def __call__(
        self, x: Array, weights: Packed | Array, bias: Array | None = None, *, out: Array | None = None
    ) -> Array:
        """Compute the convolution of `x` with plain weights (and bias), or with what `pack` returned.

        Shapes are logical, (N, C, *spatial); a blocked layout has its physical shape. Returns `out`, or a new array in
        the destination's layout; a `sum` post-op reads what `out` holds. Other arrays take their defaults. UsageError
        names what does not fit (nothing has been written then), or the names for `run` where the problem is not a
        forward one, or has further arrays without defaults.
        """
        return self._call(x, weights, bias, out, _CALL)

    def bind(self, x: Array, weights: Packed | Array, out: Array) -> Callable[[], object]:
        """A function that computes on these arrays whenever it is called: they are checked once, here.

        What `x` and `out` hold may change in between; plain weights are packed here. One thread at a time may call it.
        """
        return self._host.bind(x, weights, out, _CALL)

    def run(self, **arrays: Given) -> dict[str, Array]:
        """Compute on arrays by name, as `arguments` lists them; returns the outputs by name.

        Outputs that are given are written in place; "inout" ones must be. Inputs with a default may be left out. What
        `pack` returned may stand for the operand that it packs, and a number for a scale or zero point of one element.
        """
        return self._run(arrays)

    def run_as(self, names: Names, arrays: dict[str, Given]) -> dict[str, Array]:
        """As `run`, for functions that call the arrays by other `names`, which messages then use."""
        return self._run(arrays, names)

    def pack(self, operand: Array, bias: Array | None = None, *, denormals: str = "keep") -> Packed:
        """Pack weights, and the bias where the problem has one, for any number of calls. Can be saved.

        A problem without weights among its inputs packs another operand, or none (UsageError). Denormal weights slow
        every multiplication, and give a DenormalWarning; `denormals="flush"` takes them as zero.
        """
        return self._host.pack(with_denormals(denormals, "weights", operand), bias, _CALL)

    def lowered(self, instruments: Sequence[Instrument]) -> Lowered:
        """What the rewrites make, run again and seen by instruments."""
        with import_lock:
            from convsmith.compiler.driver import lower
            from convsmith.plan.plan import plan

        return lower(plan(self.problem.canonical(), self.config, self.target), instruments)

    def __repr__(self) -> str:
        return f"<CompiledKernel {self.problem} {self.config}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.problem, self.target.isa, self.config)

    def _fallback(self) -> HostKernel:
        """The kernel for weights that are not finite: one that multiplies no stored zeros."""
        config = replace(self.config, realise="peel")
        return HostKernel(compile_problem(self.problem, target=self.target, config=config))

    def _traced(self, work: Callable[..., Any], *arguments: Any) -> Any:
        start = perf_counter()
        result = work(*arguments)
        took = perf_counter() - start
        given = arguments[0].values() if isinstance(arguments[0], dict) else arguments
        trace.emit(
            "exec", status="ok", isa=self.config.isa, threads=self.config.threads, time_ms=took * 1e3,
            config=self.config, detail=f"packed={any(type(array) is Packed for array in given)}",
            repro=repro("bench", self.problem, str(self.config)),
        )  # fmt: skip
        return result


def _restored(problem: Problem, isa: str, config: Config) -> CompiledKernel:
    """The kernel that a pickle holds."""
    return CompiledKernel(problem, known_target(isa), config, config.threads)
