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

    `src` holds the products of the inputs, `wei` the weights of the state, both by gate; the memory of weights is a
    matrix for each gate, so that the weights of a vector of states are near each other. Row 0 of the result is the
    first state, row `n + 1` the state after step `n`, with parts that the next step needs behind it. Steps run
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
    """Parts of a row of the result, each as long as a state."""
    states: ClassVar[int] = 1

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Products, weights, the first state, and lengths with the numbers of steps if there are some."""
        t, n, h = self.type, self.batch, self.hidden
        found = [
            array("src", t, (self.steps, n, self.gates, h)), array("wei", t, (h, self.gates, h), "bac"),
            array("first", t, (n, self.states, h)), *self._further,
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
        return result_array(self.type, (self.steps + 1, self.batch, self.width, self.hidden))

    @property
    def in_order(self) -> bool:
        """A step reads the row of the step before it."""
        return True

    def nests(self) -> OperatorNests:
        """Return nests that fill the first row, and a loop over the steps around the nests of a cell."""
        n, p, j = at = [Var(f"d{x}") for x in range(3)]
        dims = tuple((str(x), size) for x, size in zip(at, (self.batch, self.states, self.hidden)))
        first = [OperatorNest(dims, (0, *at), lambda load, _: load("first", at))]
        if self.states < self.width:
            n, p, j = rest = [Var(f"e{x}") for x in range(3)]
            sizes = (self.batch, self.width - self.states, self.hidden)
            dims = tuple((str(x), size) for x, size in zip(rest, sizes))
            first.append(OperatorNest(dims, (0, n, p + self.states, j), lambda *_: const(dtype(self.type), 0)))
        return nests_in_steps(self, first, self._cell(), "step", self.steps)

    def _cell(self) -> Sequence[OperatorNest]:
        """Return the nests of one step."""
        raise NotImplementedError

    def _time(self) -> Index:
        """Return the place in the source of a step."""
        step = Var("step")
        return step * -1 + (self.steps - 1) if self.is_backwards else step + 0

    def _nest(
        self, number: int, first: int, parts: int, value: Any, term: Any = None,
    ) -> OperatorNest:  # fmt: skip
        """Return a nest that stores so many `parts` of a row from part `first` on, given functions of the loader,
        sample, part and place.
        """
        n, p, j, k = (Var(f"{x}{number}") for x in "npjk")
        part: IndexLike = p if parts > 1 else 0
        dims = ((n.name, self.batch), *(((p.name, parts),) if parts > 1 else ()), (j.name, self.hidden))
        return OperatorNest(
            dims, (Var("step") + 1, n, part + first, j), lambda load, total: value(load, total, n, part, j),
            ((k.name, self.hidden),) if term else (), (lambda load: term(load, n, part, j, k)) if term else None,
        )  # fmt: skip

    def _old(self, load: Loader, n: Index, part: IndexLike, j: Index) -> Value:
        """Return a number of the row before this step."""
        return load("dst", [Var("step"), n, part, j])

    def _new(self, load: Loader, n: Index, part: IndexLike, j: Index) -> Value:
        """Return a number of the row of this step."""
        return load("dst", [Var("step") + 1, n, part, j])

    def _product(self, load: Loader, n: Index, gate: IndexLike, j: Index, k: Index) -> Value:
        """Return one term of the product of state and weights."""
        return mul(self._old(load, n, 0, k), load("wei", [k, gate, j]))

    def _kept(self, load: Loader, n: Index, part: IndexLike, j: Index, made: Value) -> Value:
        """Return a new number of a state, or the old one where the sample has ended."""
        if not self.has_lengths:
            return made
        old = self._old(load, n, part, j)
        return Where("lt", load("times", [self._time()]), load("lengths", [n]), made, old)

    def _act(self, which: int, x: Value) -> Value:
        return stepped(x, self.activations[which], self.type)

    # -- the reference
    def reference(self, *arrays: Any) -> Any:
        """Return the rows, step by step, in numpy."""
        given = dict(zip((t.name for t in self.inputs), arrays, strict=True))
        wide, count = np.float64, self.states * self.hidden
        given["wei"] = given["wei"].reshape(self.hidden, -1)
        source = given["src"].reshape(self.steps, self.batch, -1).astype(wide)
        rows = np.zeros((self.steps + 1, self.batch, self.width * self.hidden), wide)
        rows[0, :, :count] = given["first"].reshape(self.batch, -1)
        for step in range(self.steps):
            time = self.steps - 1 - step if self.is_backwards else step
            rows[step + 1] = made = self._row(given, source[time], rows[step])
            if self.has_lengths:
                over = given["times"][time] >= given["lengths"]
                rows[step + 1, :, :count] = np.where(over[:, None], rows[step, :, :count], made[:, :count])
        return rows.astype(arrays[0].dtype).reshape(self.result.shape)

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
        def value(load: Loader, total: Value, n: Index, p: IndexLike, j: Index) -> Value:
            made = self._act(0, add(load("src", [self._time(), n, p, j]), total))
            return self._kept(load, n, p, j, made)

        return [self._nest(1, 0, 1, value, self._product)]

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
        one = const(dtype(self.type), 1)

        def gates(load: Loader, total: Value, n: Index, p: IndexLike, j: Index) -> Value:
            return self._act(0, add(load("src", [self._time(), n, p, j]), total))

        def values(load: Loader, total: Value, n: Index, _: IndexLike, j: Index) -> Value:
            if self.resets_after:
                total = mul(self._new(load, n, 2, j), add(total, load("bias", [j])))
            return self._act(1, add(load("src", [self._time(), n, 2, j]), total))

        def term(load: Loader, n: Index, _: IndexLike, j: Index, k: Index) -> Value:
            whole = self._product(load, n, 2, j, k)
            return whole if self.resets_after else mul(self._new(load, n, 2, k), whole)

        def state(load: Loader, _: Value, n: Index, p: IndexLike, j: Index) -> Value:
            update = self._new(load, n, 1, j)
            old, new = self._old(load, n, 0, j), self._new(load, n, 3, j)
            return self._kept(load, n, p, j, add(mul(sub(one, update), new), mul(update, old)))

        return [
            self._nest(1, 1, 2, gates, self._product), self._nest(2, 3, 1, values, term), self._nest(3, 0, 1, state),
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
        total = self._new(load, n, 2 + which, j)
        if self.peeks:
            total = add(total, mul(cell, load("peepholes", [j + which * self.hidden])))
        return self._act(0, total)

    def _cell(self) -> Sequence[OperatorNest]:
        def sums(load: Loader, total: Value, n: Index, p: IndexLike, j: Index) -> Value:
            return add(load("src", [self._time(), n, p, j]), total)

        def cell(load: Loader, _: Value, n: Index, __: IndexLike, j: Index) -> Value:
            old = self._old(load, n, 1, j)
            new = self._act(1, self._new(load, n, 5, j))
            kept = mul(self._gate(load, n, j, 2, old), old)
            return self._kept(load, n, 1, j, add(kept, mul(self._gate(load, n, j, 0, old), new)))

        def state(load: Loader, _: Value, n: Index, __: IndexLike, j: Index) -> Value:
            own = self._new(load, n, 1, j)
            return self._kept(load, n, 0, j, mul(self._gate(load, n, j, 1, own), self._act(2, own)))

        return [self._nest(1, 2, 4, sums, self._product), self._nest(2, 1, 1, cell), self._nest(3, 0, 1, state)]

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
