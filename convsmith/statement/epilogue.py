"""The epilogue: scales, bias, post-ops, and the conversion to the result's type.

The steps have oneDNN's order; each rounds to f32 (to f64 if the sums are f64)::

    v = sums * (src scale * weights' scale) + bias, then the post-ops
    c = v / dst scale + dst zero point                 rounded to nearest even, saturated

Alternatively, all steps are in s32 arithmetic, and the result is saturated.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial, reduce

from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index, Var, as_index, is_true
from convsmith.ir.types import F32, F64, S8, S32, U8, DType, dtype
from convsmith.ir.value import COMPARISONS, Binary, Bits, Cast, Load, Select, Value, Where, const, dtype_of
from convsmith.problem import post_ops
from convsmith.problem.attributes import SCALES, ZERO_POINTS, Kind
from convsmith.problem.low_precision import FULL, NEAREST, greatest
from convsmith.problem.matmul import Matmul
from convsmith.problem.problem import Problem
from convsmith.statement.elementwise import elementwise
from convsmith.statement.integer_steps import integer_step
from convsmith.statement.statement import Statement, View

WEIGHT_SUMS, SOURCE_SUMS = "wei_sums", "src_sums"
"""Names of the arrays of sums of entries, with which zero points are subtracted from the sums of products
(`statement/offsets.py`).
"""
DIVIDE = 23
"""Bits of the shift that, with a multiplication, divides by 255."""


class Buffers:
    """Creates the buffer of each array that the nest reads or writes, at its first use.

    An array is one of the ``views``, or a tensor of the problem.
    """

    def __init__(self, problem: Problem, *views: View) -> None:
        self._problem = problem
        self._views = {v.name: v for v in views}
        self._made: dict[str, Buffer] = {}

    def __getitem__(self, name: str) -> Buffer:
        if name not in self._made:
            x = self._views[name] if name in self._views else self._problem.tensor(name)
            self._made[name] = Buffer(name, dtype(x.dtype), x.layout.padded_shape, x.layout.blocks)
        return self._made[name]

    def params(self) -> tuple[Buffer, ...]:
        """Return all buffers in the order of the problem's tensors; other buffers come last."""
        names = [t.name for t in self._problem.tensors]
        return tuple(self._made[n] for n in (*names, *(v for v in self._views if v not in names)) if n in self._made)


def factor(view: View, buffers: Buffers, absent: Value | None = None) -> Value:
    """Return an element of ``view`` as a factor; if ``absent`` is given, it is the value where the mask is false."""
    element: Value = Load(buffers[view.name], view.coords, None)
    if view.narrow:
        element = _lower_half(view, element)
    if absent is not None:
        element = Select(view.mask, element, absent)
    if view.requantised is not None:
        return _requantised(view, element, buffers)
    if not view.flipped:
        return element
    return Bits(dtype(view.factor), Binary("xor", element, const(dtype_of(element), top_bit(view))))


def _lower_half(view: View, element: Value) -> Value:
    """Return the number of 4 bits in the lower half of a byte, as a number of 8 bits."""
    held = dtype_of(element)
    if dtype(view.narrow).kind == "uint":
        return Binary("and", element, const(held, 15))
    return Binary("shr", Binary("shl", element, const(held, 4)), const(held, 4))


def _requantised(view: View, element: Value, buffers: Buffers) -> Value:
    """Return ``(v * greatest + r) // 255``; the division is a multiplication and a shift, exact for this range."""
    assert view.requantised is not None
    bits, kind, rest = view.requantised
    if view.dtype == "s8":
        element = Bits(U8, Binary("xor", element, const(S8, top_bit(view))))
    added: Value = Cast(S32, Load(buffers[rest], view.coords, None)) if rest else const(S32, NEAREST)
    scaled = Binary("add", Binary("mul", Cast(S32, element), const(S32, greatest(bits))), added)
    quotient = Binary("shr", Binary("mul", scaled, const(S32, (1 << DIVIDE) // FULL + 1)), const(S32, DIVIDE))
    return Cast(dtype(kind), quotient)


def top_bit(view: View) -> int:
    """Return the element of a flipped view's type that has only the top bit set; flipping turns it into 0."""
    return 128 if view.dtype == "u8" else -128


def source_point(problem: Problem, view: View, buffers: Buffers) -> Value | None:
    """Return the zero point of an element of the source; None if the source has none."""
    quantity = problem.quantity(ZERO_POINTS, "src")
    if quantity is None:
        return None
    axis = problem.source_channels if quantity.axis is None else quantity.axis
    place = as_index(0) if quantity.policy == "common" else view.coords[axis]
    return _whole_number(Load(buffers[problem.attribute_name(ZERO_POINTS, "src")], (place,), None))


def differs_by_channel(problem: Problem) -> bool:
    """Return whether the source has a zero point for each of its channels."""
    quantity = problem.quantity(ZERO_POINTS, "src")
    return quantity is not None and quantity.policy != "common" and quantity.axis in (None, problem.source_channels)


def of_flipped(view: View, point: Value | None) -> Value | None:
    """Return the zero point of a factor, given the zero point of its tensor."""
    if not view.flipped:
        return point
    flipped_zero = const(S32, -top_bit(view))
    return flipped_zero if point is None else Binary("add", point, flipped_zero)


def _whole_number(v: Value) -> Value:
    return v if dtype_of(v) is S32 else Cast(S32, v)


class Epilogue:
    """Builds the values of the epilogue for the element of the result at the coordinates of ``c``."""

    def __init__(self, problem: Problem, st: Statement, buffers: Buffers) -> None:
        self.problem, self.buffers, self.st, self.c = problem, buffers, st, st.c
        self.type: DType = F64 if problem.acc == "f64" else F32
        self.channel = st.c.coords[problem.channels] if problem.forward or problem.dir == "BWD_D" else as_index(0)
        self.group: Index = next((Var(d.name) for d in st.of("batch")), as_index(0))

    def value(self, sums: Value) -> Value:
        """Return the result's element, given its sum."""
        p = self.problem
        fewer = isinstance(p, Matmul) and p.bits != (8, 8)
        if isinstance(p, Matmul) and fewer:
            sums = self._of_fewer_bits(p, sums)
        for view in () if fewer else self.st.sums:
            point = self.zero_point(self.st.a if view.adds == self.st.b.name else self.st.b)
            assert point is not None
            load: Value = Load(self.buffers[view.name], view.coords, None)
            is_weighed = view.adds == self.st.b.name and differs_by_channel(p)
            sums = Binary("sub", sums, load if is_weighed else Binary("mul", load, point))
        out = self.buffers[self.c.name].dtype
        steps = p.scales or p.post_ops or p.bias or p.quantity(ZERO_POINTS, "dst")
        if p.integer_steps:
            sums, steps = self._whole(sums), ()
        if not steps:
            return sums if dtype_of(sums) is out else Cast(out, sums)
        v = self.wide(sums)
        scales = [self._attribute(SCALES, argument) for argument in (("src", "wei") if p.forward else ("wei", "dst"))]
        if given := [x for x in scales if x is not None]:
            v = Binary("mul", v, reduce(partial(Binary, "mul"), given))
        if p.bias:
            v = Binary("add", v, self._operand("bia", self._bias_coords()))
        for n, op in enumerate(p.post_ops):
            v = self._post_op(n, op, v)
        result = "dst" if p.forward else "src"
        for how, kind in (("div", SCALES), ("add", ZERO_POINTS)):
            if (x := self._attribute(kind, result)) is not None:
                v = Binary(how, v, x)
        return v if self.type is out else Cast(out, v)

    def _of_fewer_bits(self, p: Matmul, v: Value) -> Value:
        """Return the sum of products recovered from the sum over requantised entries (`problem/low_precision.py`)."""
        sums = {view.adds: Load(self.buffers[view.name], view.coords, None) for view in self.st.sums}
        rows, columns = sums.get(self.st.a.name), sums.get(self.st.b.name)
        left, right = map(greatest, p.bits)
        depth = p.dims["k"]
        if p.bits[1] == 8:  # entries are multiplied as entry - 128
            assert rows is not None
            v = Binary("add", v, Binary("mul", rows, const(S32, 128)))
        v = integer_step("s32_rescale", v, FULL * FULL, left * right)
        offsets = [self._offset_of_entries(view) for view in (self.st.a, self.st.b)]
        if rows is not None and offsets[1] is not None:
            v = Binary("add", v, integer_step("s32_rescale", Binary("mul", rows, offsets[1]), FULL, left))
        if columns is not None and offsets[0] is not None:
            whole = Binary("add", columns, const(S32, 128 * depth)) if p.bits[1] == 8 else columns
            v = Binary("add", v, integer_step("s32_rescale", Binary("mul", whole, offsets[0]), FULL, right))
        if offsets[0] is None or offsets[1] is None:
            return v
        return Binary("add", v, Binary("mul", Binary("mul", offsets[0], offsets[1]), const(S32, depth)))

    def _offset_of_entries(self, view: View) -> Value | None:
        """Return the offset that is added to an entry of 0..255."""
        point = self._own_point(view)
        centre = const(S32, -128) if view.dtype == "s8" else None
        if point is None:
            return centre
        return Binary("sub", centre if centre is not None else const(S32, 0), point)

    def _whole(self, v: Value) -> Value:
        for n, op in enumerate(self.problem.post_ops):
            assert isinstance(op, post_ops.Integer)
            operands: tuple[Value | float, ...] = op.numbers
            if op.takes_operand:
                buffer = self.buffers[f"post_op_{n}"]
                operands = (Load(buffer, self._broadcast(buffer.shape), None),)
            v = integer_step(op.alg, v, *operands)
        return v

    def wide(self, v: Value) -> Value:
        """Return ``v`` in the type of the steps."""
        return v if dtype_of(v) is self.type else Cast(self.type, v)

    def zero_point(self, view: View) -> Value | None:
        """Return the number subtracted from a factor of A or B, in the type of the sums."""
        return of_flipped(view, self._own_point(view) if self.problem.forward else None)

    def _own_point(self, view: View) -> Value | None:
        """Return the zero point of a factor in a forward problem; None if the problem runs backward or has no zero
        point.
        """
        if view.name == self.st.a.name:
            return source_point(self.problem, view, self.buffers)
        if self.problem.quantity(ZERO_POINTS, view.name) is None:
            return None
        return _whole_number(self._quantity(ZERO_POINTS, view.name, self.channel))

    def absent(self, view: View) -> Value | None:
        """Return the value read for an absent element of A; None if absent elements are skipped."""
        if not view.filled or is_true(view.mask):
            return None
        element, point = dtype(view.dtype), self.zero_point(replace(view, flipped=False))
        return const(element, 0) if point is None else Cast(element, point)

    def _attribute(self, kind: Kind, argument: str) -> Value | None:
        """Return the scale or zero point of the result's element, in the type of the steps; None if there is none."""
        if self.problem.quantity(kind, argument) is None:
            return None
        return self.wide(self._quantity(kind, argument, self.channel))

    def _quantity(self, kind: Kind, argument: str, channel: Index) -> Value:
        buffer = self.buffers[self.problem.attribute_name(kind, argument)]
        quantity = self.problem.quantity(kind, argument)
        assert quantity is not None
        if quantity.policy == "common":
            place = as_index(0)
        elif argument == "wei" and quantity.policy == "per_dim_0" and self.problem.grouped:
            place = self.group
        else:
            place = channel
        return Load(buffer, (place,), None)

    def _bias_coords(self) -> tuple[Index, ...]:
        shape = self.buffers["bia"].shape
        return self._broadcast(shape) if len(shape) == len(self.c.coords) else (self.channel,)

    def _broadcast(self, shape: tuple[int, ...]) -> tuple[Index, ...]:
        """Return the result's coordinates in an operand that has extent 1 along axes on which it does not depend."""
        return tuple(as_index(0) if n == 1 else x for n, x in zip(shape, self.c.coords, strict=True))

    def _operand(self, name: str, coords: tuple[Index, ...]) -> Value:
        return self.wide(Load(self.buffers[name], coords, None))

    def _post_op(self, n: int, op: post_ops.PostOp, v: Value) -> Value:
        zero = const(self.type, 0)
        if isinstance(op, post_ops.Eltwise):
            v = elementwise(op.alg, v, op.alpha, op.beta)
            return v if op.scale == 1 else Binary("mul", v, const(self.type, op.scale))
        if isinstance(op, post_ops.SumPostOp):
            return Binary("add", v, self._old(n, op))
        name = f"post_op_{n}"
        operand = self._operand(name, self._broadcast(self.problem.tensor(name).shape))
        if isinstance(op, post_ops.Prelu):
            return Where("gt", v, zero, v, Binary("mul", v, operand))
        assert isinstance(op, post_ops.BinaryPostOp)
        if op.alg in COMPARISONS:
            return Where(op.alg, v, operand, const(self.type, 1), zero)
        return Binary(op.alg, v, operand)

    def _old(self, n: int, op: post_ops.SumPostOp) -> Value:
        """Return what post-op `n` adds: the destination's old content, or an operand, as the post-op reads it."""
        name = f"post_op_{n}" if op.array else self.c.name
        old: Value = Load(self.buffers[name], self.c.coords, None)
        if op.dtype is not None and dtype(op.dtype) is not dtype_of(old):
            old = Bits(dtype(op.dtype), old)
        old = self.wide(old)
        if op.zero_point:
            old = Binary("sub", old, const(self.type, op.zero_point))
        return old if op.scale == 1 else Binary("mul", old, const(self.type, op.scale))
