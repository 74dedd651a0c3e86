"""`HostKernel`: an artifact as a callable on numpy arrays.

Several Python threads may call a kernel at once: each call uses its own argument block and scratch memory, which later
calls reuse. Native code runs without the GIL.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from math import isnan, nan
from typing import Any

import numpy as np

from convsmith.codegen.artifact import Artifact
from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.diag.forking import RenewedLock
from convsmith.runtime.arrays import (
    Array,
    address_of,
    as_array,
    beyond_text,
    is_within,
    magnitude,
    within_text,
)
from convsmith.runtime.border import BY_NAME, Border, Given, Names, border_of
from convsmith.runtime.denormals import count_denormals, warn_of_denormals
from convsmith.runtime.foreign import is_negated
from convsmith.runtime.gpu_arrays import FiniteArrays, GpuArguments, is_on_gpu, stream_of
from convsmith.runtime.gpu_calls import GpuCalls, StreamCall
from convsmith.runtime.kernel_calls import KernelCalls, Launch, addresses_of
from convsmith.runtime.loading import DeviceMemory, LoadedCode, library_of, memory_of
from convsmith.runtime.operand_packing import OperandPacking, PlainCalls
from convsmith.runtime.packed import Packed
from convsmith.runtime.prepared_call import Frame, PreparedCall
from convsmith.runtime.resident import ResidentCall

__all__ = ["HostKernel"]

_ndarray = np.ndarray
_making = RenewedLock()
_BY_POSITION = ("src", "dst", "wei", "bia")
"""Arrays of a call with packed weights."""
_PLAIN = ("src", "wei", "dst")
"""Arrays of a call with plain weights that needs no others."""


class HostKernel:
    """A compiled problem: `pack` weights once, then call with activations; or `run` on arrays by name.

    Elements beyond `artifact.limits` would make the results wrong; `fallback` creates the kernel for operands with such
    elements, at most once, at their first use. Kernels of the same code can share a `library`. `plain` creates the
    kernel for repeated calls with plain weights, or returns None if this one is as fast.
    """

    def __init__(
        self, artifact: Artifact, fallback: Callable[[], HostKernel] | None = None, library: LoadedCode | None = None,
        plain: Callable[[], HostKernel | None] | None = None,
    ) -> None:  # fmt: skip
        library = library or library_of(artifact)
        self.artifact = artifact
        self._gpu = memory_of(library)
        self._border = border = border_of(artifact)
        self._packing = packing = OperandPacking(artifact, border, library)
        self._calls = KernelCalls(artifact, border, packing, library)

        self._signature = packing.signature
        self._limit = artifact.limits.get(border.operand)
        self._finite, self._gpu_calls = FiniteArrays(), None
        if self._gpu is not None:
            self._gpu_calls = GpuCalls(
                border, self._gpu, self._signature, self._limit, self._is_direct, self._calls.on_stream
            )
        self._make_fallback = fallback
        self._fallback: HostKernel | None = None
        self._looks_for_denormals, self._plain_calls = True, PlainCalls(plain)

        needed = border.specs.keys() - border.defaults.keys()
        is_plain = border.forward and needed == {*_PLAIN}
        self._takes_plain = is_plain and not (artifact.limits or border.empty or self._gpu)
        """Whether a call with plain weights needs only their address, and those of source and destination."""
        self._on_packed: PreparedCall | None = None
        self._common: tuple[Any, ...] = ("", *[None] * 8, 0, None)
        if self._is_direct:
            s, d = self._src, self._dst = border.specs["src"], border.specs["dst"]
            self._common = (
                self._signature,
                s.dtype, s.shape, s.stride_forms, s.extent,
                d.dtype, d.shape, d.stride_forms, d.extent,
                s.misalignment | d.misalignment, self._limit,
            )  # fmt: skip

    @property
    def border(self) -> Border:
        """The tensors of a call, and the checks of its arrays."""
        return self._border

    @property
    def packing(self) -> str:
        """The name of the packing. A packed operand is legal for every kernel with the same packing."""
        return self._packing.name

    @property
    def signature(self) -> str:
        """The signature of the packed operands that the kernel accepts."""
        return self._signature

    def pack(
        self, operand: Array, bias: Array | None = None, names: Names = BY_NAME, *, warns: bool = True
    ) -> Packed:
        """Return packed weights (with the bias, if the problem has one) for any number of calls.

        Arrays have the problem's shapes. UsageError names an array that does not fit. `warns` is whether denormal
        weights cause a warning.
        """
        checked, own_bias = self._border.check_operand(operand, bias, names)
        if warns and self._border.packs_weights:
            self._look_for_denormals(checked, names)
        return self._packed(checked, own_bias)

    @property
    def packable(self) -> Collection[str]:
        """The names of the operands that `pack_each` packs."""
        return self._border.packable

    def pack_each(self, operands: Mapping[str, Array], names: Names = BY_NAME) -> dict[str, Packed | Array]:
        """Return `operands` packed, by name, for any number of calls of `run`. UsageError names an array that does not
        fit.
        """
        found: dict[str, Packed | Array] = {}
        for name, array in operands.items():
            if name not in self._border.packable:
                raise UsageError(
                    f"{name}: not packed alone; legal are {', '.join(sorted(self._border.packable)) or 'none'}",
                    code="packing",
                )
            checked = self._border.specs[name].check(array, names[name])
            buffer = self._packing.pack_alone(name, checked)
            found[name] = Packed(self._packing.name_of(name), buffer, None, magnitude(checked))
        return found

    def __call__(
        self, src: Array, weights: Packed | Array, bias: Array | None = None, *, out: Array | None = None
    ) -> Array:
        """Return the destination, computed with packed weights, or with plain weights (and the bias, if there is one).

        The result is a new array of the destination's shape and strides, or `out`, which must not share memory with an
        input. UsageError names an array that does not fit, before anything is written.
        """
        return self.call(src, weights, bias, out)

    def call(
        self, src: Array, weights: Packed | Array, bias: Array | None = None, out: Array | None = None,
        names: Names = BY_NAME,
    ) -> Array:  # fmt: skip
        """Compute like calling the kernel, for wrappers: `object(...)` costs 0.2 us more than a method."""
        # The fast path of the common call; each test below is a reason to take the general path.
        (signature, src_type, src_shape, src_strides, src_extent, dst_type, dst_shape, dst_strides, dst_extent,
         misalignment, limit) = self._common  # fmt: skip
        if (
            type(weights) is Packed
            and weights.signature is signature
            and bias is None
            and type(src) is _ndarray
            and type(out) is _ndarray
            and src.dtype is src_type
            and out.dtype is dst_type
            and src.shape == src_shape
            and out.shape == dst_shape
            and src.strides in src_strides
            and out.strides in dst_strides
            and out.flags.writeable
            and (limit is None or weights.magnitude <= limit)
        ):
            source, target = address_of(src), address_of(out)
            if not (source | target) & misalignment and (
                source + src_extent <= target or target + dst_extent <= source
            ):
                call = self._on_packed or self._call_on_packed()
                packed, of_bias = weights.addresses
                call.run((source, target, packed, of_bias), (src, weights, out))
                return out
        elif (
            out is None
            and bias is None
            and type(weights) is Packed
            and weights.signature is signature
            and isinstance(src, _ndarray)
            and (limit is None or weights.magnitude <= limit)
            and not self._border.adds_to_result
        ):
            ready, made = self._src.prepare(self._src.check(src, names["src"])), self._dst.empty()
            call = self._on_packed or self._call_on_packed()
            call.run((address_of(ready), address_of(made), *weights.addresses), (ready, weights, made))
            return made
        elif type(weights) is _ndarray and bias is None and self._takes_plain:
            if self._has_run(src, weights, out, names):
                return out  # type: ignore[return-value]
        if self._gpu_calls is None:
            return self.run(self._border.positional(src, weights, bias, out, names), names)["dst"]
        result = self._gpu_calls.result(src, weights, bias, out)
        if result is None:
            result = self.run(self._border.positional(src, weights, bias, out, names), names)["dst"]
            self._gpu_calls.learn(src, weights, bias, out, result)
        return result  # type: ignore[no-any-return]

    def _has_run(self, src: object, weights: Array, out: object, names: Names) -> bool:
        """Return whether the kernel has computed on plain weights, and on arrays that fit as they are."""
        arrays: list[Array] = [src, weights, out]  # type: ignore[list-item]
        specs = self._border.specs
        fit = all([specs[name].fits(x) for name, x in zip(_PLAIN, arrays)])
        if not (fit and arrays[-1].flags.writeable and self._border.is_apart("dst", arrays[-1], _PLAIN, arrays[:-1])):
            return False
        server = self._on_weights(weights, names)
        if not server._takes_plain:
            return False
        server._calls.on_host(_PLAIN, ()).run([address_of(x) for x in arrays], arrays)
        return True

    def bind(self, src: Array, weights: Packed | Array, out: Array, names: Names = BY_NAME) -> Callable[[], object]:
        """Return a function that computes on these arrays at each call; they are checked once, here.

        The contents of `src` and `out` may change in between; plain weights are packed here. Only one thread at a time
        may call the function.
        """
        if self._gpu is not None and any(map(is_on_gpu, (src, weights, out))):
            return partial(self.call, src, weights, None, out, names)
        as_array(names["dst"], out)
        packed = weights if isinstance(weights, Packed) else self.pack(weights, names=names)
        taken = self._border.take(self._border.positional(src, packed, None, out, names), names)
        return self._bound((src, out), *taken) or partial(self.call, src, packed, None, out, names)

    def bind_each(self, arrays: Mapping[str, Given]) -> Callable[[], object]:
        """Return a function that computes on these arrays, by name, at each call; they are checked once, here.

        The contents of plain arrays may change in between: each call packs operands that are plain. Only one thread at
        a time may call the function.
        """
        if self._gpu is not None and any(map(is_on_gpu, arrays.values())):
            return partial(self.run, arrays)
        server = self._plain_calls.kernel(self) if isinstance(arrays.get("wei"), _ndarray) else self
        return server._bound(arrays.values(), *self._border.take(arrays)) or partial(self.run, arrays)

    def _bound(
        self, given: Iterable[Given], inputs: Mapping[str, Array | Packed], results: Mapping[str, Array]
    ) -> Callable[[], object] | None:
        """Return a function that computes on the checked arrays of a call; None if one of the `given` arrays must be
        copied, or each call has to examine its contents.
        """
        arrays: dict[str, Array | Packed] = {**inputs, **results}
        fit = all(isinstance(x, Packed) or self._border.specs[name].fits(x) for name, x in arrays.items())
        if not fit or self._border.empty or any(map(is_negated, given)):
            return None
        self._packing.check(inputs)
        for name in self.artifact.limits:
            operand = inputs.get(name)
            if not isinstance(operand, Packed) or name != self._border.operand or self._server(operand) is not self:
                return None
        packed = tuple(name for name, x in inputs.items() if isinstance(x, Packed))
        return self.addressed(tuple(arrays), packed).bind(addresses_of(arrays.values()), arrays)

    def placed(self, constants: Mapping[str, Given], names: Sequence[str], scratch: int) -> Frame:
        """Return blocks for calls on memory at addresses of the arrays `names`, which the caller writes; the arrays and
        packed operands `constants` are the same in every call.

        The call also uses `scratch_bytes` of memory from the address `scratch`, a multiple of `ALIGNMENT`.
        """
        packed, server = constants.get(self._border.operand), self._server_of(constants)
        if server is not self:
            return server.placed(constants, names, scratch)
        inputs = self._checked(constants)
        if isinstance(packed, Packed) and packed.bias is not None:
            inputs["bia"] = packed.bias
        self._check_packed(inputs)
        return self._calls.placed(inputs, names, scratch)

    @property
    def scratch_bytes(self) -> int:
        """Bytes of memory that a placed call needs, besides its arrays."""
        own = self._fallback.scratch_bytes if self._fallback is not None else 0
        return max(own, self._calls.scratch_bytes)

    def addressed(self, names: Sequence[str], packed: Collection[str] = (), *, fresh: bool = False) -> PreparedCall:
        """Return the call on the addresses of the arrays `names`, as `KernelCalls.addressed` does."""
        return self._calls.addressed(names, packed, fresh=fresh)

    def launched(self, names: Sequence[str], packed: Sequence[str], stream: Callable[[], int]) -> StreamCall:
        """Return the call on the addresses of the arrays `names`, all in memory of the GPU, which launches on the
        stream that `stream` returns; otherwise like `addressed`. UnsupportedError if calls run on host memory.
        """
        if self._gpu is None:
            raise UnsupportedError(f"{self.artifact.problem!r}: its kernel runs on host memory", code="device")
        return StreamCall(self._gpu, self._calls.on_stream, names, packed, stream)

    def launched_with(self, constants: Mapping[str, Given], names: Sequence[str]) -> Launch:
        """Return the function that launches on the addresses of the arrays `names` in memory of the GPU, given what
        holds that memory, and a stream. The arrays and packed operands `constants` are copied there once.
        """
        server = self._server_of(constants)
        if server is not self:
            return server.launched_with(constants, names)
        self._check_packed(constants)
        return self._calls.launched(self._checked(constants), names)

    def _checked(self, constants: Mapping[str, Given]) -> dict[str, Array | Packed]:
        """Return `constants`, whose plain arrays are checked, and copied where they do not fit."""
        specs = self._border.specs
        return {
            name: array if isinstance(array, Packed) else specs[name].prepare(specs[name].check(array, name))
            for name, array in constants.items()
        }

    def _call_on_packed(self) -> PreparedCall:
        """Return the call with packed weights; its addresses are those of the arrays `_BY_POSITION`."""
        self._on_packed = call = self._calls.on_host(_BY_POSITION, ("wei",))
        return call

    def resident(self, arrays: Mapping[str, Array]) -> ResidentCall | None:
        """Return a call on copies of `arrays`, which fit, in device memory; None if calls run on host memory."""
        if self._gpu is None:
            return None
        return ResidentCall(self.addressed(tuple(arrays)), self._gpu, arrays, self._border.specs)

    def run(self, arrays: Mapping[str, Given], names: Names = BY_NAME) -> dict[str, Array]:
        """Compute on arrays by name: all inputs without a default, and outputs to be written in place. Return the
        outputs.

        An "inout" array is read, then written. Outputs must not share memory with inputs or each other. UsageError
        names an array that does not fit, before anything is written.
        """
        if self._gpu is not None and any(map(is_on_gpu, arrays.values())):
            return self._run_on_gpu(self._gpu, arrays, names)
        border = self._border
        inputs, results = border.take(arrays, names)
        kernel = self
        packed = inputs.get(border.operand)
        if isinstance(packed, Packed):
            kernel = self._server(packed, names)
        if not border.empty:
            self._check_packed(inputs, names)
            for name, limit in self.artifact.limits.items() if kernel is self else ():
                array = inputs.get(name)
                if isinstance(array, _ndarray) and not is_within(array, limit):
                    kernel = self._fallback_for(name)
                    break
            if kernel is self:
                self._on_weights(inputs.get("wei"), names)._compute(inputs, results)
            else:
                kernel.run({**arrays, **results}, names)
        return border.give(arrays, results)

    def _check_packed(self, inputs: Mapping[str, Given], names: Names = BY_NAME) -> None:
        """Raise UsageError if an operand that is passed by name is packed for another kernel, or beyond its limit."""
        packable = self._border.packable
        if not packable:
            return
        self._packing.check(inputs, names)
        for name in self.artifact.limits.keys() & packable:
            array, limit = inputs.get(name), self.artifact.limits[name]
            if isinstance(array, Packed) and self._packing.examine(name, array) > limit:
                text = f"{names[name]}: holds {beyond_text(limit)}; legal is a plain array"
                raise UsageError(text, code="finite")

    def _run_on_gpu(self, gpu: DeviceMemory, arrays: Mapping[str, Given], names: Names) -> dict[str, Array]:
        """Compute on arrays if some are in GPU memory; new results are allocated there."""
        for name, limit in self.artifact.limits.items():
            given = arrays.get(name)
            if isinstance(given, Packed):
                server = self._server(given, names)
                if server is not self:
                    return server.run(arrays, names)
            elif is_on_gpu(given):
                if gpu.is_capturing(stream_of(given)):
                    raise UnsupportedError(
                        f"{names[name]}: a graph is captured, and the kernel has to wait for the GPU to know whether "
                        "the array is finite; available are packed weights, as kernel.pack() returns them",
                        code="capture",
                    )
                if not self._finite.all_finite(names[name], given, stream_of(given)):
                    return self._fallback_for(name).run(arrays, names)
            elif given is not None and not is_within(as_array(names[name], given), limit):
                return self._fallback_for(name).run(arrays, names)
        arguments = GpuArguments(self._border, gpu, arrays, names)
        with gpu.on_stream(arguments.stream, arguments.resident):
            call = self._calls.on_stream(tuple(arguments.addresses), tuple(arguments.packed))
            call.run(tuple(arguments.addresses.values()), arguments.keep)
        return arguments.results

    def _compute(self, inputs: Mapping[str, Array | Packed], results: Mapping[str, Array]) -> None:
        """Run all entries on checked arrays; arrays that do not fit are copied."""
        specs = self._border.specs
        packed = tuple([name for name, x in inputs.items() if isinstance(x, Packed)])
        keep = [x if isinstance(x, Packed) else specs[name].prepare(x) for name, x in inputs.items()]
        copies: list[tuple[Array, Array]] = []
        for name, array in results.items():
            spec, made = specs[name], array
            if not spec.fits(array):
                made = spec.prepare(array) if spec.argument.role == "inout" else spec.empty()
                copies.append((array, made))
            keep.append(made)
        self._calls.on_host((*inputs, *results), packed).run(addresses_of(keep), keep)
        for array, made in copies:
            np.copyto(array, made)

    @property
    def _is_direct(self) -> bool:
        """Whether a call with packed weights needs only the addresses of source, destination, weights and bias."""
        border = self._border
        return (
            border.forward
            and not border.empty
            and not border.without_default
            and border.packs_weights
            and self._packing.entries.keys() <= {border.operand}
            and self.artifact.limits.keys() <= {border.operand}
        )

    def _packed(self, operand: Array, bias: Array | None) -> Packed:
        """Pack checked arrays, for the fallback if this kernel cannot multiply by them."""
        largest = nan if self._limit is None else magnitude(operand)
        if self._limit is not None and largest > self._limit:
            packed = self._fallback_for(self._border.operand)._packed(operand, bias)
            return Packed(packed.key, packed.buffer, packed.bias, largest)
        buffer, own_bias = self._packing.pack_alone(self._border.operand, operand), None
        if bias is not None:
            own_bias = self._border.specs["bia"].empty()
            np.copyto(own_bias, bias)
        return Packed(self.packing, buffer, own_bias, largest)

    def _look_for_denormals(self, weights: Array | Packed | None, names: Names) -> None:
        """Warn of denormal weights, at most once per kernel."""
        if self._looks_for_denormals and isinstance(weights, _ndarray) and (count := count_denormals(weights)):
            self._looks_for_denormals = False
            warn_of_denormals(names["wei"], count, weights.size)

    def _on_weights(self, weights: Array | Packed | None, names: Names) -> HostKernel:
        """Return the kernel for a call with `weights`; plain ones that are denormal cause a warning now and then."""
        if not isinstance(weights, _ndarray):
            return self
        if self._plain_calls.is_examined():
            self._look_for_denormals(weights, names)
        return self._plain_calls.kernel(self) if self._plain_calls.is_repeated else self

    def _server(self, packed: Packed, names: Names = BY_NAME) -> HostKernel:
        """Return the kernel for `packed`: this one, or its fallback if the operand is beyond the limit."""
        operand = self._border.operand
        if packed.signature == self._signature:
            if self._limit is None or self._packing.examine(operand, packed) <= self._limit:
                return self
        else:
            largest = magnitude(packed.buffer) if isnan(packed.magnitude) else packed.magnitude
            if self._limit is None or largest <= self._limit:
                raise self._border.packed_elsewhere(packed, self._signature, names)
        return self._fallback_for(operand)._server(packed, names)

    def _server_of(self, constants: Mapping[str, Given]) -> HostKernel:
        """Return the kernel for the packed operand among `constants`, or this one if there is none."""
        packed = constants.get(self._border.operand)
        return self._server(packed) if isinstance(packed, Packed) else self

    def _fallback_for(self, name: str) -> HostKernel:
        with _making.lock:
            if self._fallback is None:
                if self._make_fallback is None:
                    limit = self.artifact.limits[name]
                    raise UnsupportedError(
                        f"{name}: holds {beyond_text(limit)}, with which the kernel of "
                        f"{self.artifact.problem!r} would compute wrong results (config {self.artifact.config}); legal "
                        f"are {within_text(limit)}, or a config whose kernel has no such limit",
                        code="non-finite",
                    )
                self._fallback = self._make_fallback()
            return self._fallback

