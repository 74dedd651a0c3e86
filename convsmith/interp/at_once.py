"""Specifications of instructions, whose loops are computed on whole arrays where the result is the same.

The loops of a specification are around one store. For given iterations of the loops over which it sums, the others
store to elements of their own, and read no other element of the result: they are computed at once, in the order of the
sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from convsmith.arith.evaluate import evaluate
from convsmith.interp.arithmetic import BINARY, cast, fma
from convsmith.interp.memory import address
from convsmith.ir.buffer import Buffer
from convsmith.ir.index import Index, Var
from convsmith.ir.stmt import For, Kernel, Stmt, Store
from convsmith.ir.value import Binary, Cast, Const, Fma, Load, Value, dtype_of
from convsmith.ir.walk import accesses_of, variables_of

__all__ = ["StepsAtOnce", "steps_at_once"]

_Memories = Mapping[Buffer, Any]
_Steps = Sequence[dict[Var, Any]]
_Evaluator = Callable[[_Memories, int], Any]
"""The value of an expression for all iterations of a step, given the elements of the buffers."""


class StepsAtOnce:
    """A specification as steps, each on many elements of the result."""

    def __init__(self, result: Buffer, places: Any, steps: int, value: _Evaluator) -> None:
        self._result = result
        self._places = places
        self._steps = steps
        self._value = value

    def run(self, memories: _Memories) -> None:
        """Compute the result in place; all of its elements are initialised."""
        for step in range(self._steps):
            memories[self._result][self._places] = self._value(memories, step)


def steps_at_once(spec: Kernel, sizes: Mapping[Var, int]) -> StepsAtOnce | None:
    """Return the steps of a specification, or None unless all iterations of a step are independent and legal."""
    loops: list[For] = []
    body: Stmt = spec.body
    values: dict[Var, Any] = dict(sizes)
    while isinstance(body, For) and body.kind == "serial" and not body.carried:
        loops.append(body)
        body = body.body
    if not isinstance(body, Store) or body.lanes is not None:
        return None
    own = frozenset().union(*map(variables_of, body.index))
    bounds = [x for loop in loops for x in (loop.lo, loop.hi)]
    if any(not variables_of(x) <= values.keys() for x in bounds):
        return None
    ranges = {loop.var: range(evaluate(loop.lo, values), evaluate(loop.hi, values)) for loop in loops}
    inner, sums = [v for v in ranges if v in own], [v for v in ranges if v not in own]
    grid = np.meshgrid(*(np.array(ranges[v], np.int64) for v in inner), indexing="ij")
    values |= {v: x.reshape(-1) for v, x in zip(inner, grid)}
    steps = [values | dict(zip(sums, xs)) for xs in product(*(ranges[v] for v in sums))]
    places = _places(body.buffer, body.index, values)
    value = _evaluator(body.value, body, steps) if {x.buffer for x in accesses_of(body)} <= {*spec.params} else None
    if places is None or value is None or dtype_of(body.value) is not body.buffer.dtype:
        return None
    return StepsAtOnce(body.buffer, places, len(steps), value) if len(np.unique(places)) == len(places) else None


def _places(buffer: Buffer, index: Sequence[Index], values: Mapping[Var, Any]) -> Any:
    """The positions of the elements, or None if one lies outside of the buffer."""
    count = max((np.size(x) for x in values.values()), default=1)
    at = [np.broadcast_to(evaluate(i, values), (count,)) for i in index]
    if len(at) != len(buffer.shape) or any((x < 0).any() or (x >= n).any() for x, n in zip(at, buffer.shape)):
        return None
    return address(buffer)(at)


def _evaluator(v: Value, store: Store, steps: _Steps) -> _Evaluator | None:
    """Return what computes ``v``; None for a value that may be illegal or may depend on the order of iterations."""
    if isinstance(v, Load):
        buffer = v.buffer
        if v.lanes is not None or (buffer is store.buffer and v.index != store.index):
            return None
        places = [_places(buffer, v.index, values) for values in steps]
        return None if any(x is None for x in places) else lambda memories, step: memories[buffer][places[step]]
    if isinstance(v, Const):
        constant = np.frombuffer(v.bits, v.dtype.numpy)[0]
        return lambda memories, step: constant
    compute: Callable[..., Any]
    parts: tuple[Value, ...]
    if isinstance(v, Cast):
        compute, parts = partial(cast, to=v.dtype), (v.a,)
    elif isinstance(v, Binary) and v.op in ("add", "mul"):
        compute, parts = BINARY[v.op], (v.a, v.b)
    elif isinstance(v, Fma):
        compute, parts = fma, (v.a, v.b, v.c)
    else:
        return None
    if len({dtype_of(x) for x in parts}) > 1 or not (isinstance(v, Cast) or dtype_of(v).computes):
        return None
    operands = [_evaluator(x, store, steps) for x in parts]
    if any(x is None for x in operands):
        return None
    return lambda memories, step: compute(*(x(memories, step) for x in operands if x is not None))
