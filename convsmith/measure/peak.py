"""The measured ceilings of this machine: multiply-adds per second of each instruction set, bytes read per second of
each cache level.

Both are measured with loops in LLVM text that repeat one instruction of the target; their artifacts are loaded and run
by threads as those of kernels are. A sample takes a few milliseconds, so that a benchmark can take one beside each run
of a kernel: clocks change, and a percentage of peak means something only when both were measured together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple

import numpy as np

from convsmith.codegen import llvm_bind
from convsmith.codegen.artifact import Argument, Artifact, Entry, host_launch, size_argument
from convsmith.codegen.fragments import constant
from convsmith.codegen.launch import entry_text
from convsmith.diag.errors import UnsupportedError
from convsmith.diag.record import record
from convsmith.ir.instruction import FragmentFile, Instruction
from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.machine.host import caches
from convsmith.machine.registry import host_target, host_targets
from convsmith.problem.problem import Problem
from convsmith.runtime.arrays import Array, address_of, aligned_empty
from convsmith.runtime.host import HostFunction, HostLibrary
from convsmith.runtime.host_block import HostBlock

__all__ = [
    "PeakSample", "ReadSample", "assembly", "peak_sample", "peak_types", "read_level_bytes", "read_sample",
    "release_read_buffers",
]  # fmt: skip

MIN_FLOPS = 1e8
"""Floating-point operations per thread and sample: about a millisecond on current machines."""
SAMPLE_SECONDS = 2e-3
"""Approximate duration of one sample in seconds."""

_WIDTH = {"float": 32, "double": 64, "i32": 32, "i16": 16, "i8": 8}
"""Bits of an element of each LLVM type."""

Types = tuple[str, ...]
F32: Types = ("f32", "f32", "f32")

_ATTRIBUTES = "attributes #0 = { nounwind }"
_UNROLL = 4
_ADDENDS = 8
_SINK_FLOATS = 16  # one cache line for each thread
_LARGEST = 1 << 30


class PeakSample(NamedTuple):
    """`flops` floating-point operations (two per multiply-add and lane) took `seconds`."""

    seconds: float
    flops: float

    @property
    def gflops(self) -> float:
        """Operations per nanosecond."""
        return self.flops / self.seconds * 1e-9


class ReadSample(NamedTuple):
    """Reading `bytes` bytes took `seconds`."""

    seconds: float
    bytes: float

    @property
    def gbs(self) -> float:
        """Bytes per nanosecond."""
        return self.bytes / self.seconds * 1e-9


def peak_sample(target: str, threads: int = 1, types: Types = F32) -> PeakSample:
    """Run independent multiply-adds on `threads` threads for about 2 ms.

    `types` are the types of the factors and of the sums. The first call for a triple also compiles. UnsupportedError:
    the CPU lacks the instruction set, or the instruction set has no instruction for the types.
    """
    return PeakSample(*_fma_loop(target, threads, types).sample())


def peak_types(problem: Problem, t: Machine) -> Types | None:
    """Return the types whose peak bounds the problem's kernel: its own types, or the types that it converts to. None if
    there is no row for them, and for a device, whose peak is not measured.
    """
    if t.device is not None:
        return None
    row = t.nearest(*problem.types) or t.nearest(*problem.factors, problem.acc)
    return None if row is None else row.types


def read_sample(nbytes: int, threads: int = 1) -> ReadSample:
    """Read a buffer of about `nbytes` for each thread, again and again, for about 2 ms (at least once)."""
    return ReadSample(*_read_loop(nbytes, threads).sample())


def release_read_buffers() -> None:
    """Free the buffers of all read samples, up to 1 GiB."""
    _read_loop.cache_clear()


@record(frozen=True)
class _Size:
    """Bytes that each thread reads: all of `nbytes`, or its share where the level is shared."""

    nbytes: int
    shared: bool

    def __call__(self, threads: int) -> int:
        return self.nbytes // threads if self.shared else self.nbytes


def read_level_bytes() -> Mapping[str, Callable[[int], int]]:
    """Return, for each level, the bytes that a measurement reads, as a function of the number of threads.

    A private cache is half filled, a shared one to a quarter; for DRAM the buffer has four times the size of the last
    cache.
    """
    sizes = {c.name: _Size(c.bytes // (4 if c.cores > 1 else 2), c.cores > 1) for c in caches()}
    last = max((c.bytes for c in caches()), default=16 << 20)
    return sizes | {"DRAM": _Size(min(4 * last, _LARGEST), True)}


class _Loop:
    """A loaded loop, its memory, and the number of iterations that take about `SAMPLE_SECONDS`."""

    def __init__(self, function: HostFunction, work: float, data: Array, least: int = 1) -> None:
        self._function = function
        self._work = work  # of one iteration of all threads
        self._data = data
        self._sink = aligned_empty(function.entry.launch.threads * _SINK_FLOATS * 4)
        self._block = HostBlock(function.entry, {"data": address_of(data), "sink": address_of(self._sink)})
        self._turns = 1
        while (seconds := self._quickest()) < SAMPLE_SECONDS / 4:
            self._turns *= 2
        # If the machine was busy during calibration, a sample must still be long enough to be meaningful.
        self._turns = max(least, round(self._turns * SAMPLE_SECONDS / seconds))

    def sample(self) -> tuple[float, float]:
        self._run(max(1, self._turns // 64))  # wakes threads and vector units
        return self._run(self._turns), self._turns * self._work

    def _quickest(self) -> float:
        """Return the fastest of three runs, because thread starts or other processes slow some down."""
        return min(self._run(self._turns) for _ in range(3))

    def _run(self, turns: int) -> float:
        self._block.give({"turns": turns})
        start = time.perf_counter()
        self._function(self._block.address, self)
        return time.perf_counter() - start


@cache
def _fma_loop(target: str, threads: int, types: Types) -> _Loop:
    t = host_target(target)
    row = _row(t, types)
    work = 2.0 * threads * _UNROLL * accumulators(t, row) * row.rows * row.lanes * row.terms
    # The accumulators stay near 1, because denormals and infinities slow some CPUs down.
    number = np.dtype(np.float16 if row.types[2] == "f16" else np.float32)
    factors = np.full(8 // number.itemsize, 0.5, number)
    return _Loop(_load(_fma_text(t, row, threads), t, threads), work, factors, round(MIN_FLOPS * threads / work))


def _row(t: Machine, types: Types) -> Instruction:
    """Return the instruction with the most operations."""
    row = next(iter((*t.fragment_rows(*types), *t.vector_rows(*types))), None)
    if row is None:
        known = ", ".join(":".join(r.types) for r in t.instructions)
        raise UnsupportedError(f"target {t.name!r} has no instruction for {':'.join(types)}; it has some for {known}")
    return row


@cache
def _read_loop(nbytes: int, threads: int) -> _Loop:
    t = host_targets()[0]
    step = _ADDENDS * t.lanes(32) * 4
    each = max(nbytes // step, 1) * step
    data = aligned_empty(each * threads)
    data[:] = 1
    return _Loop(_load(_read_text(t, threads, each), t, threads), float(each * threads), data)


def accumulators(t: Machine, row: Instruction) -> int:
    """Return the number of independent sums in the loop. Together with its two operands and the temporaries of an
    instruction they fill the registers, which hides the latency.
    """
    if file := _fragment_file(t, row):
        return file.count - 2
    each = max(row.result.size * dtype(row.result.dtype).bits // t.vector_bits, 1)  # registers of a fragment
    return (t.registers - 2 * each - 2 * t.costs.temporaries - row.temporaries) // each


def _fragment_file(t: Machine, row: Instruction) -> FragmentFile | None:
    """Return the registers of the fragments that a row adds to; None if they are not of a file of their own."""
    return next((file for file in t.fragments if file.name == row.result.file), None)


def _load(text: str, t: Machine, threads: int) -> HostFunction:
    arguments = (
        Argument("data", "in", "f32", (2,), "a", 2),
        Argument("sink", "out", "f32", (_SINK_FLOATS,), "a", _SINK_FLOATS),
        size_argument("turns"),
    )
    entry = Entry("loop", arguments, host_launch(threads))
    code = llvm_bind.object_code(text, t.triple, t.cpu, t.features)
    artifact = Artifact(code, t.name, {"main": entry}, "ceiling", "", needs=t.needs, permissions=t.permissions)
    return HostLibrary(artifact)["main"]


def assembly(t: Machine, types: Types = F32) -> str:
    """Return the assembly of the multiply-add loop, which shows how the peak is measured."""
    return llvm_bind.assembly(_fma_text(t, _row(t, types), 1), t.triple, t.cpu, t.features)


def _fma_text(t: Machine, row: Instruction, threads: int) -> str:
    """Return LLVM text of `turns` iterations of `_UNROLL` multiply-adds on each accumulator, with factor and addend
    from memory.
    """
    if row.result.file != t.vectors.name:
        return _fragment_text(t, row, threads)
    c, a, b = (f"<{p.size} x {p.dtype.llvm}>" for p in row.kernel.params)
    vector = c
    floats = f"<{t.vector_bits // 32} x float>"
    lines = _splat("xf", "%data", t.vector_bits // 32) + [
        "%ydata = getelementptr float, ptr %data, i64 1",
        *_splat("yf", "%ydata", t.vector_bits // 32),
        *_bits("%x", "%xf", floats, b),
        *_bits("%y", "%yf", floats, c),
        "br label %loop",
        "loop:",
        "%i = phi i64 [ 0, %entry ], [ %next, %loop ]",
    ]
    start = "%y" if a == c else "zeroinitializer"
    # Each accumulator is a factor of its own next value, so that all of them stay near one.
    names = [f"%a{k}" for k in range(accumulators(t, row))]
    lines += [f"{name} = phi {vector} [ {start}, %entry ], [ {name}.{_UNROLL}, %loop ]" for name in names]
    for turn in range(_UNROLL):
        last = {name: name if turn == 0 else f"{name}.{turn}" for name in names}
        if t.costs.temporaries:  # no fma: all products first is 10 % faster
            lines += [f"{name}.p{turn} = fmul {vector} {last[name]}, %x" for name in names]
            lines += [f"{name}.{turn + 1} = fadd {vector} {name}.p{turn}, %y" for name in names]
        else:
            for name in names:
                operands = {"a": last[name], "b": "%x", "c": "%y"}
                if a != c:  # a sum's own bits are the factor, so that every iteration has a different product
                    lines += _bits(f"{name}.f{turn}", last[name], c, a)
                    operands = {"a": f"{name}.f{turn}", "b": "%x", "c": last[name]}
                lines += _steps(row, operands, f"{name}.{turn + 1}")
    lines += _turn_end("loop")
    add = "add" if " x i" in vector else "fadd"  # f16 is kept as words
    lines += _store_sum([f"{name}.{_UNROLL}" for name in names], add, vector)
    return _module(lines, row.declare, threads)


def _fragment_text(t: Machine, row: Instruction, threads: int) -> str:
    """Return the loop on fragments, which are all zero, because the time does not depend on their content."""
    file = _fragment_file(t, row)
    assert file is not None
    shapes = constant("@shapes", file.configuration([(row.rows, row.lanes * 4)] * file.count))
    *sums, a, b = range(file.count)
    lines = [
        file.begin.format(p="@shapes"),
        *file.zero,
        "br label %loop",
        "loop:",
        "%i = phi i64 [ 0, %entry ], [ %next, %loop ]",
        *(row.llvm.format(c=n, a=a, b=b) for _ in range(_UNROLL) for n in sums),
        *_turn_end("loop"),
        file.end,
        "ret void",
    ]
    return _module(lines, "\n".join((shapes, row.declare, *file.declare)), threads)


def _steps(row: Instruction, operands: Mapping[str, str], name: str) -> list[str]:
    """Return the row's expressions as lines; the last one defines `name`."""
    lines: list[str] = []
    count = row.llvm.count("\n") + 1

    def put(expression: str) -> str:
        lines.append(f"{name if len(lines) == count - 1 else f'{name}.s{len(lines)}'} = {expression}")
        return lines[-1].partition(" ")[0]

    row.emit(put, {operand: (value,) for operand, value in operands.items()})
    return lines


def _bits(name: str, value: str, vector: str, wanted: str) -> list[str]:
    """Return a line that reinterprets the leading bits of a vector as another type, which may be narrower."""
    length, size = (_WIDTH[v.split(" x ")[1][:-1]] for v in (vector, wanted))
    count = int(wanted[1:].split(" x ")[0])
    whole = int(vector[1:].split(" x ")[0]) * length // size
    element = wanted.split(" x ")[1]
    places = ", ".join(f"i32 {n % whole}" for n in range(count))
    return [
        f"{name}.w = bitcast {vector} {value} to <{whole} x {element}",
        f"{name} = shufflevector <{whole} x {element} {name}.w, <{whole} x {element} undef, <{count} x i32> <{places}>",
    ]


def _read_text(t: Machine, threads: int, nbytes: int) -> str:
    """Return LLVM text of `turns` times the sum of the `nbytes` bytes of a thread's part of the data, as integers."""
    vector = f"<{t.lanes(32)} x i32>"
    names = [f"%s{k}" for k in range(_ADDENDS)]
    lines = [
        f"%offset = mul i64 %tid, {nbytes}",
        "%part = getelementptr i8, ptr %data, i64 %offset",
        f"%stop = getelementptr i8, ptr %part, i64 {nbytes}",
        "br label %turn",
        "turn:",
        "%i = phi i64 [ 0, %entry ], [ %next, %latch ]",
        *(f"{name}.o = phi {vector} [ zeroinitializer, %entry ], [ {name}.n, %latch ]" for name in names),
        "br label %loop",
        "loop:",
        "%p = phi ptr [ %part, %turn ], [ %pn, %loop ]",
        *(f"{name} = phi {vector} [ {name}.o, %turn ], [ {name}.n, %loop ]" for name in names),
    ]
    for k, name in enumerate(names):
        lines += [
            f"{name}.p = getelementptr {vector}, ptr %p, i64 {k}",
            f"{name}.v = load {vector}, ptr {name}.p, align 64",
            f"{name}.n = add {vector} {name}, {name}.v",
        ]
    lines += [
        f"%pn = getelementptr {vector}, ptr %p, i64 {_ADDENDS}",
        "%inside = icmp ult ptr %pn, %stop",
        "br i1 %inside, label %loop, label %latch",
        "latch:",
        *_turn_end("turn"),
        *_store_sum([f"{name}.n" for name in names], "add", vector),
    ]
    return _module(lines, "", threads)


def _splat(name: str, pointer: str, lanes: int) -> list[str]:
    vector = f"<{lanes} x float>"
    return [
        f"%{name}s = load float, ptr {pointer}",
        f"%{name}i = insertelement {vector} undef, float %{name}s, i32 0",
        f"%{name} = shufflevector {vector} %{name}i, {vector} undef, <{lanes} x i32> zeroinitializer",
    ]


def _turn_end(label: str) -> list[str]:
    return [
        "%next = add i64 %i, 1",
        "%more = icmp slt i64 %next, %turns",
        f"br i1 %more, label %{label}, label %exit",
        "exit:",
    ]


def _store_sum(names: list[str], operation: str, vector: str) -> list[str]:
    """Return lines that store one vector per thread, so that no computation is dead code."""
    lines, last = [], names[0]
    for k, name in enumerate(names[1:]):
        lines.append(f"%t{k} = {operation} {vector} {last}, {name}")
        last = f"%t{k}"
    return [
        *lines,
        f"%line = mul i64 %tid, {_SINK_FLOATS}",
        "%mine = getelementptr float, ptr %sink, i64 %line",
        f"store {vector} {last}, ptr %mine",
        "ret void",
    ]


def _module(body: list[str], declare: str, threads: int) -> str:
    """Return the module with the functions of the calling convention (`convsmith.codegen.artifact`) around a chunk's
    body.
    """
    arguments = "\n".join(
        f"  %p.{name} = getelementptr i64, ptr %block, i64 {k}\n  %{name} = load {kind}, ptr %p.{name}"
        for k, (name, kind) in enumerate((("data", "ptr"), ("sink", "ptr"), ("turns", "i64")))
    )
    declared = {declare: None}
    entry = entry_text("loop", host_launch(threads), "i64", declared)
    lines = "\n".join(line if line.endswith(":") else f"  {line}" for line in body)
    own = f"  %tid = select i1 {str(threads > 1).lower()}, i64 %who, i64 0"  # a call passes no part
    chunk = f"define void @loop_chunk(ptr %block, i64 %who, i64 %n) #0 {{\nentry:\n{own}\n{arguments}\n"
    return "\n".join((*declared, f"{chunk}{lines}\n}}", entry, _ATTRIBUTES))
