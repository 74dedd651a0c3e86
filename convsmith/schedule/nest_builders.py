"""Builders of nests, for threads and for groups: they split the loops of a statement by the tiles of a config."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile

from convsmith.machine.base import Machine
from convsmith.passes.simplify import simplify
from convsmith.passes.solve import solve
from convsmith.schedule.config import Config
from convsmith.schedule.copies import is_copied
from convsmith.schedule.fusing import fuse_dims, writes_lines_by_class
from convsmith.schedule.grid import in_blocks
from convsmith.schedule.group_fragments import lane_row, warp_tile
from convsmith.schedule.loops import Loop, Loops, terms_of_part, tile_of
from convsmith.schedule.nest import Nest
from convsmith.schedule.product_shape import ProductShape
from convsmith.schedule.registers import filled_lanes
from convsmith.schedule.schedule import Schedule
from convsmith.statement.parts import part_loop
from convsmith.statement.statement import Statement


def nest_of(
    s: Schedule, st: Statement, loops: Loops, config: Config, machine: Machine, unit: ProductShape | None = None
) -> Nest:
    """Split the ``loops`` of ``st`` by the tiles of ``config``, and return their nest. The products are computed by
    ``unit``, by default the instruction that ``config`` names.
    """
    classes = fuse_dims(s, st, config)
    if machine.device is not None:
        return _GroupTiles(s, st, loops, config, machine).nest([x for x in classes if x.role != "k"])
    unit = unit or ProductShape.of(st, machine, config)
    return _VectorTiles(s, st, loops, config, unit, machine.vectors.scalable).nest(classes)


Split = tuple[int, str, tuple[str, str]]
"""A split of a loop: by a size, into parts of these letters and levels."""


class NestBuilder:
    """Splits the loops of a statement by their tiles. ``parts`` maps each loop to its parts, outermost first. Groups
    add up the sums of the iterations of the loops ``added``.
    """

    def __init__(self, s: Schedule, st: Statement, loops: Loops, config: Config) -> None:
        self.s, self.st, self.loops, self.config = s, st, loops, config
        self.parts: dict[str, list[Loop]] = {}
        self.added: list[Loop] = []

    def part(self, loop: Loop) -> Loop:
        """Return the loop over the terms of a part, if groups share ``loop`` of the reduction, otherwise ``loop``."""
        split = self.config.tiles_at("split")
        parts = dict(split).get(loop.of)
        if parts is None or (self.config.join == "ordered" and len(loop.dims) == 1):
            return loop
        size = terms_of_part(loop, self.config, parts)
        over, own = self.s.tile(self.s.extend(loop, size), size, ("a", ""), ("grid", loop.level))
        if self.config.join == "atomic":
            self.added.append(over)
            return own
        self.s.run(simplify)
        self.s.run(solve, over)  # a part has the terms of its own iteration alone
        name = part_loop([n for n, _ in split].index(loop.of))
        self.parts[name] = [over._replace(name=name, role="batch")]
        return own

    def split(self, loop: Loop, splits: Sequence[Split]) -> None:
        """Split ``loop``, then the loop within each of its tiles."""
        made, found = [loop], [size for n, size in self.config.tiles_at("first_last_tile") if n == loop.of]
        ends = (found[0], found[1]) if found else None
        for size, letters, levels in splits:
            made[-1:] = self.s.tile(made[-1], size, letters, levels, ends)
        self.parts[loop.of] = made


class _VectorTiles(NestBuilder):
    """The tiles of caches, registers and vectors of one thread."""

    def __init__(
        self, s: Schedule, st: Statement, loops: Loops, config: Config, unit: ProductShape, scalable: bool
    ) -> None:
        super().__init__(s, st, loops, config)
        self.unit, self.scalable = unit, scalable
        self.filled = filled_lanes(st, loops.dims[config.lane], unit, config.size(config.lane))
        self.role_of_rows = "n" if loops.kinds[config.lane] == "m" else "m"

    def nest(self, classes: Sequence[Loop]) -> Nest:
        """Return the nest, including the loops over residue classes.

        Vectors of a tile are adjacent, except for scalable vectors, whose units are interleaved with the units of all
        tiles.
        """
        config = self.config
        for name in self.loops.kinds:
            loop = self.loops.whole(name, "cache" if self.cached(name) else "thread")
            self.split(loop, [*self.splits(loop)])
        outer, reduce, inner = self.by_place()
        blocks, depth, before = self.blocks(outer, reduce)
        around = [x for x in classes if x.role != "k"]
        first = len(around) + before
        around += [x for x in blocks if x.role != "k"]
        ordered = [outer.pop(n) for n in config.order if n in outer]
        ordered += outer.values()
        if not blocks and (roles := self.roles_around_classes()):
            images = {d.name for d in self.st.dims if d.sort == "images"}
            sizes, moduli = self.st.extents, self.st.residues
            equal = {n for n in sizes if sizes[n] % moduli.get(n, 1) == 0}  # in all classes
            around[:0] = takewhile(
                lambda x: images.issuperset(x.dims) or (x.role in roles and equal.issuperset(x.dims)), ordered
            )
        around += [x for x in ordered if x not in around]
        steps = [x for x in (*blocks, *classes) if x.role == "k"]
        steps += [x for n in config.reduce if n in reduce for x in reduce.pop(n)]
        steps += [x for parts in reduce.values() for x in parts]
        within = tuple(around[first:]) if depth else ()
        return Nest((*around, *steps, *inner), self.unit, depth, within, self.scalable)

    def roles_around_classes(self) -> tuple[str, ...]:
        """Return the roles of the loops that run all residue classes in turn, as images do; empty if classes are
        outermost.

        Classes of adjacent elements write the same cache lines, so that the classes of a few rows follow each other
        while a cache keeps these rows. On one thread, all classes read one copy of an image.
        """
        if writes_lines_by_class(self.st):
            return ("batch", "m" if self.loops.kinds[self.config.lane] == "m" else "n")
        return ("batch",) if self.config.threads == 1 and is_copied(self.st, self.config) else ()

    def by_place(self) -> tuple[dict[str, Loop], dict[str, list[Loop]], list[Loop]]:
        """Return the loops over register tiles by the loop that they are part of, the loops of the reduction around the
        loops over sums, and the loops within a register tile.
        """
        outer: dict[str, Loop] = {}
        reduce: dict[str, list[Loop]] = {}
        inner: list[Loop] = []
        for n, made in self.parts.items():
            for x in made:
                if x.role == "k" and x.level not in ("instruction", "lane"):
                    reduce.setdefault(n, []).append(x)
                elif x.level in ("thread", "cache"):
                    outer[n] = x
                else:
                    inner.append(x)
        if self.loops.kinds[self.config.lane] != "m":
            inner.sort(key=lambda x: x.role != "m")
        return outer, reduce, inner

    def splits(self, loop: Loop) -> Iterator[Split]:
        """Yield the splits of ``loop``."""
        n, config, size, level = loop.of, self.config, self.config.size(loop.of), loop.level
        if n == config.lane and loop.role == "k":
            yield self.unit.lanes, "ol", (level, "lane")
        elif n == config.lane:
            width = max(size, self.filled)
            if self.is_apart(n, width):
                yield loop.extent // (width // self.filled), "vt", ("register", level)
                yield self.filled, "ol", (level, "lane")
                return
            yield width, "ot", (level, "register")
            yield self.filled, "vl", ("register", "lane")
        elif n in dict(config.tiles_at("k_step")):
            yield dict(config.tiles_at("k_step"))[n], "oq", (level, "instruction")
            if self.unit.rows > 1:
                yield self.unit.group, "qp", ("instruction", "instruction")
        elif self.unit.rows > 1 and loop.role == self.role_of_rows and n in dict(config.tiles_at("register")):
            yield size, "ot", (level, "register")
            yield -(-size // -(-size // self.unit.rows)), "im", ("register", "instruction")
        elif size > 1 or (loop.role == "k" and n in dict(config.tiles_at("first_last_tile"))):
            yield size, "ou" if loop.role == "k" else "oi", (level, "register")

    def is_apart(self, n: str, width: int) -> bool:
        """Return whether the vectors of a tile of the lane loop are not adjacent, for tiles of ``width``."""
        plain = self.loops.kinds[n] in ("batch", "n") and n not in self.loops.symbolic and n not in self.loops.residues
        whole = self.filled == self.unit.lanes and not self.loops.extents[n] % width and not self.cached(n)
        return self.scalable and plain and whole and width > self.filled

    def cached(self, n: str) -> list[int]:
        """Return the sizes of the cache tiles of loop ``n`` that are smaller than the tile around them."""
        sizes, whole = [], self.loops.extents[n]
        for name, size in self.config.tiles_at("cache"):
            if name == n and size < whole:
                sizes.append(size)
                whole = size
        return sizes

    def blocks(
        self, outer: dict[str, Loop], reduce: dict[str, list[Loop]]
    ) -> tuple[list[Loop], tuple[Loop, ...], int]:  # fmt: skip
        """Split the loops over register tiles into cache tiles; return the loops over cache tiles, the loops of the
        reduction among them, and the number of loops before these.
        """
        blocks: list[Loop] = []
        depth: list[Loop] = []
        before, seen = 0, dict.fromkeys(self.loops.extents, 0)
        for n, size in self.config.tiles_at("cache"):
            if size not in self.cached(n)[seen[n] :]:
                continue
            level = "cache" if seen[n] else "thread"
            seen[n] += 1
            tiles = outer.pop(n) if n in outer else reduce[n].pop(0)
            if size == tiles.tile:
                loop = tiles
            else:
                loop, tiles = self.s.tile(tiles, size // tiles.tile, ("b", ""), (level, tiles.level))
                if loop.role == "k":
                    reduce[n].insert(0, tiles)
                else:
                    outer[n] = tiles
            if loop.role == "k":
                before = before if depth else len(blocks)
                depth.append(loop)
            blocks.append(loop)
        return blocks, tuple(depth), before


class _GroupTiles(NestBuilder):
    """The tiles of a group, and of its threads or warps.

    Adjacent threads have adjacent iterations of the lane loop. Along other loops, a thread has a run of iterations. A
    warp that computes fragments has runs along all loops.
    """

    def __init__(self, s: Schedule, st: Statement, loops: Loops, config: Config, machine: Machine) -> None:
        super().__init__(s, st, loops, config)
        self.row, self.machine = lane_row(st, loops, config, machine), machine

    def nest(self, classes: Sequence[Loop]) -> Nest:
        """Return the nest, including the loops over residue ``classes``; the groups of a class are consecutive."""
        for n in self.order():
            loop = self.loops.whole(n, "thread" if self.loops.kinds[n] == "k" else "grid")
            loop = self.part(loop)
            whole = max(tile_of(self.loops, self.config, n)[0], self.config.size(n, "l2"))
            if loop.extent % whole or n in self.loops.residues:
                loop = self.s.extend(loop, whole)
            self.split(loop, [*self.splits(loop)])
        made = [*self.added, *in_blocks(self.s, self.config, (x for parts in self.parts.values() for x in parts))]
        made.sort(key=lambda x: x.of == self.config.lane and x.level in ("group", "instruction"))
        if self.row is None:
            return Nest((*classes, *made), ProductShape.thread())
        # Loops of rows, and of columns, become one loop each.
        roles = [x.role for x in made if x.level == "warp"]
        made.sort(key=lambda x: roles.index(x.role) if x.level == "warp" else 0)
        found = Nest((*classes, *made), ProductShape.of_row(self.row), warp_size=self.row.result.layout.lanes)
        return replace(found, warp=warp_tile(
            self.row, self.machine, self.config.lane, found.accumulators, found.terms, self.config.sub_tile,
        ))

    def order(self) -> list[str]:
        """Return the names of the loops, outermost first."""
        around, inner = self.loops.of("batch", "n", "m"), self.loops.of("k")
        first = [n for n in self.config.order if n in around]
        reduce = [n for n in self.config.reduce if n in inner]
        return [*first, *(n for n in around if n not in first), *reduce, *(n for n in inner if n not in reduce)]

    def splits(self, loop: Loop) -> Iterator[Split]:
        """Yield the splits of ``loop``."""
        n, level, own_level = loop.of, loop.level, "register" if self.row is None else "warp"
        size, own = tile_of(self.loops, self.config, n)
        across, run = size // own, dict(self.config.tiles_at("vectors")).get(n, 1)
        is_lane, is_step, letter = n == self.config.lane, loop.role == "k", "i" if run == 1 else "c"
        inner, last = own_level, "i"
        if size == 1 and not is_lane:
            return
        if is_step:
            inner = "group"
            yield size, f"g{letter}", (level, inner)
        elif across == 1 and not is_lane:
            yield size, f"g{letter}", (level, inner)
        elif own == 1:
            yield size, "gt", (level, "group")
            return
        elif is_lane and self.row is None:
            yield size, "gb", (level, "group")
            yield across * run, "it" if run == 1 else "ic", (inner, "group")
            inner, last = "group", "t"
        else:
            yield size, "gb", (level, "group")
            yield own, f"t{letter}", ("group", inner)
        if run > 1:
            yield run, f"{last}v", (inner, "instruction")
