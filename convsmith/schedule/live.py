"""The state of a schedule that rewrites its kernel immediately: the kernel, and the loops that there are.

Loops are values. A loop that a primitive has replaced is rejected from then on, and the error names its replacement. A
rewrite may copy a loop, as splitting a nest at the border of an image does; the value then denotes all copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from convsmith.diag.choices import choices
from convsmith.diag.errors import ConfigError, ConvsmithError, InternalError, UsageError
from convsmith.diag.expect import shown
from convsmith.ir.buffer import Buffer
from convsmith.ir.instruction import Instruction
from convsmith.ir.stmt import Alloc, Kernel
from convsmith.ir.types import dtype
from convsmith.ir.walk import loops_of, statements_of
from convsmith.machine.base import Machine
from convsmith.passes.manager import Step
from convsmith.problem.problem import Problem
from convsmith.schedule.loops import Loop
from convsmith.schedule.schedule import Schedule
from convsmith.statement.operator import Operator
from convsmith.statement.statement import Statement


class LiveSchedule(Schedule):
    """A schedule of ``kernel``, the naive nest of ``problem``, for ``machine``, which rewrites it step by step; its
    loops are the loops of ``statements``.
    """

    def __init__(
        self, problem: Problem | Operator, machine: Machine, kernel: Kernel, statements: Sequence[Statement]
    ) -> None:
        super().__init__(d.name for st in statements for d in st.dims)
        self.problem, self.machine, self.kernel, self.statements = problem, machine, kernel, tuple(statements)
        whole = (Loop(d.name, d.name, (d.name,), d.kind, "thread", d.size) for st in statements for d in st.dims)
        self._live = {x.name: x for x in whole}
        self._replaced: list[tuple[Loop, str]] = []
        self.tables: dict[str, Statement] = {}
        """The forms of the tables of pointers through which arrays are read, with the statements that read them."""

    def __str__(self) -> str:
        return str(self.kernel)

    def __repr__(self) -> str:
        return f"<schedule of {self.problem} for {self.machine.name} after {len(self.steps)} rewrites>"

    def record(self, *steps: Step) -> None:
        """Rewrite the kernel by each of ``steps``, and record the step."""
        for step in steps:
            super().record(step)
            try:
                self.kernel = step(self.kernel)
            except ConvsmithError:
                raise
            except Exception as error:
                raise InternalError(f"{step}: {type(error).__name__}: {error}") from error

    @contextmanager
    def _step(
        self, what: str, *loops: Loop, count: int | None = None, array: str = "", scope: str = ""
    ) -> Iterator[None]:
        """Run the ``with`` block, in which the primitive ``what`` rewrites ``loops``; undo the primitive if the block
        raises. ConfigError or UsageError if an operand is illegal.
        """
        if array:
            self.array(array)
        for loop in loops:
            self._check(what, loop)
        if count is not None and (type(count) is not int or count < 1):
            raise ConfigError(
                "tile-size", f"{what}: loop {loops[0]} (of {loops[0].extent}) by {shown(count)}; legal is 1 or more"
            )
        if scope:
            self._require_scope(what, scope)
        before = len(self.steps), self.reached, self.kernel, set(self._taken)
        try:
            yield
        except BaseException:
            count, self.reached, self.kernel, self._taken = before
            del self.steps[count:]
            raise

    def _check(self, what: str, loop: object) -> None:
        """Raise UsageError if a primitive receives an object that is not a loop, ConfigError if the loop no longer
        exists.
        """
        if not isinstance(loop, Loop):
            raise UsageError(f"{what}: {shown(loop)} is no loop; s.loop('ow') returns one", code="bad-loop")
        if self._live.get(loop.name) is not loop:
            text = next((text for old, text in reversed(self._replaced) if old is loop), "belongs to another schedule")
            raise ConfigError("stale-loop", f"{what}: loop {loop} (of {loop.extent}) {text}")
        if loop not in self.loops():
            raise ConfigError(
                "stale-loop", f"{what}: loop {loop} (of {loop.extent}) is no more: it ran once, or became vectors, "
                f"straight lines or part of an instruction; left are {', '.join(map(str, self.loops()))}",
            )  # fmt: skip

    def _require_scope(self, what: str, scope: str) -> None:
        """Raise ConfigError unless a kernel for the machine can allocate memory in ``scope``."""
        legal = ("cache", "register") if self.machine.device is None else ("cache", "register", "shared")
        if scope not in legal:
            raise ConfigError("scope", f"{what}: scope {shown(scope)}; legal are {choices(scope, legal)}")

    def _became(self, old: Sequence[Loop], new: Sequence[Loop]) -> None:
        """Record that primitives have replaced the loops ``old`` by the loops ``new``."""
        for loop in old:
            del self._live[loop.name]
            self._replaced.append((loop, f"is no more: {self.steps[-1]} made {', '.join(map(str, new))} of it"))
        self._live |= {x.name: x for x in new}

    # -- What there is ------------------------------------------------------------------------------------------------

    def loops(self) -> tuple[Loop, ...]:
        """Return all loops of the kernel, in the order in which they begin."""
        names = dict.fromkeys(x.var.name for x in loops_of(self.kernel.body))
        return tuple(self._live[n] for n in names if n in self._live)

    def loop(self, name: str) -> Loop:
        """Return the loop of that name; UsageError lists the existing loops."""
        found = {x.name: x for x in self.loops()}
        if name not in found:
            legal = choices(name, tuple(found))
            raise UsageError(f"there is no loop {shown(name)}; legal are {legal}", code="bad-loop")
        return found[name]

    @property
    def lanes(self) -> int:
        """Elements of a vector of sums."""
        return self.machine.lanes(dtype(self.statements[-1].acc).bits)

    def array(self, name: str) -> Buffer:
        """Return the array of that name: a parameter of the kernel, or an array that it allocates."""
        inside = (x.buffer for x in statements_of(self.kernel.body) if isinstance(x, Alloc))
        found = {b.name: b for b in (*self.kernel.params, *inside)}
        if name not in found:
            legal = choices(name, tuple(found))
            raise UsageError(f"there is no array {shown(name)}; legal are {legal}", code="bad-array")
        return found[name]

    def row(self, name: str) -> Instruction:
        """Return the instruction of the machine of that name."""
        rows = self.machine.rows
        if name not in rows:
            raise UsageError(f"there is no instruction {shown(name)}; legal are {choices(name, [*rows])}", code="row")
        return rows[name]

    def reads(self, name: str) -> bool:
        """Return whether the kernel has a parameter of that name: a problem without bias, for example, has no ``bia``.
        """
        return any(b.name == name for b in self.kernel.params)

    def _around(self, loop: Loop) -> list[Loop]:
        """Return ``loop`` and the loops around it."""
        found = [x for x in loops_of(self.kernel.body) if any(y.var.name == loop.name for y in loops_of(x))]
        return [self._live[x.var.name] for x in found]
