"""Nests that rows specify, as kernels for `replace`, and rows that no CPU has."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from convsmith.interp import run
from convsmith.ir.buffer import Buffer, make_buffer
from convsmith.ir.index import Index, Var, as_index
from convsmith.ir.instruction import FragmentLayout, Instruction, Operand, vector
from convsmith.ir.rewrite import Rewriter, substitute
from convsmith.ir.stmt import Alloc, For, Invoke, Kernel, Stmt, Store, block
from convsmith.ir.value import Load, Value
from convsmith.ir.verify import verify
from convsmith.ir.walk import statements_of
from convsmith.machine.base import fragment_dot
from convsmith.passes.unify import Specification

FRAGMENT = fragment_dot("fragment_dot", (4, 4, 4, 2), ("u8", "s8", "s32"), "", "", (), "")

TWO_ROWS = FragmentLayout(("l // 8", "l % 8"), 16)

PRODUCT = Instruction(
    "product_2x8x2",
    (
        Operand("c", "s32", (2, 2), FragmentLayout(("l // 2", "l % 2"), 4), scope="fragment"),
        Operand("a", "s8", (2, 8), TWO_ROWS, scope="fragment"), Operand("b", "s8", (2, 8), TWO_ROWS, scope="fragment"),
    ),
    "  for m in 0 .. 2:\n    for n in 0 .. 2:\n      for k in 0 .. 8:\n"
    "        c[m, n] = c[m, n] + cast(s32, a[m, k]) * cast(s32, b[n, k])\n",
    "", "", (), "",
)  # fmt: skip
"""A product of matrices that each fill one vector."""


def lane_wise(name: str, value: str, type_: str = "f32", lanes: int = 4) -> Instruction:
    """Return the row of ``c[l] = value``, over vectors `a` and `b`."""
    operands = tuple(vector(x, type_, lanes) for x in "cab" if f"{x}[" in value or x == "c")
    return Instruction(name, operands, f"  for l in 0 .. {lanes}:\n    c[l] = {value}\n", "", "", (), "")


class Renamed(Rewriter):
    """The statement of a specification on the buffers of another kernel."""

    def __init__(self, loads: Callable[[Buffer, tuple[Index, ...]], tuple[Buffer, tuple[Index, ...]]]) -> None:
        super().__init__()
        self.loads = loads

    def visit_Load(self, v: Load) -> Value:
        return Load(*self.loads(v.buffer, v.index), None)

    def visit_Store(self, s: Store) -> Stmt:
        return Store(*self.loads(s.buffer, s.index), self.expr(s.value), None)


def copies(to: Buffer, of: Buffer, shape: tuple[int, ...], flat: int) -> Stmt:
    """Return the nest that copies an array between registers and flat memory: `flat` of the two is in memory."""
    loops = [Var(f"copy{n}") for n in range(len(shape))]
    place: Index = as_index(0)
    for n, v in enumerate(loops):
        place = place + v * prod(shape[n + 1 :])
    index = [tuple(loops), tuple(loops)]
    index[flat] = (place,)
    body: Stmt = Store(to, index[0], Load(of, index[1], None), None)
    for v, size in reversed(list(zip(loops, shape))):
        body = For(v, as_index(0), as_index(size), body)
    return body


def nest_of(row: Instruction, seed: int, rows: int = 0) -> Kernel:
    """Return a kernel around a nest that is the row's specification, with names, order and distances of its own.

    Results lie in registers, and so do operands of several registers; others lie in memory, where lanes of several
    elements are at any distance. With `rows` the loops that may be shorter run that often.
    """
    rng = np.random.default_rng(seed)
    form = Specification(row)
    loops, store = form.nest
    names: dict[Var, Index] = {x.var: Var(f"i{n}") for x, n in zip(loops, rng.permutation(len(loops)))}
    buffers: dict[Buffer, Buffer] = {}
    allocated, params, around = [], [], []
    lanes = {b: int(rng.integers(1, 4)) for b in row.kernel.params}
    for n, (b, x) in enumerate(zip(row.kernel.params, row.operands)):
        in_registers = n == 0 or x.layout.registers > 1
        width = b.shape[-1] + (0 if in_registers or x.layout.elements == 1 else lanes[b])
        size = prod((*b.shape[:-1], width))
        params.append(make_buffer(f"array{n}", b.dtype, (size,)))
        buffers[b] = params[-1]
        if in_registers:
            buffers[b] = make_buffer(f"held{n}", b.dtype, b.shape, "register")
            allocated.append(buffers[b])
            around.append(copies(buffers[b], params[-1], b.shape, 1))

    def place(b: Buffer, index: tuple[Index, ...]) -> tuple[Buffer, tuple[Index, ...]]:
        index = tuple(substitute(i, names) for i in index)
        if buffers[b].in_registers:
            return buffers[b], index
        flat: Index = as_index(0)
        width = params[row.kernel.params.index(b)].size // prod(b.shape[:-1])
        for n, i in enumerate(index):
            flat = flat + i * (prod((*b.shape[n + 1 : -1], width)) if n < len(b.shape) - 1 else 1)
        return buffers[b], (flat,)

    body = Renamed(place).stmt(store)
    order = rng.permutation(len(loops))
    for x, may_be_short in [(loops[n], form.partial[n]) for n in order]:
        size = rows if rows and may_be_short else int(x.hi)
        body = For(names[x.var], as_index(0), as_index(size), body)  # type: ignore[arg-type]
    held = buffers[row.kernel.params[0]]
    body = block(*around, body, copies(params[0], held, held.shape, 0))
    for b in allocated:
        body = Alloc(b, body)
    kernel = Kernel("nest", tuple(params), body)
    verify(kernel)
    return kernel


def results(kernel: Kernel, *rows: Instruction) -> list[np.ndarray]:
    """Return all arrays after the interpreter has run the kernel on whole numbers."""
    rng = np.random.default_rng(1)
    arrays = {}
    for b in kernel.params:
        low = 0 if b.dtype.kind == "uint" else -5
        arrays[b.name] = rng.integers(low, 6, b.size).astype(b.dtype.numpy)
    run(kernel, arrays, {row.name: row.kernel for row in rows})
    return list(arrays.values())


def invoked(kernel: Kernel) -> list[str]:
    return [s.instruction for s in statements_of(kernel.body) if isinstance(s, Invoke)]
