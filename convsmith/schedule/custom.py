"""The schedule of a kernel that a user's function receives.

A primitive rewrites the kernel immediately, so an illegal primitive is rejected where it is called, with the loop, the
dim and the numbers. The schedule is then unchanged: the function may catch the error and continue. Primitives take
loops and return the loops that replace them, as values (:mod:`convsmith.schedule.live`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from convsmith.diag.choices import choices
from convsmith.diag.errors import ConfigError, UsageError
from convsmith.diag.expect import shown
from convsmith.ir.instruction import Instruction
from convsmith.layout.layout import Layout
from convsmith.passes.box_copy import BoxCopy
from convsmith.passes.buffer_layouts import BlockDims
from convsmith.passes.compute_at import compute_at
from convsmith.passes.flatten import flatten
from convsmith.passes.form_fma import form_fma
from convsmith.passes.fuse import fuse
from convsmith.passes.guard_tails import guard_tails
from convsmith.passes.multiple_buffers import multiple_buffers
from convsmith.passes.partition import partition
from convsmith.passes.reorder import INNERMOST, reorder
from convsmith.passes.replace import replace
from convsmith.passes.restrict import restrict
from convsmith.passes.rfactor import rfactor
from convsmith.passes.round_up import round_up
from convsmith.passes.set_layout import set_layout
from convsmith.passes.simplify import simplify
from convsmith.passes.sink_guards import sink_guards
from convsmith.passes.skip_zero import skip_zero
from convsmith.passes.stream import stream
from convsmith.passes.sum_in_place import sum_in_place
from convsmith.passes.vectorise import vectorise
from convsmith.schedule.config_rows import CONFIG_ROWS
from convsmith.schedule.engine_copies import bring_tiles, engine_copy, require_types
from convsmith.schedule.live import LiveSchedule
from convsmith.schedule.loops import Loop
from convsmith.schedule.lower import multiply_fragments
from convsmith.schedule.pointers import indirect_step
from convsmith.schedule.schedule import PIECES, Copy


class KernelSchedule(LiveSchedule):
    """A schedule of ``kernel``, the naive nest of ``problem``, for ``machine``; its loops are the loops of
    ``statements``.

    ``print`` shows the kernel in its present form, ``steps`` are the rewrites so far.
    """

    # -- Loops --------------------------------------------------------------------------------------------------------

    def fuse(self, loops: Sequence[Loop], name: str = "") -> Loop:
        """Fuse the adjacent ``loops``, outermost first, and return the fused loop."""
        if len(loops) < 2:
            given = ", ".join(map(str, loops)) or "none"
            raise ConfigError("not-nested", f"fuse: {given}; legal are several loops, each directly in the other")
        return super().fuse(loops, name)

    def sink(self, *loops: Loop) -> None:
        """Move ``loops`` to the innermost places of their nests, in this order."""
        with self._step("sink", *loops):
            self.run(reorder, loops, INNERMOST)

    def unroll(self, *loops: Loop) -> None:
        """Mark ``loops`` to be unrolled at the end of the schedule."""
        self.bind("unrolled", *loops)

    def parallel(self, *loops: Loop) -> None:
        """Distribute the iterations of ``loops`` over the threads that the kernel is compiled for."""
        self.bind("parallel", *loops)

    def peel(self, *loops: Loop, pieces: int = PIECES, exact: Sequence[Loop] = ()) -> None:
        """Split ``loops`` where masks or bounds within them change, each into at most that many ``pieces``.

        Within a piece, the loops ``exact`` have constant bounds.
        """
        with self._step("peel", *loops, *exact):
            self.run(partition, loops, pieces, tuple(exact))

    def restrict(self, *loops: Loop) -> None:
        """Restrict ``loops`` to the iterations whose terms exist, as far as guards of the terms bound them."""
        with self._step("restrict", *loops):
            self.run(restrict, loops)

    def round_up(self, *loops: Loop) -> None:
        """Extend shorter last tiles of ``loops`` to full length, if the added iterations write only private memory."""
        with self._step("round_up", *loops):
            self.run(round_up, loops, tuple((x, x.extent) for x in loops))

    def coalesce(self, outer: Loop, inner: Loop) -> None:
        """Merge two loops that together step through contiguous memory into the loop ``inner``."""
        with self._step("coalesce", outer, inner):
            self.run(fuse, outer, inner, inner, "nowhere")

    def compute_at(self, array: str, loop: Loop, rolling: bool = True) -> None:
        """Compute in each iteration of ``loop`` the elements that it reads of ``array``, which an earlier nest of the
        kernel writes.

        With ``rolling``, elements that the next iteration also reads are kept for it; otherwise they are recomputed.
        """
        with self._step("compute_at", loop, array=array):
            self.run(compute_at, array, loop, rolling)

    # -- Sums ---------------------------------------------------------------------------------------------------------

    def skip_zero(self) -> None:
        """Guard absent terms of sums instead of adding zero."""
        with self._step("skip_zero"):
            self.run(skip_zero)

    def rfactor(self, loop: Loop, lanes: int = 1, apart: bool = False) -> None:
        """Give each iteration of the reduction ``loop`` its own sum; the sums are added up before their use.

        The sums of an element are adjacent, or, if they are ``apart``, those of an iteration are.
        """
        with self._step("rfactor", loop, count=lanes):
            self.run(rfactor, loop, lanes, apart)

    def sum_in_place(self, sums: str) -> None:
        """Accumulate in the array to which the accumulators ``sums`` are copied, instead of the accumulators."""
        with self._step("sum_in_place", array=sums):
            self.run(sum_in_place, sums)

    # -- Copies -------------------------------------------------------------------------------------------------------

    def pack(
        self, operands: Sequence[str] | str, *args: Any, room: Sequence[tuple[Loop, int]] = (), convert: bool = False
    ) -> Copy:  # fmt: skip
        """Pack operands before the kernel runs, in the order in which its nest reads them.

        ``room`` pads loops with zeros to more elements than their iterations. With ``convert``, packed elements have
        the type to which the nest converts them.
        """
        names = (operands,) if isinstance(operands, str) else tuple(operands)
        for name in names:
            self.array(name)
        before = self.kernel
        with self._step("pack", *(x for x, _ in room)):
            made = super().pack(names, *(args or (tuple(room), convert)))
            if self.kernel is before:
                raise ConfigError("reads", f"pack: the kernel reads no element of {', '.join(names)}")
        return made

    def stage(
        self, array: str, loop: Loop, rank: int = 0, layout: BoxCopy | None = None, scope: str = "cache", *,
        innermost: int | None = None, exact: bool = False, masked: bool = False, convert: bool = False,
    ) -> Copy:  # fmt: skip
        """Copy the elements that each iteration of ``loop`` reads of ``array``, with zeros for elements outside of it.

        The copy is in ``scope``, with the dim ``innermost`` of the array contiguous. An ``exact`` copy holds only
        elements that exist. With ``masked``, reads keep their masks. With ``convert``, the copy holds elements of the
        type to which the nest converts them.
        """
        dims = len(self.array(array).shape)
        with self._step("stage", loop, scope=scope):
            if innermost not in (None, *range(dims)):
                raise ConfigError(
                    "dim", f"stage: dim {shown(innermost)} of {array}, which has {dims}; legal are 0 to {dims - 1}"
                )
            width = self.lanes if scope == "register" else 1
            box = layout or BoxCopy(innermost, 0, width, exact, masked, convert)
            before = self.kernel
            made = super().stage(array, loop, rank or dims, box, scope)
            if self.kernel is before:
                raise ConfigError("reads", f"stage: no iteration of loop {loop} reads an element of {array}")
        return made

    def multiple_buffers(
        self, loop: Loop, copies: Sequence[Copy], count: int, ahead: int = 1, unrolled: bool = False
    ) -> Loop:
        """Give ``copies``, which each iteration of ``loop`` fills and uses, ``count`` slots, and fill each ``ahead``
        iterations early; return the loop.

        If ``unrolled``, it runs over rounds of ``count`` iterations, in which slots are constant, as registers need
        them.
        """
        with self._step("multiple_buffers", loop):
            rounds = loop
            if unrolled and count > 1:
                rounds = loop._replace(name=self._name(f"{loop.name}.o"), extent=loop.extent // count, is_tiled=True)
            slots = () if rounds is loop else (rounds,)
            self.run(multiple_buffers, loop, tuple(copies), count, ahead, *slots)
        if rounds is not loop:
            self._became((loop,), (rounds,))
        return rounds

    def set_layout(self, array: str, tag: str = "") -> None:
        """Give ``array`` one dim for each block of its layout, or of the layout that ``tag`` describes for its shape.
        """
        old = self.array(array)
        blocks = Layout.from_tag(tag, old.shape).blocks if tag else old.blocks
        with self._step("set_layout"):
            self.run(set_layout, array, BlockDims(tuple((b.dim, b.size) for b in blocks)))

    def bring(self, loop: Loop, operands: Mapping[str, Sequence[Loop]]) -> list[Copy]:
        """Have a copy engine bring what each iteration of ``loop`` reads of ``operands`` to shared memory, with
        zeros for absent elements. A copy has a dim for each of the loops over a tile of the operand, outermost first.
        """
        engine = self.machine.device.engine if self.machine.device is not None else None
        if engine is None:
            raise ConfigError("scope", f"bring: {self.machine.name} has no copy engine; legal is stage()")
        st, views = self.statements[-1], {v.array: v for v in self.statements[-1].factors}
        for array in operands:
            if array not in views:
                raise UsageError(f"bring: {shown(array)}; legal are {choices(array, tuple(views))}", code="bad-array")
        with self._step("bring", loop, *(x for own in operands.values() for x in own)):
            around = self._around(loop)
            made = []
            for array, own in operands.items():
                found = engine_copy(st, views[array], around, own, engine)
                if isinstance(found, ConfigError):
                    raise ConfigError(found.code, f"bring: {found.message}, so that no tensor map brings it")
                made.append(found)
            return bring_tiles(self, loop, made)

    def indirect(self, form: str = "sections") -> None:
        """Read the source through a table of pointers in the ``form``, a word of `--table`: one pointer for each pixel
        and tap, which points to zeros if the pixel is absent.
        """
        forms = CONFIG_ROWS["table"].legal
        if form not in forms:
            raise UsageError(f"indirect: {shown(form)} is not legal; legal are {choices(form, forms)}", code="table")
        (st, *others) = self.statements
        if others:
            raise ConfigError("reads", f"indirect: the kernel has {len(self.statements)} statements; legal is one")
        with self._step("indirect"):
            self.record(indirect_step(st, form))
        self.tables[form] = st

    # -- Code ---------------------------------------------------------------------------------------------------------

    def sink_guards(self) -> None:
        """Move conditions around several statements to each of them, and drop conditions that a statement does not
        need.
        """
        with self._step("sink_guards"):
            self.run(sink_guards)

    def guard(self, *loops: Loop) -> None:
        """Run ``loops`` with a shorter last tile over whole tiles, with a test of each iteration."""
        with self._step("guard", *loops):
            self.run(guard_tails, loops)

    def flatten(self) -> None:
        """Give every array a single dim, with offsets as indices; vectors and instructions require it."""
        with self._step("flatten"):
            self.run(flatten)
            self.run(simplify)

    def vectorise(self, loop: Loop, lanes: int = 0, strict: bool = True) -> None:
        """Vectorise ``loop`` with ``lanes`` lanes, by default one for each iteration; requires `flatten`.

        If not ``strict``, loops that cannot become vectors are unchanged.
        """
        with self._step("vectorise", loop, count=lanes or None):
            self.run(vectorise, loop, lanes or loop.extent, strict)

    def replace(self, rows: Sequence[Instruction] | None = None, within: Sequence[Loop] = ()) -> None:
        """Replace nests and vector statements by the first of ``rows`` that computes them; the default is the machine's
        table.

        ConfigError if no row computes a nest of sums in the loops ``within``.
        """
        with self._step("replace", *within):
            self.run(replace, self.machine.instructions if rows is None else tuple(rows), tuple(within))

    def fragments(self, row: Instruction, *loops: Loop) -> None:
        """Have ``row``, whose fragments the lanes of warps share, take the place of ``loops``; after `flatten`."""
        with self._step("fragments", *loops):
            if [x.extent for x in loops] != [*row.loops.values()]:
                raise ConfigError(
                    "fragment", f"fragments: {row.name} multiplies {' x '.join(map(str, row.loops.values()))}; found "
                    f"{', '.join(f'{x} of {x.extent}' for x in loops) or 'none'}",
                )  # fmt: skip
            require_types(row, self.statements[-1])
            self.run(form_fma, self.machine.scalar_types)
            multiply_fragments(self, self.machine, row, loops)

    def stream(self, array: str, ahead: int = 0) -> None:
        """Let elements of ``array`` bypass the first cache; a load prefetches the line ``ahead`` bytes after it."""
        with self._step("stream", array=array):
            self.run(stream, ((array, ahead),))
