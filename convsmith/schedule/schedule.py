"""A schedule: the rewrites of a kernel, recorded by primitives that take loops and copies and return their
replacements.

A loop is a :class:`~convsmith.schedule.loops.Loop`, a value. Its name is made here when a primitive makes the loop, and
is unique in the kernel: no other code constructs or reads it. A rewrite may copy a loop, as splitting a nest at the
border of an image does; the value then stands for all copies, and later primitives rewrite each of them.

Each primitive records one or more :class:`~convsmith.passes.manager.Step`, with the names of its operands. The record
is the pipeline of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from convsmith.diag.choices import choices
from convsmith.diag.errors import UsageError
from convsmith.diag.expect import shown
from convsmith.diag.record import record
from convsmith.ir.instruction import Instruction
from convsmith.ir.stages import NAIVE
from convsmith.ir.stmt import Kernel
from convsmith.passes.bind import bind
from convsmith.passes.block_reduction import ZERO, block_reduction
from convsmith.passes.box_copy import BoxCopy
from convsmith.passes.contracts import stage_after
from convsmith.passes.derive_packing import derive_packing
from convsmith.passes.distribute_copy import distribute_copy
from convsmith.passes.drain import drain
from convsmith.passes.extend import extend
from convsmith.passes.fission import fission
from convsmith.passes.fuse import fuse
from convsmith.passes.load_once import load_once
from convsmith.passes.manager import Step
from convsmith.passes.ordered_copy import OrderedCopy
from convsmith.passes.partition import partition
from convsmith.passes.pipeline_copies import pipeline_copies
from convsmith.passes.reorder import reorder
from convsmith.passes.residue import residue
from convsmith.passes.simplify import simplify
from convsmith.passes.spread_lanes import run_name, spread_lanes
from convsmith.passes.stage import BOX, stage
from convsmith.passes.tensor_copies import MappedCopy, tensor_copies
from convsmith.passes.tile import tile
from convsmith.passes.tile_copy import TileCopy
from convsmith.passes.window_copy import WindowCopy, Windows
from convsmith.schedule.loops import Loop, fused_name

WRITTEN = ".w"
"""Suffix of the names of loops that write drained accumulators."""
TAILS = ("guard", "round", "peel")
"""The treatments of the last tile of a loop that is not a multiple of the tile: it is shorter (``guard``), has full
length but stores no element beyond the end (``round``), or has a separate nest (``peel``)."""
PIECES = 8
"""Maximum number of pieces of a loop that is split."""
_UNCHECKED = nullcontext()


@record(frozen=True)
class Copy:
    """A copy of an operand that a primitive made: the ``name`` of its buffer, and the ``loops`` that fill it.

    If the copy has the dims of the operand, ``loops`` has their order. The loop ``lane`` fills a vector; the loops
    ``vectors`` run from vector to vector.
    """

    name: str
    loops: tuple[Loop, ...] = ()
    lane: Loop | None = None
    vectors: tuple[Loop, ...] = ()


class Schedule:
    """Records the rewrites of a kernel whose loops have the names ``taken``."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self.steps: list[Step] = []
        self.reached = NAIVE
        self._taken = set(taken)

    def run(self, rewrite: Callable[..., Kernel], *args: Any) -> None:
        """Record the pass ``rewrite``, whose operands may be loops and copies; ConfigError unless the earlier passes
        have brought the kernel to a stage that it requires.
        """
        self.record(Step(rewrite, *map(_addressed, args)))

    def record(self, *steps: Step) -> None:
        """Record passes whose operands are names."""
        for step in steps:
            self.reached = stage_after(self.reached, step.run, step.args)
            self.steps.append(step)

    def include(self, other: Schedule) -> None:
        """Record all rewrites of ``other``, a schedule of other loops of the same kernel."""
        self.record(*other.steps)
        self._taken |= other._taken

    def _name(self, name: str) -> str:
        """Return ``name``, made unique by a number if necessary, and record its use."""
        found, number = name, 1
        while found in self._taken:
            number += 1
            found = f"{name}{number}"
        self._taken.add(found)
        return found

    # -- Hooks of schedules that rewrite their kernel immediately -----------------------------------------------------

    def _step(
        self, what: str, *loops: Loop, count: int | None = None, array: str = "", scope: str = ""
    ) -> AbstractContextManager[None]:
        """Return the context in which the primitive ``what`` rewrites ``loops``, by ``count`` iterations of the first
        one, and ``array``, or memory of ``scope``. A schedule without a kernel takes all of them to be legal.
        """
        return _UNCHECKED

    def _became(self, old: Sequence[Loop], new: Sequence[Loop]) -> None:
        """Record that primitives have replaced the loops ``old`` by the loops ``new``."""

    # -- Loops --------------------------------------------------------------------------------------------------------

    def tile(
        self, loop: Loop, size: int, parts: Sequence[str] = "oi", levels: tuple[str, str] = ("thread", "register"),
        ends: tuple[int, int] | None = None, *, tail: str = "guard",
    ) -> tuple[Loop, Loop]:  # fmt: skip
        """Split ``loop`` by ``size``, and return the loop over tiles and the loop over the iterations of a tile.

        ``parts`` are letters in the names of both loops, for readers of the IR; a loop without a letter keeps the name
        of ``loop``. ``levels`` are the levels of their tiles. ``tail`` determines the last tile if it has fewer
        iterations: with ``guard`` it is shorter, with ``round`` it has all iterations but stores no element beyond the
        end, and with ``peel`` it becomes a separate nest; the returned loops then denote the loops of both nests. With
        ``ends``, the first and the last tile have these sizes, and all other tiles are whole.
        """
        if tail not in TAILS:
            raise UsageError(f"tile: tail={shown(tail)} is not legal; legal are {choices(tail, TAILS)}", code="tail")
        with self._step("tile", loop, count=size):
            whole = self._extended(loop, size) if tail == "round" else loop
            self._taken.discard(loop.name)
            outer, inner = (self._name(f"{loop.of}.{letter}" if letter else loop.name) for letter in parts)
            self.run(tile, loop, size, outer, inner, *([ends] if ends else ()))
            _, of, dims, role, _, extent, each, is_tiled = whole
            made = (
                Loop(outer, of, dims, role, levels[0], -(-extent // size), each * size, True),
                Loop(inner, of, dims, role, levels[1], size, each, is_tiled),
            )
            if tail == "peel":
                self.run(partition, made[:1], PIECES)
        self._became((loop,), made)
        return made

    def reorder(self, *loops: Loop) -> None:
        """Put the perfectly nested ``loops`` into this order; other loops keep their places."""
        with self._step("reorder", *loops):
            self.run(reorder, loops)

    def bind(self, kind: str, *loops: Loop) -> None:
        """Give ``loops`` a kind: ``unrolled``, or ``parallel``, ``grid`` and other kinds whose iterations run at once.
        """
        with self._step("bind", *loops):
            self.run(bind, loops, kind)

    def fission(
        self, *loops: Loop, room: Sequence[tuple[Loop, int]] = (), scope: str = "", result: bool = False
    ) -> None:
        """Give each statement of the nest of ``loops`` its own loops: initialisation, accumulation and store become
        separate nests.

        An accumulator becomes an array of accumulators in ``scope`` (default: its present scope), with ``room`` for
        more elements along a loop. With ``result``, only the statement that stores the result is separated.
        """
        with self._step("fission", *loops, *(x for x, _ in room), scope=scope or "register"):
            self.run(fission, loops, tuple(room), scope, result)

    def simplify(self, unit_loops: bool = True) -> None:
        """Simplify indices, bounds and masks; loops that run once go away unless ``unit_loops`` are kept."""
        with self._step("simplify"):
            self.run(simplify, *(() if unit_loops else (False,)))

    def extend(self, loop: Loop, size: int) -> Loop:
        """Extend ``loop`` to a multiple of ``size`` iterations; added iterations store no elements."""
        with self._step("extend", loop, count=size):
            made = self._extended(loop, size)
        self._became((loop,), (made,))
        return made

    def _extended(self, loop: Loop, size: int) -> Loop:
        """Extend ``loop`` and return it with its new extent."""
        self.run(extend, loop, size)
        return loop._replace(extent=-(-loop.extent // size) * size)

    def fuse(self, loops: Sequence[Loop], name: str = "") -> Loop:
        """Fuse the adjacent ``loops``, outermost first, and return the fused loop; its default ``name`` is derived from
        theirs.

        Tiles of the loop are called by that name, even if ``loops`` is a single loop.
        """
        with self._step("fuse", *loops):
            whole, *others = loops
            if name and not others:
                return whole._replace(of=name)
            for n, loop in enumerate(others, 1):
                wanted = fused_name(whole.name, loop.name) if not name else name if n == len(others) else f"{name}.{n}"
                self._taken -= {whole.name, loop.name}
                fused = self._name(wanted)
                self.run(fuse, whole, loop, fused)
                whole = Loop(
                    fused, fused, (*whole.dims, *loop.dims), loop.role if loop.role == "n" else whole.role,
                    whole.level, whole.extent * loop.extent,
                )  # fmt: skip
        self._became(loops, (whole,))
        return whole

    def residue(self, loop: Loop, modulus: int, name: str = "") -> Loop:
        """Run ``loop`` once per residue class, and return the enclosing loop over classes."""
        with self._step("residue", loop, count=modulus):
            classes = loop._replace(name=self._name(name or f"{loop.name}.r"), level="class", extent=modulus)
            self.run(residue, loop, modulus, classes)
        self._became((), (classes,))
        return classes

    def drain(self, loops: Sequence[Loop]) -> dict[Loop, Loop]:
        """Store accumulators to memory, and return, for each of the ``loops`` over them, the loop that writes the
        result.
        """
        with self._step("drain", *loops):
            self.run(drain, tuple(loops), WRITTEN)
            made = {x: x._replace(name=self._name(f"{x.name}{WRITTEN}")) for x in loops}
        self._became((), tuple(made.values()))
        return made

    # -- Copies -------------------------------------------------------------------------------------------------------

    def pack(self, operands: Sequence[str], *args: Any) -> Copy:
        """Pack the first of the ``operands`` in the order in which the nest reads it; the other operands join its
        stream.
        """
        name = f"{operands[0]}_p"
        self.run(derive_packing, tuple(operands), name, *args)
        return Copy(name)

    def pack_near(
        self, operand: str, loop: Loop, widths: Sequence[tuple[Loop, int]] = (), adjacent: Sequence[Loop] = (),
        prefix: str = "", filled: bool = False,
    ) -> Copy:  # fmt: skip
        """Pack the elements that each iteration of ``loop`` reads of ``operand``, in reading order, before they are
        read.

        There is room along loops for more elements than they have, their ``widths``, which are zero; the elements of
        ``adjacent`` loops are contiguous. The loops that pack have the names of the loops that read, after ``prefix``.
        If it is ``filled``, the nest multiplies the copy's zeros in place of absent elements.
        """
        with self._step("pack_near", loop, *(x for x, _ in widths), *adjacent, array=operand):
            layout = OrderedCopy(_addressed(tuple(widths)), _addressed(tuple(adjacent)), prefix, filled)
            self.run(stage, operand, loop, layout)
        return Copy(f"{operand}_n")

    def stage(self, array: str, loop: Loop, rank: int, layout: BoxCopy = BOX, scope: str = "cache") -> Copy:
        """Copy the elements that each iteration of ``loop`` reads of ``array``, of ``rank`` dims, to ``scope``."""
        name = f"{array}_s"
        self.run(stage, array, loop, layout, scope)
        return Copy(name, tuple(self._over(name, str(d)) for d in range(rank)), self._over(name, ".l"))

    def stage_windows(
        self, array: str, loop: Loop, rank: int, pixels: Windows, terms: Windows, once: bool, absent: int = 0
    ) -> Copy:
        """Copy the windows of pixels that each iteration of ``loop`` reads; the last loops of the copy run over the
        terms. Elements that the array lacks are ``absent`` in it.
        """
        name = f"{array}_s"
        self.run(stage, array, loop, WindowCopy(pixels, terms, once, absent))
        dims = tuple(self._over(name, str(d)) for d in range(rank))
        own = tuple(self._over(name, f".{n}") for n, _ in (*pixels.dims, *terms.dims))
        return Copy(name, (*dims, *own), self._over(name, ".z"))

    def stage_tiles(self, loop: Loop, operands: Sequence[tuple[str, tuple[Loop, ...]]]) -> list[Copy]:
        """Copy the elements that each iteration of ``loop`` reads of the ``operands``, with a dim for each of the loops
        of a tile.
        """
        for name, loops in reversed(operands):
            self.run(stage, name, loop, TileCopy(tuple(x.name for x in loops)), "shared")
        return [
            Copy(f"{name}_s", tuple(self._over(f"{name}_s", f".{x.name}") for x in loops)) for name, loops in operands
        ]

    def pipeline(self, loop: Loop, slots: int, around: Loop | None = None, resident: Sequence[Copy] = ()) -> None:
        """Let the copies that a copy engine makes in ``loop`` run ahead of the products, to as many ``slots``; across
        the iterations of the loop ``around``, if there is one. In the first of these, ``resident`` copies are made for
        all of them.
        """
        outer = () if around is None else (around,)
        with self._step("pipeline", loop, *outer, count=slots):
            self.run(pipeline_copies, loop, slots, *outer, *((tuple(x.name for x in resident),) if resident else ()))

    def load_once(self, array: str, loops: Sequence[Loop], vector: Loop | None = None) -> Copy:
        """Load elements that several products of the nest of ``loops`` share only once; the loop ``lane`` of the copy
        runs along ``vector``.
        """
        with self._step("load_once", *loops, *(() if vector is None else (vector,)), array=array):
            self.run(load_once, array, tuple(loops), "" if vector is None else vector)
            return Copy(f"{array}_r", (), self._over(f"{array}_r", ".v"))

    def distribute_copy(
        self, copy: Copy, threads: int, thread: Loop, loops: Sequence[Loop], width: int,
        rows: tuple[Loop, int] | None = None, in_parts: bool = False,
    ) -> Copy:  # fmt: skip
        """Distribute the copy over all ``threads`` of a group, over which the loop ``thread`` runs, in rounds in the
        order of ``loops``; each thread copies ``width`` contiguous elements of as many adjacent ``rows`` of a loop, or
        of one, in the loop ``lane`` of the copy. A round is a part of the nest if it may be ``in_parts`` and this saves
        divisions.
        """
        across = ("", 1) if rows is None else rows
        options = () if rows is None and not in_parts else (across, in_parts) if in_parts else (across,)
        self.run(distribute_copy, copy, threads, thread, tuple(loops), width, *options)
        lane = self._over(copy.name, ".v")._replace(extent=width * (1 if rows is None else rows[1]))
        return Copy(copy.name, (self._over(copy.name, ".e"),), lane)

    # -- Groups of threads --------------------------------------------------------------------------------------------

    def add_atomically(self, parts: Sequence[Loop], loops: Sequence[Loop]) -> None:
        """Run the iterations of the loops ``parts``, each of which computes a part of each sum, in parallel outside of
        the nest ``loops``. They add to the result, which the kernel of `zeroing_loops` first sets to zero.
        """
        self.run(block_reduction, tuple(parts), tuple(loops), None, (), True)

    def tensor_copies(self, copies: Sequence[tuple[Copy, MappedCopy]]) -> None:
        """Replace the nests that fill copies by a copy engine, each through its tensor map."""
        self.run(tensor_copies, tuple(mapped._replace(name=copy.name) for copy, mapped in copies))

    def persistent_grid(self, loop: Loop, groups: int, name: str, turning: bool = False) -> Loop:
        """Distribute the iterations of ``loop`` over at most ``groups`` groups, which run several in sequence; return
        the loop over these groups, which is called ``name``. They are ``turning`` in every second round if iterations
        get shorter.
        """
        around = loop._replace(name=self._name(name), extent=min(groups, loop.extent))
        self.run(residue, loop, groups, around, *((True,) if turning else ()))
        return around

    def spread_lanes(self, rows: Sequence[Instruction], runs: Sequence[int]) -> tuple[Loop, ...]:
        """Give each lane of a warp its elements of the fragments of ``rows``, and return the loops over the adjacent
        elements of a lane, whose numbers are among ``runs``.
        """
        self.run(spread_lanes, tuple(rows))
        return tuple(Loop(run_name(n), run_name(n), (), "copy", "copy", n) for n in runs)

    def _over(self, copy: str, end: str) -> Loop:
        """Return a loop that fills a copy; its extent follows from the reads of the nest."""
        name = self._name(f"{copy}{end}")
        loop = Loop(name, name, (), "copy", "copy", 0)
        self._became((), (loop,))
        return loop


def zeroing_loops(rank: int) -> tuple[Loop, ...]:
    """Return the loops of the kernel that sets a result of ``rank`` dims to zero before groups add parts to it."""
    starts = (f"{ZERO}{d}" for d in range(rank))
    return tuple(Loop(name, name, (), "copy", "copy", 0) for name in starts)


def _addressed(x: Any) -> Any:
    """Return an operand as a pass addresses it: loops and copies by their names."""
    if isinstance(x, (Loop, Copy)):
        return x.name
    return tuple(map(_addressed, x)) if type(x) is tuple else x
