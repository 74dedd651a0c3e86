"""Recurrent layers: in each step, a state follows from the state before it and from an input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from convsmith.diag.record import record
from convsmith.ir.index import Index, IndexLike, Var
from convsmith.ir.types import dtype
from convsmith.ir.value import Value, Where, const
from convsmith.network.operators.pointwise import stepped
from convsmith.problem.post_ops import Eltwise
from convsmith.problem.tensor import Tensor
from convsmith.statement.maths import add, mul, sub
from convsmith.statement.operator import (
    Loader,
    Operator,
    OperatorNest,
    OperatorNests,
    array,
    nests_in_steps,
    result_array,
)

__all__ = ["CELLS", "GruCell", "LstmCell", "PlainCell", "Recurrence"]


@record(frozen=True)
class Recurrence(Operator):
    """Base class of recurrent layers with `steps` steps, `batch` samples and `hidden` numbers of a state.

    `src` holds the products of the inputs, `wei` the weights of the state, columns by gate. Row 0 of the result is the
    first state, row `n + 1` the state after step `n`, with numbers that the next step needs behind it. Steps run
    backwards through the source if `is_backwards`. With `has_lengths`, a sample keeps its state after as many steps as
    `lengths` says; `times` are the numbers of steps.

    `activations` are those of gates, of new values and of the state, in ONNX's order; each is a series of steps.
    """

    type: str
    steps: int
    batch: int
    hidden: int
    activations: tuple[tuple[Eltwise, ...], ...]
    is_backwards: bool = False
    has_lengths: bool = False
    gates: ClassVar[int]
    width: ClassVar[int]
    """Numbers of a row of the result, in states."""
    states: ClassVar[int] = 1

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Products, weights, the first state, and lengths with the numbers of steps if there are some."""
        t, n, h = self.type, self.batch, self.hidden
        found = [
            array("src", t, (self.steps, n, self.gates * h)), array("wei", t, (h, self.gates * h)),
            array("first", t, (n, self.states * h)), *self._further,
        ]  # fmt: skip
        if self.has_lengths:
            found += [array("lengths", "s32", (n,)), array("times", "s32", (self.steps,))]
        return tuple(found)

    @property
    def _further(self) -> Sequence[Tensor]:
        """Arrays of one kind of cell."""
        return ()

    @property
    def result(self) -> Tensor:
        """A row for the first state, and one for each step."""
        return result_array(self.type, (self.steps + 1, self.batch, self.width * self.hidden))

    @property
    def in_order(self) -> bool:
        """A step reads the row of the step before it."""
        return True

    def nests(self) -> OperatorNests:
        """Return nests that fill the first row, and a loop over the steps around the nests of a cell."""
        n, j, m, i = (Var(f"d{x}") for x in range(4))
        own = self.states * self.hidden
        dims = ((n.name, self.batch), (j.name, own))
        first = [OperatorNest(dims, (0, n, j), lambda load, _: load("first", [n, j]))]
        if self.states < self.width:
            dims = ((m.name, self.batch), (i.name, self.width * self.hidden - own))
            first.append(OperatorNest(dims, (0, m, i + own), lambda *_: const(dtype(self.type), 0)))
        return nests_in_steps(self, first, self._cell(), "step", self.steps)

    def _cell(self) -> Sequence[OperatorNest]:
        """Return the nests of one step."""
        raise NotImplementedError

    def _time(self) -> Index:
        """Return the place in the source of a step."""
        step = Var("step")
        return step * -1 + (self.steps - 1) if self.is_backwards else step + 0

    def _nest(
        self, number: int, first: int, columns: int, value: Any, terms: bool = False, term: Any = None,
    ) -> OperatorNest:  # fmt: skip
        """Return a nest that stores so many `columns` of the result from column `first` on, given functions of the
        loader, sample and column.
        """
        n, j, k = Var(f"n{number}"), Var(f"j{number}"), Var(f"k{number}")
        return OperatorNest(
            ((n.name, self.batch), (j.name, columns)), (Var("step") + 1, n, j + first),
            lambda load, total: value(load, total, n, j),
            ((k.name, self.hidden),) if terms else (), (lambda load: term(load, n, j, k)) if terms else None,
        )  # fmt: skip

    def _old(self, load: Loader, n: Index, column: IndexLike) -> Value:
        """Return a number of the row before this step."""
        return load("dst", [Var("step"), n, column])

    def _new(self, load: Loader, n: Index, column: IndexLike) -> Value:
        """Return a number of the row of this step."""
        return load("dst", [Var("step") + 1, n, column])

    def _product(self, load: Loader, n: Index, column: IndexLike, k: Index) -> Value:
        """Return one term of the product of state and weights."""
        return mul(self._old(load, n, k), load("wei", [k, column]))

    def _kept(self, load: Loader, n: Index, column: IndexLike, made: Value) -> Value:
        """Return a new number of a state, or the old one where the sample has ended."""
        if not self.has_lengths:
            return made
        old = self._old(load, n, column)
        return Where("lt", load("times", [self._time()]), load("lengths", [n]), made, old)

    def _act(self, which: int, x: Value) -> Value:
        return stepped(x, self.activations[which], self.type)

    # -- the reference
    def reference(self, *arrays: Any) -> Any:
        """Return the rows, step by step, in numpy."""
        given = dict(zip((t.name for t in self.inputs), arrays, strict=True))
        h, wide = self.hidden, np.float64
        rows = np.zeros(self.result.shape, wide)
        rows[0, :, : self.states * h] = given["first"]
        for step in range(self.steps):
            time = self.steps - 1 - step if self.is_backwards else step
            rows[step + 1] = made = self._row(given, given["src"][time].astype(wide), rows[step])
            if self.has_lengths:
                over = given["times"][time] >= given["lengths"]
                own = slice(self.states * h)
                rows[step + 1, :, own] = np.where(over[:, None], rows[step, :, own], made[:, own])
        return rows.astype(arrays[0].dtype)

    def _row(self, given: dict[str, Any], x: Any, old: Any) -> Any:
        """Return the row after a step."""
        raise NotImplementedError

    def _apply(self, which: int, x: Any) -> Any:
        for step in self.activations[which]:
            x = step.apply(x)
        return x


@record(frozen=True)
class PlainCell(Recurrence):
    """The state is an activation of the sum of both products."""

    gates, width = 1, 1

    def _cell(self) -> Sequence[OperatorNest]:
        def value(load: Loader, total: Value, n: Index, j: Index) -> Value:
            made = self._act(0, add(load("src", [self._time(), n, j]), total))
            return self._kept(load, n, j, made)

        return [self._nest(1, 0, self.hidden, value, True, self._product)]

    def _row(self, given: dict[str, Any], x: Any, old: Any) -> Any:
        return self._apply(0, x + old @ given["wei"].astype(x.dtype))


@record(frozen=True)
class GruCell(Recurrence):
    """Gated recurrent units: gates of update and reset, and new values. A row has the state, both gates and the values.

    With `resets_after`, the reset multiplies the product with the state and its own `bias`, otherwise the state.
    """

    resets_after: bool = False
    gates, width = 3, 4

    @property
    def _further(self) -> Sequence[Tensor]:
        return (array("bias", self.type, (self.hidden,)),) if self.resets_after else ()

    def _cell(self) -> Sequence[OperatorNest]:
        h, one = self.hidden, const(dtype(self.type), 1)

        def gates(load: Loader, total: Value, n: Index, j: Index) -> Value:
            return self._act(0, add(load("src", [self._time(), n, j]), total))

        def values(load: Loader, total: Value, n: Index, j: Index) -> Value:
            if self.resets_after:
                total = mul(self._new(load, n, j + 2 * h), add(total, load("bias", [j])))
            return self._act(1, add(load("src", [self._time(), n, j + 2 * h]), total))

        def term(load: Loader, n: Index, j: Index, k: Index) -> Value:
            whole = self._product(load, n, j + 2 * h, k)
            return whole if self.resets_after else mul(self._new(load, n, k + 2 * h), whole)

        def state(load: Loader, _: Value, n: Index, j: Index) -> Value:
            update = self._new(load, n, j + h)
            old, new = self._old(load, n, j), self._new(load, n, j + 3 * h)
            return self._kept(load, n, j, add(mul(sub(one, update), new), mul(update, old)))

        return [
            self._nest(1, h, 2 * h, gates, True, self._product), self._nest(2, 3 * h, h, values, True, term),
            self._nest(3, 0, h, state),
        ]  # fmt: skip

    def _row(self, given: dict[str, Any], x: Any, old: Any) -> Any:
        h, wei, state = self.hidden, given["wei"].astype(x.dtype), old[:, : self.hidden]
        gates = self._apply(0, x[:, : 2 * h] + state @ wei[:, : 2 * h])
        update, reset = gates[:, :h], gates[:, h:]
        inner = wei[:, 2 * h :]
        total = reset * (state @ inner + given["bias"]) if self.resets_after else (reset * state) @ inner
        new = self._apply(1, x[:, 2 * h :] + total)
        return np.concatenate([(1 - update) * new + update * state, gates, new], 1)


@record(frozen=True)
class LstmCell(Recurrence):
    """Long short-term memory: gates of input, output and forgetting, and new values, in ONNX's order. A row has the
    state, the cell, and the sums before activations.

    With `peeks`, gates add the cell times `peepholes`, one number for each of the first three.
    """

    peeks: bool = False
    gates, width, states = 4, 6, 2

    @property
    def _further(self) -> Sequence[Tensor]:
        return (array("peepholes", self.type, (3 * self.hidden,)),) if self.peeks else ()

    def _gate(self, load: Loader, n: Index, j: Index, which: int, cell: Value) -> Value:
        """Return a gate: input, output or forgetting."""
        total = self._new(load, n, j + (2 + which) * self.hidden)
        if self.peeks:
            total = add(total, mul(cell, load("peepholes", [j + which * self.hidden])))
        return self._act(0, total)

    def _cell(self) -> Sequence[OperatorNest]:
        h = self.hidden

        def sums(load: Loader, total: Value, n: Index, j: Index) -> Value:
            return add(load("src", [self._time(), n, j]), total)

        def cell(load: Loader, _: Value, n: Index, j: Index) -> Value:
            old = self._old(load, n, j + h)
            new = self._act(1, self._new(load, n, j + 5 * h))
            kept = mul(self._gate(load, n, j, 2, old), old)
            return self._kept(load, n, j + h, add(kept, mul(self._gate(load, n, j, 0, old), new)))

        def state(load: Loader, _: Value, n: Index, j: Index) -> Value:
            own = self._new(load, n, j + h)
            return self._kept(load, n, j, mul(self._gate(load, n, j, 1, own), self._act(2, own)))

        return [
            self._nest(1, 2 * h, 4 * h, sums, True, self._product), self._nest(2, h, h, cell),
            self._nest(3, 0, h, state),
        ]  # fmt: skip

    def _row(self, given: dict[str, Any], x: Any, old: Any) -> Any:
        h, cell = self.hidden, old[:, self.hidden : 2 * self.hidden]
        sums = x + old[:, :h] @ given["wei"].astype(x.dtype)
        peep = given["peepholes"] if self.peeks else np.zeros(3 * h)
        entry = self._apply(0, sums[:, :h] + peep[:h] * cell)
        forget = self._apply(0, sums[:, 2 * h : 3 * h] + peep[2 * h :] * cell)
        new = forget * cell + entry * self._apply(1, sums[:, 3 * h :])
        out = self._apply(0, sums[:, h : 2 * h] + peep[h : 2 * h] * new)
        return np.concatenate([out * self._apply(2, new), new, sums], 1)


CELLS: dict[str, type[Recurrence]] = {"RNN": PlainCell, "GRU": GruCell, "LSTM": LstmCell}
"""The layers by ONNX's names."""
