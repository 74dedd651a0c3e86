"""Depthwise micro-kernels with XNNPACK's interface: the statement and its naive nest.

A call computes one row of outputs.  Sizes are in bytes, except ``channels``, ``output_width`` and ``kernel_size``.  The
pointers of each output start at ``input``, and ``input_stride`` bytes later for the next output; ``input_offset`` is
added to each pointer that is not ``zero``.  ``output_increment`` is added to the output pointer after the channels of
an output are written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from convsmith.ir.buffer import UNKNOWN, Buffer, make_buffer
from convsmith.ir.index import Index, Var, as_index, conj, floordiv, maximum, product, true
from convsmith.ir.stmt import Alloc, For, Kernel, PointerLoad, Stmt, Store, block
from convsmith.ir.types import BF16, F16, F32, POINTERS, PTR, S8, S32, U8, DType
from convsmith.ir.value import Binary, Cast, Load, Select, Value, const, dtype_of
from convsmith.layout.layout import Layout
from convsmith.problem.micro_kernel import REQUANTISATIONS, MicroKernel
from convsmith.statement.integer_steps import integer_step
from convsmith.statement.statement import Dim, Statement, View

MEMORY: dict[str, DType] = {"f32": F32, "f16": F16, "bf16": BF16, "qs8": S8, "qu8": U8}

POINTS = ("input_zero_point", "kernel_zero_point", "output_zero_point", "output_min", "output_max")
"""The entries of ``params`` of a quantised kernel, in order; other kernels have minimum and maximum."""

WEIGHTS, BESIDE = "kernel", ("bias", "scale")
"""The weights, and the arrays that are packed in one stream with them: first biases, then weights, then scales."""


OUTPUTS, TILES = 64, 64
"""Placeholders for the outputs of a call, and for its tiles of channels."""


def sums_type(m: MicroKernel) -> DType:
    return S32 if m.quantised else F32


def micro_statement(m: MicroKernel) -> Statement:
    """Return the statement of a micro-kernel: sums over taps ``k`` for each output ``x`` and channel ``c``.

    The extents are placeholders for sizes of a call, but for the taps of a kernel of one pass.
    """
    x, c, k = Dim("x", OUTPUTS, "m"), Dim("c", TILES * m.channel_tile, "batch"), Dim("k", sum(m.taps), "k", sort="taps")
    type_, always = MEMORY[m.type].name, true()

    def view(name: str, *dims: Dim) -> View:
        layout = Layout.from_tag("any", tuple(d.size for d in dims))
        coords = tuple(Var(d.name) for d in dims)
        return View(name, type_, layout, coords, (always,) * len(dims))

    weights = replace(view(WEIGHTS, c, k), constant=True, beside=BESIDE)
    return Statement((x, c, k), (view("source", x, k, c), weights), view("output", x, c), ("k",), sums_type(m).name)


def naive_micro_kernel(m: MicroKernel, address_bits: int = 64) -> Kernel:
    """Return the naive nest: a sum over the taps for each channel of each output; steps in tables are bytes."""
    memory, acc_type = MEMORY[m.type], sums_type(m)

    def given(name: str, t: DType, *shape: int) -> Buffer:
        return make_buffer(name, t, shape or (UNKNOWN,))

    table, source, zero = given("input", PTR), given("source", memory), given("zero", memory)
    bias, kernel = given("bias", S32 if m.quantised else memory), given("kernel", memory)
    scale, output = given("scale", F32), given("output", memory)
    params = given("params", S32, len(POINTS)) if m.quantised else given("params", F32, 2)
    sizes = names = ("channels", "output_width", "kernel_size", "input_stride", "output_increment", "input_offset")
    channels, width, kernel_size, stride, increment, offset = map(Var, names)
    x, c, k = Var("x"), Var("c"), Var("k")
    acc, pixel = make_buffer("acc", acc_type, (), "register"), given("pixel", memory)
    here = Load(acc, (), None)

    def parameter(name: str) -> Value:
        return Load(params, (as_index(POINTS.index(name)),), None)

    def factor(b: Buffer, at: Index, point: str) -> Value:
        v: Value = Load(b, (at,), None)
        if b is kernel:
            v = Select(conj((k < kernel_size,)), v, const(memory, 0))
        v = v if memory is acc_type else Cast(acc_type, v)
        return Binary("sub", v, parameter(point)) if m.quantised else v

    term = Binary(
        "mul", factor(pixel, c, "input_zero_point"), factor(kernel, product(c, kernel_size) + k, "kernel_zero_point")
    )
    entry = (product(x, floordiv(stride, POINTERS[address_bits].bytes)) + k,)
    moved = floordiv(offset, memory.bytes)
    total = Store(acc, (), Binary("add", here, term))
    add = PointerLoad(pixel, table, entry, moved, source, zero, (as_index(0),), total)
    taps: Index = as_index(m.taps[0])
    if m.multipass:
        taps = passes_of(m) * m.taps[1] + (m.taps[0] + m.taps[2])
    start: Value = Load(bias, (c,), None)
    start = start if bias.dtype is acc_type else Cast(acc_type, start)
    value = _requantised(m, here, Load(scale, (c,), None), parameter) if m.quantised else _clamped(here, params)
    value = value if dtype_of(value) is memory else Cast(memory, value)
    to = product(x, channels + floordiv(increment, memory.bytes)) + c
    body: Stmt = block(Store(acc, (), start), For(k, as_index(0), taps, add), Store(output, (to,), value))
    nest = For(x, as_index(0), width, For(c, as_index(0), channels, Alloc(acc, body)))
    arguments = (table, source, zero, bias, kernel, *((scale,) if m.quantised else ()), params, output)
    return Kernel("dwconv", arguments, nest, sizes=tuple(map(Var, sizes)))


def passes_of(m: MicroKernel) -> Index:
    """Return the number of middle passes as an index."""
    first, middle, last = m.taps
    return maximum(floordiv(Var("kernel_size") - (first + last) + (middle - 1), middle), 0)


def _clamped(v: Value, params: Buffer) -> Value:
    low, high = (Load(params, (as_index(n),), None) for n in range(2))
    return Binary("min", Binary("max", v, low), high)


def _requantised(m: MicroKernel, sums: Value, scale: Value, parameter: Callable[[str], Value]) -> Value:
    """Return the sums after XNNPACK's requantisation: scale and round, clamp, then add the zero point."""
    point = parameter("output_zero_point")
    low, high = (Binary("sub", parameter(name), point) for name in ("output_min", "output_max"))
    steps = ((REQUANTISATIONS[m.requantise], scale), ("s32_max", low), ("s32_min", high), ("s32_add", point))
    for alg, operand in steps:
        sums = integer_step(alg, sums, operand)
    return sums
