"""A kernel for any sizes: a table of kernels by the sizes of a call.

    k = cs.compile("mb1ic64ih56oc64oh56kh3ph1", dynamic="mb,ih,iw")
    y = k(x, k.pack(w))                       # the pads of the line, at both ends
    y = k(x, w, pads=((0, 2), (1, 1)))        # front and back pad of each axis

Sizes follow from arrays and pads (`call_sizes.py`).  The code is compiled and linked once; the first call with a shape
binds the code to that shape.  A device has a kernel for each shape, which the first call with it compiles, or loads
from the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import lru_cache, partial

from convsmith.codegen.artifact import FINITE, Artifact
from convsmith.compiler.dynamic import at_call, given_tensor, requirements
from convsmith.diag.choices import choices
from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.diag.expect import shown
from convsmith.diag.forking import cached_property
from convsmith.diag.record import record
from convsmith.frontend.call_sizes import Pads, deciding, pad_pairs, problem_of_call
from convsmith.frontend.host_kernels import Load, host_kernel
from convsmith.frontend.nothing import empty_kernel, has_empty_tensor
from convsmith.layout.requirements import Requirements
from convsmith.machine.base import Machine
from convsmith.problem.chain import Chain
from convsmith.problem.conv import Conv
from convsmith.problem.problem import Problem
from convsmith.runtime.arrays import Array, beyond_text, is_within
from convsmith.runtime.border import Given, Names
from convsmith.runtime.host_kernel import HostKernel
from convsmith.runtime.loading import LoadedCode, library_of
from convsmith.runtime.packed import Packed
from convsmith.runtime.resident import ResidentCall
from convsmith.schedule.call_variants import may_read_through_table, variant_of_call
from convsmith.schedule.config import Config
from convsmith.schedule.dynamic import check_dynamic, symbolic_dims
from convsmith.schedule.wish import Decisions, Wish
from convsmith.tune.compile import compile_problem
from convsmith.tune.devices.device import device_config

__all__ = ["AnySizes", "KernelsBySize", "any_sizes"]

_SIDES = {"src": "source", "diff_dst": "result's gradient"}
"""Arrays that determine the sizes of a call, and their descriptions."""
_KEPT, _KEPT_OF_DEVICE = 8, 64
"""Maximum numbers of sizes whose kernels are kept: of one code, and of a device, where each has its own."""


def _dims(problem: Problem, names: str) -> frozenset[str]:
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


def any_sizes(problem: Problem, names: str, target: Machine, config: Decisions | None, threads: int) -> AnySizes:
    """Return what serves any sizes of the dims in `names`, and any pads, of `problem`, whose open layouts are `axb`."""
    if isinstance(problem, Conv | Chain):
        axb = {tag: "axb" for tag in ("stag", "dtag") if getattr(problem, tag) == "any"}
        problem = replace(problem, **axb)  # type: ignore[arg-type]
    p = check_dynamic(problem)
    dims = _dims(p, names)
    sizes = requirements(p, dims)
    if target.device is None:
        artifact = compile_problem(p, target=target, config=config, threads=threads, requirements=sizes)
        return AnySizes(p, dims, sizes, target, artifact)
    if isinstance(config, Wish):
        config = Config.parse(compile_problem(p, target=target, config=config, threads=threads).config)
    assert isinstance(config, Config | None)
    own = config or _device_config(p, target)
    return AnySizes(p, dims, sizes, target, compile_problem(p, target=target, config=own, threads=threads), config)


def _device_config(problem: Problem, target: Machine) -> Config:
    """Return the default config, which packs nothing, so that packed weights serve all sizes."""
    return device_config(problem.canonical(), target, packs=False)


@record(frozen=True)
class AnySizes:
    """A `problem` with the `dims` whose sizes may differ from call to call, and the `sizes` that all calls must have.

    The `artifact` is the code for all sizes; on a device, it is the code for the sizes of the line, and the config
    `given` applies to all sizes.
    """

    problem: Problem
    dims: frozenset[str]
    sizes: Requirements
    target: Machine
    artifact: Artifact
    given: Config | None = None

    @cached_property
    def _variants(self) -> dict[tuple[Problem, Config], Artifact]:
        """The code of each problem under each config that has served a call."""
        return {(self.problem, Config.parse(self.artifact.config)): self.artifact}

    def _code(self, q: Problem) -> tuple[Artifact, Problem]:
        """Return the code for ``q``, the problem of a call, whose packed weights are those of the artifact; and ``q``
        in the layouts of that code.
        """
        config, p = Config.parse(self.artifact.config), self.problem
        if isinstance(q, Conv) and isinstance(p, Conv):
            q, config = variant_of_call(q, config, self.target)
            p = replace(p, stag=q.stag, dtag=q.dtag)
        if (p, config) not in self._variants:
            made = compile_problem(p, target=self.target, config=config, requirements=self.sizes)
            self._variants[p, config] = made
        return self._variants[p, config], q

    @property
    def limits(self) -> dict[str, float]:
        """The limits of packed operands, which all variants read."""
        reads = may_read_through_table(self.problem, Config.parse(self.artifact.config))
        return {"wei": FINITE, **self.artifact.limits} if reads else self.artifact.limits

    def at(self, q: Problem, load: Load, library: LoadedCode) -> HostKernel:
        """Return the kernel at the sizes of the problem ``q`` of a call; `library` is the code of the artifact."""
        if has_empty_tensor(q):
            return empty_kernel(q, self.artifact, library)
        threads = Config.parse(self.artifact.config).threads
        if self.target.device is None:
            fallback = partial(_of_these_sizes, q, self.target, threads, load)
            own, called = self._code(q)
            artifact = at_call(own, called)
            if own is not self.artifact:
                return HostKernel(artifact, fallback, load(artifact))
            # An emulator copies the arrays that the entries describe; code of this process is told sizes by the block.
            return HostKernel(artifact, fallback, library if load is library_of else load(artifact))
        given = self.given or _device_config(q, self.target)
        artifact = compile_problem(q, target=self.target, config=given, threads=threads)
        return host_kernel(q, self.target, given, artifact, load)


def _of_these_sizes(q: Problem, target: Machine, threads: int, load: Load) -> HostKernel:
    """Return a kernel for exactly these sizes, which multiplies no stored zeros."""
    q = q.without_transforms()
    artifact = compile_problem(q, target=target, threads=threads)
    config = Config.parse(artifact.config).of_each(realise="peel")
    artifact = compile_problem(q, target=target, config=config)
    return HostKernel(artifact, library=load(artifact))


def _require_within(name: str, weights: Array, limit: float) -> None:
    """Raise UnsupportedError if `weights` hold elements beyond `limit`."""
    if not is_within(weights, limit):
        raise UnsupportedError(
            f"{name} hold {beyond_text(limit)}, with which this kernel would compute wrong results; legal are plain "
            "weights at each call, which runs another kernel",
            code="non-finite",
        )


_Shapes = tuple[tuple[int, ...] | None, ...]


class KernelsBySize:
    """Kernels by the sizes of a call, which its arrays and `pads` determine, with the calls of `HostKernel`.

    The kernel of an earlier call with equal sizes is found in a table. Several threads may call at once.
    """

    def __init__(self, of: AnySizes, load: Load) -> None:
        library = load(of.artifact)
        self._problem, self._deciding = of.problem, deciding(of.problem)
        self._packing, self._limits = HostKernel(of.artifact, library=library), of.limits
        self._pads: Pads | None = None

        # A bound method would keep its kernel, which holds the table, until the garbage collector finds the cycle.
        problem, names, fixed = of.problem, self._deciding, of.sizes.fixed

        @lru_cache(_KEPT if of.target.device is None else _KEPT_OF_DEVICE)
        def at(shapes: _Shapes, given: Pads | None) -> HostKernel:
            pads = None if given is None else pad_pairs(problem, given)
            return of.at(problem_of_call(problem, fixed, dict(zip(names, shapes)), pads), load, library)

        self._table = at

    def with_pads(self, pads: Pads) -> KernelsBySize:
        """Return the same kernels for calls with `pads`."""
        # Equal numbers have equal hashes, so only legal values may become keys.
        known = type(pads) is int and isinstance(self._problem, Conv)
        other = object.__new__(KernelsBySize)
        other.__dict__.update(self.__dict__)
        other._pads = pads if known else pad_pairs(self._problem, pads)
        return other

    def at(self, arrays: Mapping[str, Given | None]) -> HostKernel:
        """Return the kernel at the sizes of a call with these arrays."""
        return self._table(tuple([self._shape(name, arrays) for name in self._deciding]), self._pads)

    def _shape(self, name: str, arrays: Mapping[str, Given | None]) -> tuple[int, ...] | None:
        """Return the shape of an array that determines the sizes of a call; None for a result that is not passed."""
        array = arrays.get(name)
        if array is None and self._problem.tensor(name).role == "out":
            return None
        if name not in arrays:
            raise UsageError(f"{name}: missing; the sizes of a call are those of its {_SIDES[name]}", code="missing")
        shape = getattr(array, "shape", None)
        if shape is None:
            raise UsageError(f"{name}: expected an array, got {type(array).__name__}", code="not-an-array")
        return tuple(shape)

    def _at_call(self, src: Given, out: Given | None) -> HostKernel:
        return self.at({self._deciding[0]: src, "dst": out})

    def call(
        self, src: Array, weights: Packed | Array, bias: Array | None = None, out: Array | None = None,
        names: Names | None = None,
    ) -> Array:  # fmt: skip
        """Return the destination, computed from arrays passed by position."""
        return self._at_call(src, out).call(src, weights, bias, out)

    def run(self, arrays: Mapping[str, Given], names: Names | None = None) -> dict[str, Array]:
        """Return the outputs by name, computed from the inputs by name."""
        return self.at(arrays).run(arrays)

    def bind(self, src: Array, weights: Packed | Array, out: Array, names: Names | None = None) -> Callable[[], object]:
        """Return a function that computes on these arrays at each call; sizes are determined once."""
        return self._at_call(src, out).bind(src, weights, out)

    def bind_each(self, arrays: Mapping[str, Given]) -> Callable[[], object]:
        """Return a function that computes on these arrays, by name, at each call; sizes are determined once."""
        return self.at(arrays).bind_each(arrays)

    def pack(
        self, operand: Array, bias: Array | None = None, names: Names | None = None, *, warns: bool = True
    ) -> Packed:
        """Return packed weights, with the bias if the problem has one, for any number of calls of any shape."""
        checked, _ = self._packing.border.check_operand(operand, bias)
        for limit in self._limits.values():
            _require_within("weights", checked, limit)
        return self._packing.pack(operand, bias, warns=warns)

    @property
    def packable(self) -> Collection[str]:
        """The names of the operands that `pack_each` packs."""
        return self._packing.packable

    def pack_each(self, operands: Mapping[str, Array]) -> dict[str, Packed | Array]:
        """Return packed operands by name, for any number of calls of `run` of any shape."""
        for name, limit in self._limits.items():
            if name in operands:
                _require_within(name, self._packing.border.specs[name].check(operands[name], name), limit)
        return self._packing.pack_each(operands)

    @property
    def signature(self) -> str:
        """The signature of the packed operands that calls accept."""
        return self._packing.signature

    def resident(self, arrays: Mapping[str, Array]) -> ResidentCall | None:
        """Return a call on copies of these arrays in memory of a device; see `HostKernel.resident`."""
        return self.at(arrays).resident(arrays)
