"""`HostKernel`: an artifact as a callable on numpy arrays.

Several Python threads may call a kernel at once: each call uses its own argument block and scratch memory, which later
calls reuse. Native code runs without the GIL.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from math import isnan, nan
from typing import Any

import numpy as np

from convsmith.codegen.artifact import Artifact
from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.diag.forking import RenewedLock
from convsmith.runtime.addressed import AddressedKernel
from convsmith.runtime.arrays import (
    ALIGNMENT,
    Array,
    address_of,
    as_array,
    beyond_text,
    is_within,
    magnitude,
    numpy_dtype,
    within_text,
)
from convsmith.runtime.border import BY_NAME, Given, Names, border_of
from convsmith.runtime.denormals import count_denormals, warn_of_denormals
from convsmith.runtime.entry_call import EntryCall
from convsmith.runtime.foreign import is_negated
from convsmith.runtime.gpu_arrays import FiniteArrays, GpuArguments, is_on_gpu, stream_of
from convsmith.runtime.host_block import HostBlock, HostMemory
from convsmith.runtime.loading import DeviceMemory, LoadedCode, library_of, memory_of
from convsmith.runtime.operand_packing import OperandPacking
from convsmith.runtime.packed import Packed
from convsmith.runtime.placed_call import PlacedCall
from convsmith.runtime.resident import ResidentCall
from convsmith.runtime.stream_kernels import StreamKernels

__all__ = ["HostKernel"]

_ndarray = np.ndarray
_making = RenewedLock()


class HostKernel:
    """A compiled problem: `pack` weights once, then call with activations; or `run` on arrays by name.

    Elements beyond `artifact.limits` would spoil the results; `fallback` creates the kernel for operands with such
    elements, at most once, at their first use. Kernels of the same code can share a `library`.
    """

    def __init__(
        self, artifact: Artifact, fallback: Callable[[], HostKernel] | None = None, library: LoadedCode | None = None
    ) -> None:
        library = library or library_of(artifact)
        self.artifact = artifact
        self._gpu = memory_of(library)
        self._border = border = border_of(artifact)
        steps = {name: EntryCall(library[name], entry, border.defaults) for name, entry in artifact.steps.items()}
        self._steps = list(steps.values())
        self._packing = packing = OperandPacking(artifact, border, library)
        arguments = [argument for entry in artifact.steps.values() for argument in entry.arguments]
        self._shared = {argument.name: argument for argument in arguments if argument.role == "shared"}

        self._signature = packing.signature
        self._limit = artifact.limits.get(border.operand)
        self._finite, self._on_streams = FiniteArrays(), StreamKernels()
        self._make_fallback = fallback
        self._fallback: HostKernel | None = None
        self._looks_for_denormals = True

        self._main = steps["main"]
        self._common: tuple[Any, ...] = ("", *[None] * 8, 0, None)
        if self._direct():
            assert packing.memory is not None
            s, d = self._src, self._dst = border.specs["src"], border.specs["dst"]
            self._common = (
                self._signature,
                s.dtype, s.shape, s.stride_forms, s.extent,
                d.dtype, d.shape, d.stride_forms, d.extent,
                s.misalignment | d.misalignment, self._limit,
            )  # fmt: skip
            position = self._main.positions
            self._at_src, self._at_dst = position["src"], position["dst"]
            places = ((position.get(name), offset) for name, offset in packing.memory.offsets.items())
            self._at_weights = [(at, offset) for at, offset in places if at is not None]
            self._at_bias = position.get("bia", -1)

    @property
    def packing(self) -> str:
        """The packing's name. A packed operand serves every kernel where it is the same."""
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
        """Return the destination, computed with packed weights, or with plain weights (and then the bias, if there is
        one).

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
                self._run(source, weights, target, (src, weights, out))
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
            self._run(address_of(ready), weights, address_of(made), (ready, weights, made))
            return made
        return self.run(self._border.positional(src, weights, bias, out, names), names)["dst"]

    def bind(self, src: Array, weights: Packed | Array, out: Array, names: Names = BY_NAME) -> Callable[[], object]:
        """Return a function that computes on these arrays at each call; they are checked once, here.

        The contents of `src` and `out` may change in between; plain weights are packed here. Only one thread at a time
        may call the function.
        """
        if self._gpu is not None and any(map(is_on_gpu, (src, weights, out))):
            return partial(self.call, src, weights, None, out, names)
        as_array(names["dst"], out)
        if not isinstance(weights, Packed):
            weights = self.pack(weights, names=names)
        inputs, results = self._border.take(self._border.positional(src, weights, None, out, names), names)
        if is_negated(src):  # a copy of it would not follow its contents
            return partial(self.call, src, weights, None, out, names)
        src, out = inputs["src"], results["dst"]  # type: ignore[assignment]  # only an operand comes packed
        direct = self._common[0] and not self._shared and self._server(weights) is self
        if not direct or not self._src.fits(src) or not self._dst.fits(out):
            return partial(self.call, src, weights, None, out, names)
        block = self._main.block()
        if block.followers:
            return partial(self.call, src, weights, None, out, names)
        self._address(block, address_of(src), weights, address_of(out))
        return self._main.bound(block, (src, weights, out))

    def bind_each(self, arrays: Mapping[str, Given]) -> Callable[[], object]:
        """Return a function that computes on these arrays, by name, at each call; they are checked once, here.

        The contents of plain arrays may change in between: each call packs operands that are plain. Only one thread at
        a time may call the function.
        """
        border = self._border
        if self._gpu is not None and any(map(is_on_gpu, arrays.values())):
            return partial(self.run, arrays)
        inputs, results = border.take(arrays)
        given = [(name, x) for name, x in (*inputs.items(), *results.items()) if isinstance(x, _ndarray)]
        fit = all(border.specs[name].fits(x) for name, x in given) and not any(map(is_negated, arrays.values()))
        if not fit or border.empty or self.artifact.limits:
            return partial(self.run, arrays)
        self._packing.check(inputs)
        addresses, keep, _ = self._places(inputs, results)
        plain = (name for name in self._packing.entries if isinstance(inputs.get(name), _ndarray))
        packing = [entry for name in plain for entry in self._packing.entries[name]]
        calls = []
        for entry in (*packing, *self._steps):
            block = entry.block()
            block.give(addresses)
            block.follow()
            calls.append(entry.bound(block, keep))

        def call() -> None:
            for run in calls:
                run()

        return call

    def placed(self, constants: Mapping[str, Given], scratch: int) -> PlacedCall:
        """Return a call on memory whose addresses the caller sets; the arrays and packed operands `constants` are
        those of every call.

        The call also uses `scratch_bytes` of memory from the address `scratch`, a multiple of `ALIGNMENT`.
        """
        packed = constants.get(self._border.operand)
        server = self._server(packed) if isinstance(packed, Packed) else self
        if server is not self:
            return server.placed(constants, scratch)
        specs, inputs = self._border.specs, dict[str, Array | Packed]()
        for name, given in constants.items():
            inputs[name] = given if isinstance(given, Packed) else specs[name].check(given, name)
        self._check_packed(inputs)
        addresses, keep, _ = self._places(inputs, {})
        if isinstance(packed, Packed) and packed.bias is not None:
            addresses["bia"] = packed.addresses[1]
        places, _ = self._lent()
        addresses |= {name: scratch + offset for name, offset in places.items()}
        return PlacedCall(self._steps, addresses, scratch, keep)

    @property
    def scratch_bytes(self) -> int:
        """Bytes of memory that a placed call needs, besides its arrays."""
        own = self._fallback.scratch_bytes if self._fallback is not None else 0
        return max(own, self._lent()[1])

    def _lent(self) -> tuple[dict[str, int], int]:
        """Return offsets of the memory from one entry to the next, behind the scratch of the entries, and the bytes of
        both.
        """
        end = max(step.scratch_bytes for step in self._steps)
        offsets = {}
        for name, argument in self._shared.items():
            offsets[name] = end = -(-end // ALIGNMENT) * ALIGNMENT
            end += argument.size * numpy_dtype(argument.dtype).itemsize
        return offsets, end

    def addressed(self, names: Sequence[str], packed: Collection[str] = ()) -> AddressedKernel:
        """Return the kernel as a function on the addresses of the arrays `names`, which fit as `ArraySpec.fits` says.

        Operands in `packed` are given packed, others as plain arrays. The caller checks that operands in
        `artifact.limits` are within their limits.
        """
        packing = self._packing
        plain = {name: entries for name, entries in packing.entries.items() if name not in packed}
        return AddressedKernel(
            [*(entry for entries in plain.values() for entry in entries), *self._steps],
            names,
            {name: packing.parts_of(name) for name in packed},
            {name: packing.parts[name] for name in plain},
            self._shared,
            self._gpu,
        )

    def resident(self, arrays: Mapping[str, Array]) -> ResidentCall | None:
        """Return a call on copies of `arrays`, which fit, in memory of the device; None where calls run on memory of
        the host.
        """
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
                self._look_for_denormals(inputs.get("wei"), names)
                self._compute(inputs, results)
            else:
                kernel.run({**arrays, **results}, names)
        return border.give(arrays, results)

    def _check_packed(self, inputs: Mapping[str, Given], names: Names = BY_NAME) -> None:
        """Raise UsageError if an operand that is passed by name is packed for another kernel, or beyond its limit."""
        self._packing.check(inputs, names)
        for name in self.artifact.limits.keys() & {*self._border.packable}:
            array, limit = inputs.get(name), self.artifact.limits[name]
            if isinstance(array, Packed) and self._packing.examine(name, array) > limit:
                text = f"{names[name]}: holds {beyond_text(limit)}; legal is a plain array"
                raise UsageError(text, code="finite")

    def _run_on_gpu(self, gpu: DeviceMemory, arrays: Mapping[str, Given], names: Names) -> dict[str, Array]:
        """Compute on arrays, some of which lie in the memory of a GPU; new results lie there too."""
        for name, limit in self.artifact.limits.items():
            given = arrays.get(name)
            if isinstance(given, Packed):
                self._server(given, names)
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
        has_memory = bool(self._shared or {*self._packing.entries} - {*arguments.packed})
        with gpu.on_stream(arguments.stream):
            taken, packed = tuple(arguments.addresses), tuple(arguments.packed)
            call = self._on_streams.kernel(self.addressed, gpu, taken, packed, has_memory)
            call(tuple(arguments.addresses.values()), arguments.keep)
        return arguments.results

    def _compute(self, taken: Mapping[str, Array | Packed], results: Mapping[str, Array]) -> None:
        """Run all entries on checked arrays, through copies of those that do not fit."""
        addresses, keep, copies = self._places(taken, results)
        for step in self._steps:
            step.run_with(addresses, keep)
        for array, ready in copies:
            np.copyto(array, ready)

    def _places(
        self, taken: Mapping[str, Array | Packed], results: Mapping[str, Array]
    ) -> tuple[dict[str, int], list[object], list[tuple[Array, Array]]]:
        """Return the addresses of all arguments by name, what they belong to, and (result, its copy) pairs.

        Operands are packed, and arrays that do not fit are copied.
        """
        specs = self._border.specs
        addresses: dict[str, int] = {}
        keep: list[object] = []
        for name, array in taken.items():
            if isinstance(array, Packed):
                addresses |= self._packing.parts_of(name).addresses(array.addresses[0])
                keep.append(array)
                continue
            ready = specs[name].prepare(array)
            addresses[name] = address_of(ready)
            keep.append(ready)
        for name, parts in self._packing.parts.items():
            if isinstance(taken.get(name), _ndarray):
                buffer = self._packing.pack(name, addresses, keep)
                addresses |= parts.addresses(address_of(buffer))
                keep.append(buffer)
        copies = []
        for name, array in results.items():
            spec = specs[name]
            if spec.fits(array):
                ready = array
            else:
                ready = spec.prepare(array) if spec.argument.role == "inout" else spec.empty()
                copies.append((array, ready))
            addresses[name] = address_of(ready)
            keep.append(ready)
        own, shared = self._memory_of_call()
        keep.append(shared)
        return addresses | own, keep, copies

    def _run(self, src: int, weights: Packed, dst: int, keep: object) -> None:
        block = self._main.take()
        if self._shared:
            addresses, shared = self._memory_of_call()
            keep = (keep, shared)
            for step in self._steps[:-1]:
                step.run_with({"src": src, **addresses}, keep)
            block.give(addresses)
        self._address(block, src, weights, dst)
        self._main.run(block, keep)

    def _memory_of_call(self) -> tuple[dict[str, int], HostMemory]:
        """Return addresses of new memory from one entry to the next, and that memory."""
        memory = HostMemory()
        return {name: memory.reserve(a, a.size) for name, a in self._shared.items()}, memory

    def _address(self, block: HostBlock, src: int, weights: Packed, dst: int) -> None:
        """Write the four addresses of a call into the block."""
        words = block.words
        words[self._at_src] = src
        words[self._at_dst] = dst
        packed, bias = weights.addresses
        for position, offset in self._at_weights:
            words[position] = packed + offset
        if bias:
            words[self._at_bias] = bias

    def _direct(self) -> bool:
        """Return whether a call with packed weights needs no more than the addresses of source, weights, bias and
        destination; entries before the main one then read the source alone.
        """
        border = self._border
        *before, last = self.artifact.steps
        arguments = [a for name in before for a in self.artifact.entries[name].arguments]
        return (
            border.forward
            and not border.empty
            and not border.without_default
            and last == "main"
            and all(a.role in ("shared", "size") or a.holds == "src" or a.default is not None for a in arguments)
            and border.packs_weights
            and set(self._packing.entries) <= {border.operand}
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
        """Warn of denormal weights, once per kernel."""
        if self._looks_for_denormals and isinstance(weights, _ndarray) and (count := count_denormals(weights)):
            self._looks_for_denormals = False
            warn_of_denormals(names["wei"], count, weights.size)

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
