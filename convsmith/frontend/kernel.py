"""`CompiledKernel`: a compiled problem that can be called, and that answers questions about how it was made.

A call goes straight to the run time's `HostKernel`. All questions (`ir`, `asm`, `explain`) run the compiler again, so a
kernel loaded from the cache costs no more than its code.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeGuard

from convsmith.codegen.artifact import Artifact
from convsmith.compiler.service import repro
from convsmith.diag import trace
from convsmith.diag.errors import UsageError
from convsmith.diag.expect import shown
from convsmith.diag.forking import import_lock
from convsmith.frontend.host_kernels import Load, host_kernel, without_limits
from convsmith.frontend.inspection import Inspected
from convsmith.frontend.nothing import empty_kernel, has_empty_tensor
from convsmith.frontend.public import public
from convsmith.layout.requirements import FIXED
from convsmith.machine.base import Machine
from convsmith.machine.registry import target as known_target
from convsmith.problem.problem import Problem
from convsmith.problem.tensor import Tensor
from convsmith.runtime.arrays import Array
from convsmith.runtime.border import Given, Names
from convsmith.runtime.denormals import with_denormals
from convsmith.runtime.host_kernel import HostKernel
from convsmith.runtime.kept import KeptWeights
from convsmith.runtime.loading import library_of
from convsmith.runtime.packed import Packed
from convsmith.runtime.resident import ResidentCall
from convsmith.schedule.config import Config
from convsmith.schedule.given import GivenSchedule
from convsmith.schedule.wish import Decisions
from convsmith.tune.compile import compile_problem

if TYPE_CHECKING:
    from convsmith.frontend.any_sizes import AnySizes, KernelsBySize
    from convsmith.frontend.call_sizes import Pads
    from convsmith.measure.verification import Verdict
    from convsmith.schedule.plan import Plan
    from convsmith.statement.winograd import Winograd

__all__ = ["CompiledKernel"]

_CALL = Names({"src": "x", "wei": "weights", "bia": "bias", "dst": "out"})
"""Names of tensors in messages of `CompiledKernel.__call__`, `bind` and `pack`."""


class CompiledKernel(Inspected):
    """The kernel of `problem` for `target`: `k(x, k.pack(w))` or `k(x, w)`, or `k.run(src=x, wei=w)` by name.

    `config` holds every decision, `artifact` the object code with its manifest. A problem with an empty tensor compiles
    nothing: `artifact` is None, `config` has no effect, and bias and post-ops are applied to zero. Several threads may
    call a kernel at once.

    Arrays are numpy's, or come from any library with DLPack or the array interface, on the CPU. They are not copied,
    and a new result belongs to the library of the activations. Grouped weights may lack the group dim, as in PyTorch's
    shape (OC, IC/G, *kernel). A pickle holds problem, config and target, from which the kernel is compiled again.

    `load` returns the functions of an artifact's entries: by default this machine, or a device of it, runs them.

    `dynamic` names dims, such as "mb,ih,iw", whose sizes may differ from call to call; a call may then have any `pads`
    too. `requirements` lists the other dims. Gradients and chains are computed by `run`; a chain uses the pads of its
    line. A device has a kernel for each size: plan, IR and code belong to the kernel at the sizes of the line.
    """

    def __init__(
        self, problem: Problem, target: Machine, config: Decisions | None = None, threads: int = 1,
        load: Load = library_of, dynamic: str | None = None,
    ) -> None:  # fmt: skip
        self.problem, self.target = problem, target
        if isinstance(config, GivenSchedule):
            config = replace(config, target=target.name, threads=config.threads or threads)
        self.artifact: Artifact | None = None
        self._any_sizes: AnySizes | None = None
        if dynamic is not None:
            with import_lock:  # it imports the planner, which a kernel from the cache does not need
                from convsmith.frontend.any_sizes import any_sizes

            self._any_sizes = sizes = any_sizes(problem, dynamic, target, config, threads)
            self.problem, self.artifact = sizes.problem, sizes.artifact
            self.config = Config.parse(sizes.artifact.config)
            self.sizes = sizes.sizes if target.device is not None else FIXED
        elif has_empty_tensor(problem):
            self.config = config if _decides(config) else Config(target.name, "oc", threads=threads)
        else:
            self.artifact = compile_problem(problem, target=target, config=config, threads=threads)
            self.config = config if _decides(config) else Config.parse(self.artifact.config)
        self._load_with(load)

    def _load_with(self, load: Load) -> None:
        """Make calls run the functions that `load` returns."""
        self._load = load
        host: HostKernel | KernelsBySize
        if self.artifact is None:
            host = empty_kernel(self.problem)
        elif self._any_sizes is not None:
            with import_lock:
                from convsmith.frontend.any_sizes import KernelsBySize

            host = KernelsBySize(self._any_sizes, load)
        else:
            host = host_kernel(self.problem, self.target, self.config, self.artifact, load)
        self._host = host
        self._call: Callable[..., Array] = host.call
        self._run: Callable[..., dict[str, Array]] = host.run
        if trace.enabled("exec"):
            self._call, self._run = partial(self._traced, host.call), partial(self._traced, host.run)

    @property
    def dynamic(self) -> frozenset[str]:
        """The dims whose sizes may differ from call to call."""
        return frozenset() if self._any_sizes is None else self._any_sizes.dims

    @property
    def requirements(self) -> dict[str, int]:
        """The fixed sizes by dim, if other sizes may differ from call to call."""
        return {} if self._any_sizes is None else dict(self._any_sizes.sizes.fixed)

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        """The arrays that `run` takes and returns: name, role ("in", "out", "inout"), shape, dtype, layout, default.

        Sizes that may differ from call to call are those of the line here.
        """
        return self.problem.tensors

    def __call__(
        self, x: Array, weights: Packed | Array, bias: Array | None = None, *, out: Array | None = None,
        pads: Pads | None = None,
    ) -> Array:  # fmt: skip
        """Return the convolution of `x` with plain weights (and bias), or with packed weights.

        Shapes are logical, (N, C, *spatial); a blocked layout has its physical shape. The result is `out`, or a new
        array in the destination's layout; a `sum` post-op reads the content of `out`. Other arrays have their defaults.
        UsageError, before any result is written, names an array that does not fit, or the names for `run` if the
        problem is not forward or has further arrays without defaults.

        `pads`, legal if sizes may differ from call to call: a number for all axes, or per axis a number or (front,
        back); by default the front pads of the line, at both ends.
        """
        if pads is not None:
            return self._with_pads(pads).call(x, weights, bias, out, _CALL)
        return self._call(x, weights, bias, out, _CALL)

    def _with_pads(self, pads: Pads | None) -> HostKernel | KernelsBySize:
        """Return the kernels that compute calls with `pads`. UsageError if the kernel has the pads of its line."""
        if pads is None:
            return self._host
        if isinstance(self._host, HostKernel):
            raise UsageError(
                f"pads={shown(pads)}: this kernel has the sizes and pads of {self.problem}; legal is a kernel for "
                "sizes of each call, which compile() returns with dynamic=",
                code="bad-pads",
            )
        return self._host.with_pads(pads)

    @property
    def host(self) -> HostKernel:
        """The kernel that computes calls, also on addresses. UsageError if sizes may differ from call to call."""
        if not isinstance(self._host, HostKernel):
            raise UsageError(f"{self.problem}: a call on addresses has fixed sizes; legal is no dynamic=", code="sizes")
        return self._host

    def bind(self, x: Array, weights: Packed | Array, out: Array, pads: Pads | None = None) -> Callable[[], object]:
        """Return a function that computes on these arrays at each call; they are checked once, here.

        The contents of `x` and `out` may change in between; plain weights are packed here. Only one thread at a time
        may call the function.
        """
        return self._with_pads(pads).bind(x, weights, out, _CALL)

    def run(self, *, pads: Any = None, **arrays: Given) -> dict[str, Array]:
        """Compute on arrays by name, as `arguments` lists them; return the outputs by name.

        Outputs that are passed are written in place; "inout" arrays must be passed. Inputs with a default may be
        omitted. The result of `pack` may replace the operand that it packs, and a number may replace a scale or zero
        point of one element. `pads` are as in a call.
        """
        return self._run(arrays) if pads is None else self._with_pads(pads).run(arrays)

    def run_as(self, names: Names, arrays: dict[str, Given]) -> dict[str, Array]:
        """Compute like `run`, but with different names for the arrays, also in messages."""
        return self._run(arrays, names)

    def kept(self, weights: KeptWeights, names: Names, w: Array, bias: Array | None) -> Packed | None:
        """Return kept packed weights for these arrays; None at their first call."""
        host = self._host
        return weights.packed(host.signature, w, bias, lambda: host.pack(w, bias, names)) if host.signature else None

    def call_as(self, names: Names, x: Array, packed: Packed, out: Array | None) -> Array:
        """Compute like a call with packed weights, but with different names for the arrays in messages."""
        return self._call(x, packed, None, out, names)

    def pack(self, operand: Array, bias: Array | None = None, *, denormals: str = "keep") -> Packed:
        """Return packed weights, with the bias if the problem has one, for any number of calls. They can be saved.

        If the inputs include no weights, another operand is packed; UsageError if there is none. Denormal weights slow
        every multiplication and cause a DenormalWarning; `denormals="flush"` replaces them by zero.
        """
        kept = with_denormals(denormals, "weights", operand)
        return self._host.pack(kept, bias, _CALL, warns=denormals == "keep")

    def bind_each(self, *, pads: Any = None, **arrays: Given) -> Callable[[], object]:
        """Return a function that computes on these arrays, by name, at each call; they are checked once, here.

        Contents may change in between: each call packs operands that are plain arrays. Only one thread at a time may
        call the function.
        """
        return self._with_pads(pads).bind_each(arrays)

    def resident(self, arrays: Mapping[str, Array]) -> ResidentCall | None:
        """Return a call on copies of these arrays, which fit, in memory of the device that the kernel runs on; None if
        it runs on host memory.
        """
        return self._host.resident(arrays)

    @property
    def packable(self) -> Collection[str]:
        """The names of the operands that `pack_each` packs, such as the weights of the stages of a chain."""
        return self._host.packable

    def pack_each(self, **operands: Array) -> dict[str, Packed | Array]:
        """Return packed operands by name, such as the weights of the stages of a chain, for any number of calls of
        `run`.
        """
        return self._host.pack_each(operands)

    @property
    def signature(self) -> str:
        """The signature of the packed weights that a call takes; empty if it takes none."""
        return self._host.signature

    def export(self, directory: str | os.PathLike[str], **options: Any) -> Any:
        """Write the kernel for programs without Python, and return the `ExportedLibrary`; the options are as in
        `convsmith.export`.
        """
        return public("export")(self, directory, **options)

    def _new_plan(self) -> Plan:
        with import_lock:
            from convsmith.schedule.dynamic import general
            from convsmith.schedule.planned import plan_for

        sizes = FIXED if self.artifact is None else self.artifact.requirements
        problem = general(self.problem) if sizes else self.problem
        return plan_for(problem.canonical(), self.config, self.target, sizes)

    @property
    def transforms(self) -> tuple[Winograd, ...]:
        """The transforms that the kernel uses, each with its expected error; empty if it sums products."""
        return self.plan().program.transforms if self.config.has_transform else ()

    def __repr__(self) -> str:
        sizes = f" dynamic={','.join(sorted(self.dynamic))}" if self.dynamic else ""
        return f"<CompiledKernel {self.problem} {self.config}{sizes}>"

    def __reduce__(self) -> tuple[Any, ...]:
        dims = ",".join(sorted(self.dynamic)) or None
        return _restored, (self.problem, self.target.name, self.config, self._load, dims)

    def emulated(self) -> CompiledKernel:
        """Return this kernel with calls that run in an emulator of its target, which need not be this machine.

        UnsupportedError if no emulator runs code for the target, or it is not installed (the message names the package
        to install). A call raises ToolchainError if the emulated code has a fault.
        """
        with import_lock:
            from convsmith.emulate.emulators import emulator_for

        load = emulator_for(self.target).load
        kernel = object.__new__(CompiledKernel)
        kernel.__dict__.update(self.__dict__)
        kernel._load_with(load)
        return kernel

    def verify(self, seed: int = 0, *, real: bool = False) -> Verdict:
        """Return the verdict of comparing the kernel's results on random data with the numpy reference.

        Integer-valued data must give equal results; `real` data may err within a bound. If this machine does not run
        code for the target, an emulator does, as `emulated` says.
        """
        with import_lock:
            from convsmith.emulate.emulators import is_native
            from convsmith.measure.verification import verify_kernel

        return verify_kernel(self if is_native(self.target) else self.emulated(), seed, real)

    def without_limits(self) -> CompiledKernel:
        """Return the kernel of the same problem for weights beyond the limits of this one."""
        problem, config = without_limits(self.problem, self.target, self.config)
        return CompiledKernel(problem, self.target, config, config.threads, self._load)

    def on(self, target: Machine) -> CompiledKernel:
        """Return this kernel on its target or on an alternative of that, which has the same config."""
        same = target == self.target
        return self if same else CompiledKernel(self.problem, target, self.config, self.config.threads, self._load)

    def _traced(self, work: Callable[..., Any], *arguments: Any) -> Any:
        start = perf_counter()
        result = work(*arguments)
        took = perf_counter() - start
        given = arguments[0].values() if isinstance(arguments[0], dict) else arguments
        trace.emit(
            "exec", status="ok", target=self.config.target, threads=self.config.threads, time_ms=took * 1e3,
            config=self.config, detail=f"packed={any(type(array) is Packed for array in given)}",
            repro=repro("bench", self.problem, str(self.config)),
        )  # fmt: skip
        return result


def _decides(config: Decisions | None) -> TypeGuard[Config | GivenSchedule]:
    """Return whether `decisions` leave no decision open."""
    return isinstance(config, Config | GivenSchedule)


def _restored(
    problem: Problem, target: str, config: Config | GivenSchedule, load: Load,
    dynamic: str | None,
) -> CompiledKernel:
    """Return the kernel that a pickle holds."""
    return CompiledKernel(problem, known_target(target), config, config.threads, load, dynamic)
