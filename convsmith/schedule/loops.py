"""Loops of a statement after the config has fused them, and the loops that tiling makes of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from convsmith.diag.errors import ConfigError
from convsmith.diag.forking import cached_property
from convsmith.diag.record import record
from convsmith.ir.stmt import Stmt
from convsmith.ir.walk import loops_of
from convsmith.layout.tags import MAX_DIMS
from convsmith.machine.base import Machine
from convsmith.passes.manager import Step
from convsmith.schedule.config import Config
from convsmith.statement.diagonal import diagonal
from convsmith.statement.parts import split_chain, split_reduction, splits_on_devices
from convsmith.statement.phases import phased
from convsmith.statement.statement import KINDS, Dim, Statement
from convsmith.statement.zero_terms import with_zero_terms

LEVELS = ("class", "grid", "cluster", "group", "warp", "thread", "cache", "register", "instruction", "lane", "copy")
"""Levels of tiles of CPUs and of devices, outermost first. A loop of a level steps through a tile of that level; a loop
of the level ``class`` runs over residue classes or phases, and one of the level ``copy`` fills a copy."""


class Loop(NamedTuple):
    """A loop of a scheduled nest. Its ``name`` is for people; code asks for the other fields.

    ``of`` is the loop of the statement, after fusing, that it is a part of, and ``dims`` are that loop's dims,
    outermost first. ``role`` is one of ``KINDS``, ``level`` one of ``LEVELS``. The loop runs at most ``extent`` times,
    each iteration covers ``tile`` iterations of ``of``. ``is_tiled`` states that each iteration runs an inner loop over
    its tile.
    """

    name: str
    of: str
    dims: tuple[str, ...]
    role: str
    level: str
    extent: int
    tile: int = 1
    is_tiled: bool = False

    def __str__(self) -> str:
        return self.name


def loop_over(dim: Dim) -> Loop:
    """Return the loop over a dim of a statement, before it is split or fused."""
    return Loop(dim.name, dim.name, (dim.name,), dim.kind, "thread", dim.size)


def names(loops: Iterable[Loop]) -> tuple[str, ...]:
    """Return the names of ``loops``, which address them in a nest."""
    return tuple(loop.name for loop in loops)


def places(loops: Iterable[Loop]) -> str:
    """Return the words by which a config names ``loops``: each is the innermost loop of its name, or has a tile."""
    return ", ".join(dict.fromkeys(x.of if x.tile == 1 else f"{x.of}:{x.tile}" for x in loops))


def innermost(loops: Sequence[Loop], of: str, size: int = 0) -> Loop | None:
    """Return the last of ``loops`` that steps through the loop ``of``, in tiles of ``size`` unless that is 0; None if
    there is none.
    """
    return next((x for x in reversed(loops) if x.of == of and size in (0, x.tile)), None)


def down_to(loops: Sequence[Loop], loop: Loop) -> tuple[Loop, ...]:
    """Return the first of ``loops``, up to and including ``loop``."""
    return tuple(loops[: loops.index(loop) + 1])


def loops_in(nest: Stmt) -> tuple[Loop, ...]:
    """Return the loops of a naive ``nest``, outermost first."""
    return tuple(
        Loop(x.var.name, x.var.name, (), "copy", "copy", int(x.hi) if x.hi.is_const else 0) for x in loops_of(nest)
    )


class SymbolicSizes(NamedTuple):
    """The ``loops`` of a statement whose extents are arguments of a call, and the rewrites that introduce these sizes.
    """

    loops: frozenset[str]
    steps: tuple[Step, ...]


@record(frozen=True)
class Loops:
    """The loops of a statement after fusing, by role, outermost first.

    ``axes`` are the letters of the spatial axes that a loop runs along; ``residues`` the numbers of residue classes of
    loops that a stride must divide; ``dims`` the dims of each loop, outermost first. The extents of ``symbolic`` loops
    are arguments of a call; their extents here are placeholders.
    """

    extents: dict[str, int]
    kinds: dict[str, str]
    axes: dict[str, str]
    residues: dict[str, int]
    dims: dict[str, tuple[str, ...]]
    symbolic: frozenset[str] = frozenset()

    def of(self, *kinds: str) -> list[str]:
        """Return the names of the loops in these roles."""
        found = self._by_kind.get(kinds)
        if found is None:
            found = self._by_kind[kinds] = [n for n, k in self.kinds.items() if k in kinds]
        return [*found]

    @cached_property
    def _by_kind(self) -> dict[tuple[str, ...], list[str]]:
        """The names that `of` has returned, by their roles."""
        return {}

    def whole(self, name: str, level: str = "thread") -> Loop:
        """Return the loop of that name before it is split."""
        return Loop(name, name, self.dims[name], self.kinds[name], level, self.extents[name])

    def part(self, name: str, of: str, level: str, extent: int, tile: int = 1, is_tiled: bool = False) -> Loop:
        """Return the loop ``name`` of a nest, a part of the loop ``of``."""
        return Loop(name, of, self.dims[of], self.kinds[of], level, extent, tile, is_tiled)


def tile_of(loops: Loops, config: Config, loop: str) -> tuple[int, int]:
    """Return the iterations of a loop in the tile of a group and in the tile of a thread; (1, 1) for a loop that runs
    once.
    """
    return (config.group_size(loop), config.size(loop)) if loops.extents[loop] > 1 else (1, 1)


def fused_name(a: str, b: str) -> str:
    """Return the name of the loop that results from fusing two loops."""
    return f"{a}_{b}"


def fused_chain(names: Sequence[str]) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return the loop that results from fusing the adjacent loops ``names``, and the pairs that are fused in sequence.
    """
    whole, pairs = names[0], []
    for name in names[1:]:
        pairs.append((whole, name))
        whole = fused_name(whole, name)
    return whole, tuple(pairs)


def fused_dims(config: Config, loop: str) -> tuple[str, ...]:
    """Return the dims of ``loop``, outermost first: a single one, or the dims that ``config`` fuses."""
    dims: dict[str, tuple[str, ...]] = {}
    for a, b in config.fuse:
        dims[fused_name(a, b)] = (*dims.get(a, (a,)), *dims.get(b, (b,)))
    return dims.get(loop, (loop,))


def side_by_side(st: Statement, config: Config) -> Statement:
    """Return ``st`` with the groups side by side and the further terms that ``config`` names; ConfigError if it has no
    such groups or terms.
    """
    for loop, count in config.tiles_at("diagonal"):
        st = diagonal(st, loop, count)
    return with_zero_terms(st, config.tiles_at("zeros"))


def in_parts(st: Statement, config: Config, machine: Machine) -> Statement:
    """Return the statement with the parts of its reduction that ``config`` gives results of their own. On a device, a
    part may be whole steps of several dims, whose loops are fused.
    """
    split = config.tiles_at("split") if config.join == "ordered" else ()
    if split and machine.device is not None and not splits_on_devices(st, len(split)):
        text = ",".join(f"{loop}:{parts}" for loop, parts in split)
        raise ConfigError(
            "split", f"--split={text}: an operand has more than {MAX_DIMS - len(split)} dims; legal with parts of "
            f"{len(split)} loops are at most as many",
        )  # fmt: skip
    for loop, parts in split:
        dims = fused_dims(config, loop)
        loops = loops_after_fusing(st, config)
        if machine.device is None or len(dims) == 1 or loop not in loops.extents:
            st = split_reduction(st, ((loop, parts),))
        else:
            st = split_chain(st, dims, parts, terms_of_part(loops.whole(loop), config, parts))
    return st


def terms_of_part(loop: Loop, config: Config, parts: int) -> int:
    """Return the terms of each of ``parts`` of a ``loop`` of the reduction: equally many along one dim, and whole steps
    of a group along several, the last of which may be shorter.
    """
    if len(loop.dims) == 1:
        return loop.extent // parts
    step = config.group_size(loop.of)
    return -(-loop.extent // (parts * step)) * step


def with_phases(st: Statement, config: Config) -> Statement:
    """Return ``st`` with the phases of ``config``; ConfigError if its realisation does not have them."""
    return phased(st, config.phases, config.realise == "hardware")


def loops_after_fusing(st: Statement, config: Config) -> Loops:
    """Return the loops of ``st`` with the phases of ``config``, after fusing; ConfigError if they cannot be fused."""
    st = with_phases(st, config)
    order = sorted(st.dims, key=lambda d: (KINDS.index(d.kind), st.reduce.index(d.name) if d.kind == "k" else 0))
    classes = st.residues
    extents = {d.name: -(-d.size // classes.get(d.name, 1)) for d in order}
    kinds = {d.name: d.kind for d in order}
    axes = {d.name: d.axis for d in order}
    dims: dict[str, tuple[str, ...]] = {d.name: (d.name,) for d in order}
    for a, b in config.fuse:
        present = list(extents)
        if a not in present or b not in present or present.index(b) != present.index(a) + 1:
            raise ConfigError("fuse", f"--fuse={a}+{b}: no such neighbours among {', '.join(present)}")
        if a in classes or b in classes:
            raise ConfigError("fuse", f"--fuse={a}+{b}: a loop that a stride must divide cannot be fused")
        if (kinds[a] == "k") != (kinds[b] == "k"):
            raise ConfigError("fuse", f"--fuse={a}+{b}: a reduction loop and another cannot be one")
        name = fused_name(a, b)
        extents = {(name if n == a else n): (s * extents[b] if n == a else s) for n, s in extents.items() if n != b}
        kinds = {(name if n == a else n): ("n" if n == a and "n" in (kinds[a], kinds[b]) else k)
                 for n, k in kinds.items() if n != b}  # fmt: skip
        axes[name] = axes[a] + axes[b]
        dims[name] = (*dims[a], *dims[b])
    return Loops(extents, kinds, {n: axes[n] for n in extents}, classes, {n: dims[n] for n in extents})
