"""Calls of micro-kernels under XNNPACK's conditions, between canaries and at ends of pages, and their results."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from fractions import Fraction
from math import floor
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from convsmith.frontend.micro_kernel import Weights
from convsmith.layout.block import ABSENT
from convsmith.problem.micro_kernel import MicroKernel
from convsmith.statement.micro_kernel import MEMORY

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))
from cases import Case
from guarded import Guarded, PageEnd, canary, poison

Array = np.ndarray


class Callee(Protocol):
    """A micro-kernel that packs and computes: in this process, or by its exported functions."""

    kernel: MicroKernel

    @property
    def name(self) -> str: ...

    def pack(self, kernel: Array, bias: Array, scale: Array | None) -> Weights: ...

    def __call__(self, **arguments: Any) -> None: ...


def memory_of(m: MicroKernel) -> np.dtype:
    return np.dtype(MEMORY[m.type].numpy)


class Setup:
    """The arrays of one case: vectors of channels with poison between them, in no order, and pointers to them."""

    def __init__(self, m: MicroKernel, case: Case, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.m, self.case, self.dtype = m, case, memory_of(m)
        c, taps, n = case.channels, case.kernel_size, m.pointers(case.kernel_size)
        shared = case.step > 1 and taps == n  # pointers beyond the kernel are to zeros: outputs cannot share them
        self.stride = min(case.step, n) if shared else n
        count = (case.width - 1) * self.stride + n
        gap = c + 3
        places = rng.permutation(count) * gap
        source = np.full(count * gap + 3, poison(self.dtype), self.dtype)
        low, high = (0, 256) if m.type == "qu8" else (-128, 128) if m.quantised else (-4, 5)
        for place in places:
            source[place : place + c] = rng.integers(low, high, c)
        self.entries = places.astype(np.int64) - case.offset
        self.input_point, self.kernel_point = case.points if m.type == "qu8" else (case.points[0] % 128, 0)
        self.zero = np.full(c, self.input_point if m.quantised else 0, self.dtype)
        for x in range(case.width):
            window = self.entries[x * self.stride :][:n]
            window[taps:] = ABSENT
            if case.zero_index is not None:
                window[case.zero_index] = ABSENT
        self.source = source
        self.kernel = rng.integers(low, high, (c, taps)).astype(self.dtype)
        self.bias = rng.integers(-9, 10, c).astype(np.int32 if m.quantised else self.dtype)
        self.scale = None
        if m.quantised:
            self.bias *= 100
            self.scale = (rng.uniform(0.5, 1, c) * 2.0 ** rng.integers(-14, -6, c)).astype(np.float32)
        self.sums = self._sums()
        self.params, self.truth = self._finish()

    def _sums(self) -> Array:
        """Sums of the taps that count, as whole numbers: (outputs, channels)."""
        case = self.case
        out = np.tile(self.bias.astype(np.int64), (case.width, 1))
        for x in range(case.width):
            for t in range(case.kernel_size):
                entry = self.entries[x * self.stride + t]
                if entry == ABSENT:
                    pixel = self.zero.astype(np.int64)
                else:
                    pixel = self.source[entry + case.offset :][: case.channels].astype(np.int64)
                points = (self.input_point, self.kernel_point) if self.m.quantised else (0, 0)
                out[x] += (pixel - points[0]) * (self.kernel[:, t].astype(np.int64) - points[1])
        return out

    def _finish(self) -> tuple[tuple[float, ...], Array]:
        case, m = self.case, self.m
        if not m.quantised:
            least, most = float(self.sums.min()), float(self.sums.max())
            bounds = np.round([least + case.low * (most - least), least + case.high * (most - least)])
            # The sign of a zero at a bound of zero: of np.clip it depends on the release of numpy.
            low, high = bounds
            clamped = np.where(self.sums < low, low, np.where(self.sums > high, high, self.sums))
            return tuple(bounds), clamped.astype(self.dtype)
        limits = np.iinfo(self.dtype)
        span = limits.max - limits.min
        low, high = limits.min + int(case.low * span), limits.min + int(case.high * span)
        point = int(limits.min) + 130
        assert self.scale is not None
        if m.requantise == "fp32":
            scaled = self.sums.astype(np.float32) * self.scale
            out = np.rint(np.clip(scaled, np.float32(low - point), np.float32(high - point))).astype(np.int64)
        else:
            out = np.array(
                [[floor(Fraction(int(s)) * Fraction(float(f)) + Fraction(1, 2)) for s, f in zip(row, self.scale)]
                 for row in self.sums]
            )  # fmt: skip
            out = np.clip(out, low - point, high - point)
        return (self.input_point, self.kernel_point, point, low, high), (out + point).astype(self.dtype)


def check(k: Callee, case: Case, seed: int) -> None:
    s = Setup(k.kernel, case, seed)
    item = s.dtype.itemsize
    source, zero = Guarded(s.source, poison(s.dtype)), Guarded(s.zero, poison(s.dtype))
    passed = [zero]  # a pointer to a pixel that is the address of the zeros stands for zeros: then they lie elsewhere
    while (source.address + s.entries[s.entries != ABSENT] * item == zero.address).any():
        zero = Guarded(s.zero, poison(s.dtype))
        passed.append(zero)
    addresses = np.where(s.entries == ABSENT, zero.address, source.address + s.entries * item).astype(np.uint64)
    pitch = case.pitch or case.channels
    size = (case.width - 1) * pitch + case.channels
    output = Guarded(np.full(size, canary(s.dtype), s.dtype), canary(s.dtype))
    packed = k.pack(s.kernel, s.bias, s.scale)
    weights = Guarded(packed.buffer, np.uint8(255))
    pointers = Guarded(addresses, np.uint64(8))
    sums = Guarded(np.zeros(case.channels, np.int32 if k.kernel.quantised else np.float32), 77)
    k(
        channels=case.channels, output_width=case.width, input=pointers.inside,
        weights=Weights(packed.name, packed.channels, packed.kernel_size, weights.inside), output=output.inside,
        input_stride=s.stride * 8, output_increment=(pitch - case.channels) * item, input_offset=case.offset * item,
        zero=zero.inside, params=s.params, buffer=sums.inside,
    )  # fmt: skip
    got = np.stack([output.inside[x * pitch :][: case.channels] for x in range(case.width)])
    assert got.tobytes() == s.truth.tobytes(), f"{k.name} {case}\n{got}\n{s.truth}"
    written = np.zeros(size, bool)
    for x in range(case.width):
        written[x * pitch :][: case.channels] = True
    assert (output.inside[~written] == canary(s.dtype)).all(), f"{k.name} {case} writes between outputs"
    output.check_margin("output")
    sums.check_margin("buffer")
    for name, x in (("source", source), ("zero", zero), ("weights", weights), ("input", pointers)):
        x.check_unchanged(name)


def some(cases: Iterator[Case], every: int) -> list[Case]:
    """Each condition once at least, and so many of the rest."""
    found = list(cases)
    first = {c.test: c for c in reversed(found)}
    return [*first.values(), *found[::every]]


def check_ends(k: Callee, channels: int) -> None:
    """Each array ends where a page begins that cannot be read; the results are right."""
    end = PageEnd()
    s = Setup(k.kernel, Case("ends", channels, 3), channels)
    rows = [end(s.source[e : e + channels]) for e in s.entries[:3]]
    zero, output = end(s.zero), end(np.zeros(channels, s.dtype))
    pointers = [*(r.ctypes.data for r in rows), *[zero.ctypes.data] * (k.kernel.pointers(3) - 3)]
    packed = k.pack(end(s.kernel), end(s.bias), None if s.scale is None else end(s.scale))
    weights = Weights(packed.name, packed.channels, packed.kernel_size, end(packed.buffer))
    k(
        channels=channels, output_width=1, input=end(np.array(pointers, np.uint64)), weights=weights, output=output,
        input_stride=8, output_increment=0, input_offset=0, zero=zero, params=s.params,
        buffer=end(np.zeros(channels, np.int32 if s.m.quantised else np.float32)),
    )  # fmt: skip
    assert (output == s.truth[0]).all()
