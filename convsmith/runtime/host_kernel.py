"""`HostKernel`: an artifact as a callable on numpy arrays.

A kernel may be called from several Python threads at once: each call has an argument block and scratch memory of its
own, kept for later calls. The GIL is released while native code runs.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

import numpy as np

from convsmith.codegen.artifact import Argument, Artifact
from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.runtime.arrays import Array, ArraySpec, address_of, aligned_empty, numpy_dtype, overlap
from convsmith.runtime.host import HostFunction, HostLibrary
from convsmith.runtime.packed import Packed, signature_of

__all__ = ["HostKernel"]

_ndarray = np.ndarray


class _Frame:
    """The argument block of one call, and the scratch memory that it points to."""

    __slots__ = ("address", "block", "memory")

    def __init__(self, arguments: tuple[Argument, ...], threads: int) -> None:
        self.block = (ctypes.c_uint64 * len(arguments))()
        self.address = ctypes.addressof(self.block)
        self.memory: list[Array] = []
        for position, argument in enumerate(arguments):
            if argument.role == "scratch":
                scratch = aligned_empty(argument.size * threads * numpy_dtype(argument.dtype).itemsize)
                self.memory.append(scratch)
                self.block[position] = address_of(scratch)


class _Call:
    """An entry with the frames of its calls."""

    __slots__ = ("_frames", "_function", "_whole", "arguments", "position")

    def __init__(self, function: HostFunction) -> None:
        self._function = function
        self._whole = function.whole
        self.arguments = {argument.role: argument for argument in function.entry.arguments}
        self.position = {argument.role: position for position, argument in enumerate(function.entry.arguments)}
        self._frames: list[_Frame] = []

    def take(self) -> _Frame:
        try:
            return self._frames.pop()
        except IndexError:
            return _Frame(self._function.entry.arguments, self._function.entry.threads)

    def run(self, frame: _Frame, keep: object) -> None:
        """Run, and keep the frame for later. After an interrupt it is dropped: workers may still use it."""
        if self._whole is not None:
            self._whole(frame.address)
        else:
            self._function(frame.address, (frame, keep))
        self._frames.append(frame)


class HostKernel:
    """A compiled problem: `pack` weights once, then call with activations.

    `fallback` makes the kernel that serves weights with infinities or NaN, where `artifact` cannot (it multiplies
    stored zeros); it is asked at most once, when such weights come.
    """

    def __init__(self, artifact: Artifact, fallback: Callable[[], HostKernel] | None = None) -> None:
        library = HostLibrary(artifact)
        self.artifact = artifact
        self._main = _Call(library["main"])
        self._pack = _Call(library["pack"]) if "pack" in artifact.entries else None
        roles = self._main.arguments
        spatial = len(roles["src"].shape) - 2
        self._src = ArraySpec(roles["src"], spatial)
        self._dst = ArraySpec(roles["dst"], spatial)
        self._bia = ArraySpec(roles["bia"], spatial) if "bia" in roles else None
        # Without a "pack" entry the kernel reads weights in their own layout, and packing is a copy.
        self._wei = ArraySpec(self._pack.arguments["wei"] if self._pack else roles["wei"], spatial)
        self._weights = roles["packed"] if self._pack else roles["wei"]
        self.packing = artifact.notes["packing"] if self._pack else f"{self._weights.layout} {self._weights.shape}"
        """The packing's name. Packed weights serve every kernel where it is the same."""
        self._weights_dtype = numpy_dtype(self._weights.dtype)
        self._signature = signature_of(
            self.packing,
            (self._weights_dtype, self._weights.size),
            (self._bia.dtype, self._bia.argument.size) if self._bia else None,
        )
        self._needs_finite = artifact.needs_finite_weights
        self._make_fallback = fallback
        self._fallback: HostKernel | None = None
        self._lock = threading.Lock()
        s, d = self._src, self._dst
        self._common = (
            "" if d.empty_tensor else self._signature,
            s.dtype, s.shape, s.stride_forms, s.extent,
            d.dtype, d.shape, d.stride_forms, d.extent,
            s.misalignment | d.misalignment, self._needs_finite,
        )  # fmt: skip
        position = self._main.position
        self._at_src, self._at_dst = position["src"], position["dst"]
        self._at_weights = position["packed" if self._pack else "wei"]
        self._at_bias = position.get("bia", -1)

    def pack(self, weights: Array, bias: Array | None = None) -> Packed:
        """Pack weights (and the bias, when the problem has one) for any number of calls.

        Shapes as the problem states them. UsageError names what does not fit.
        """
        return self._packed(self._wei.check(weights), self._checked_bias(bias))

    def __call__(
        self, src: Array, weights: Packed | Array, bias: Array | None = None, *, out: Array | None = None
    ) -> Array:
        """Compute, with packed weights or plain ones (and then the bias, when the problem has one).

        Returns a new array of the destination's shape and strides, or `out`, which must not share memory with an input.
        UsageError names what does not fit; nothing has been written then.
        """
        return self.call(src, weights, bias, out)

    def call(self, src: Array, weights: Packed | Array, bias: Array | None = None, out: Array | None = None) -> Array:
        """The same as calling the kernel, for wrappers: `object(...)` costs 0.2 us more than a method."""
        # The common call, where all is as the kernel wants it; each test is a reason to take the long way.
        (signature, src_type, src_shape, src_strides, src_extent, dst_type, dst_shape, dst_strides, dst_extent,
         misalignment, needs_finite) = self._common  # fmt: skip
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
            and (not needs_finite or weights.finite)
        ):
            source, target = address_of(src), address_of(out)
            if not (source | target) & misalignment and (
                source + src_extent <= target or target + dst_extent <= source
            ):
                self._run(source, weights, target, (src, weights, out))
                return out
        return self._call_any(src, weights, bias, out)

    def _call_any(self, src: Array, weights: Packed | Array, bias: Array | None, out: Array | None) -> Array:
        inputs = {"src": self._src.check(src)}
        kernel = self
        if isinstance(weights, Packed):
            if bias is not None:
                raise UsageError("bia: packed weights hold the bias; legal is no bias beside them", code="bias")
            kernel = self._server(weights)
        else:
            inputs["wei"] = self._wei.check(weights)
            checked = self._checked_bias(bias)
            if checked is not None:
                inputs["bia"] = checked
        dst = self._dst.empty() if out is None else self._dst.check_output(out)
        for name, array in inputs.items():
            if out is not None and overlap(dst, array):
                raise UsageError(f"{self._dst.argument.name}: out= shares memory with {name}", code="overlap")
        if self._dst.empty_tensor:
            return dst if out is None else out
        if not isinstance(weights, Packed):
            weights = self._packed(inputs["wei"], inputs.get("bia"))
            kernel = self._server(weights)
        if kernel is not self:
            return kernel._call_any(src, weights, None, dst if out is None else out)
        ready_src = self._src.prepare(inputs["src"])
        ready_dst = dst if self._dst.fits(dst) else self._dst.empty()
        self._run(address_of(ready_src), weights, address_of(ready_dst), (ready_src, weights, ready_dst))
        if ready_dst is not dst:
            np.copyto(dst, ready_dst)
        return dst if out is None else out

    def _run(self, src: int, weights: Packed, dst: int, keep: object) -> None:
        frame = self._main.take()
        block = frame.block
        block[self._at_src] = src
        block[self._at_dst] = dst
        block[self._at_weights], bias = weights.addresses
        if bias:
            block[self._at_bias] = bias
        self._main.run(frame, keep)

    def _packed(self, wei: Array, bias: Array | None) -> Packed:
        """Pack checked arrays, for the fallback where this kernel cannot multiply by such weights."""
        finite = bool(np.isfinite(wei).all()) if self._needs_finite else None
        if finite is False:
            packed = self._finite_fallback()._packed(wei, bias)
            return Packed(packed.key, packed.buffer, packed.bias, finite)
        dtype = self._weights_dtype
        buffer = aligned_empty(self._weights.size * dtype.itemsize)
        if self._pack is None:
            buffer[:] = 0
            np.copyto(np.ndarray(self._wei.shape, dtype, buffer, 0, self._wei.strides), wei)
        elif not self._wei.empty_tensor:
            wei = self._wei.prepare(wei)
            frame = self._pack.take()
            frame.block[self._pack.position["wei"]] = address_of(wei)
            frame.block[self._pack.position["packed"]] = address_of(buffer)
            self._pack.run(frame, (wei, buffer))
        own_bias = None
        if bias is not None and self._bia is not None:
            own_bias = self._bia.empty()
            np.copyto(own_bias, bias)
        return Packed(self.packing, buffer.view(dtype), own_bias, finite)

    def _checked_bias(self, bias: Array | None) -> Array | None:
        if self._bia is None:
            if bias is not None:
                raise UsageError("bia: this problem has no bias; legal is None, or a problem with one", code="bias")
            return None
        if bias is None:
            raise UsageError(f"bia: missing; this problem has a bias of shape {self._bia.shape}", code="bias")
        return self._bia.check(bias)

    def _server(self, packed: Packed) -> HostKernel:
        """The kernel that may read `packed`: this one, or its fallback when the weights are not finite."""
        if self._needs_finite and packed.finite is False:
            return self._finite_fallback()._server(packed)
        if packed.signature != self._signature:
            raise UsageError(
                f"wei: packed for another kernel: {packed.signature}; legal is {self._signature} (what `pack` of this "
                "kernel returns)",
                code="packing",
            )
        if self._needs_finite and not packed.look_for_finite():
            return self._finite_fallback()._server(packed)
        return self

    def _finite_fallback(self) -> HostKernel:
        with self._lock:
            if self._fallback is None:
                if self._make_fallback is None:
                    raise UnsupportedError(
                        f"wei: holds infinities or NaN, which the kernel of {self.artifact.problem!r} would multiply "
                        f"by stored zeros (config {self.artifact.config}); legal are finite weights, or a config "
                        "that does not copy into padded memory",
                        code="non-finite",
                    )
                self._fallback = self._make_fallback()
            return self._fallback
