"""Two convolutions over blocked layouts as one nest: TVM's schedules of conv2d -> conv2d for Hexagon.

The second convolution is split over blocks of its channels by ``k_split`` and over blocks of its rows by ``h_split``. A
tile of the first one is computed for each: all of its channels, and the rows that the tile of the second one reads.
Source and weights are read through caches, and the result is written back from one. The first convolution adds its
sums up where its results lie if these are the sums. Otherwise a block of sums has a cache of its own, and its epilogue
finishes them. Then caches share memory.

The nest has two forms. In the ``whole`` form, loops run over whole blocks, as TVM prints them. Rows and columns in the
last blocks that are no part of the result are computed too, from elements beyond the end of a cache: the form is to be
read, not to be run. In the other form, loops end where the result ends, and those rows and columns are zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

from convsmith.diag.errors import ConfigError
from convsmith.diag.forking import cached_property
from convsmith.ir.instruction import Instruction
from convsmith.ir.stmt import Kernel
from convsmith.layout.layout import Layout
from convsmith.layout.tags import ANY, parse_tag
from convsmith.machine.base import Machine
from convsmith.passes.buffer_layouts import BlockDims
from convsmith.passes.compute_at import compute_at
from convsmith.passes.fission import fission
from convsmith.passes.flatten import flatten
from convsmith.passes.guard_tails import guard_tails
from convsmith.passes.manager import Step
from convsmith.passes.narrow_index import narrow_index
from convsmith.passes.reorder import reorder
from convsmith.passes.replace import replace as replace_by_rows
from convsmith.passes.set_layout import set_layout
from convsmith.passes.share_storage import share_storage
from convsmith.passes.simplify import simplify
from convsmith.passes.sink_guards import sink_guards
from convsmith.passes.stage import stage
from convsmith.passes.strength import strength_reduce
from convsmith.passes.sum_in_place import sum_in_place
from convsmith.passes.sum_in_registers import sum_in_registers
from convsmith.passes.tile import tile
from convsmith.passes.vectorise import vectorise
from convsmith.problem.chain import Chain
from convsmith.problem.conv import Conv
from convsmith.problem.fusion import Stages, middle, stages_of
from convsmith.problem.problem import Problem
from convsmith.schedule.pipelines import SYMBOL
from convsmith.statement.fused import FusedStatements, in_whole_blocks, suffix
from convsmith.statement.statement import Statement
from convsmith.statement.views import statement

SOURCE, ACTIVATIONS, WEIGHTS = "axb", "NHWC8h8w32c", "OIHW8i32o4i"
"""Layouts where a chain leaves them open: of the source, of the results, and of the weights."""


@dataclass(frozen=True)
class BlockLoops:
    """The names of the loops of one convolution, as TVM prints them.

    ``channels`` and ``rows`` are loops over the tiles and over the blocks of a tile, ``columns`` over all blocks of
    columns, ``inner`` over rows, columns and channels in a block, ``reduction`` over blocks of channels and in one,
    ``window`` over taps. ``blocks`` are the loops over channels and rows before these are split into tiles.
    """

    channels: tuple[str, str]
    rows: tuple[str, str]
    columns: str
    inner: tuple[str, str, str]
    reduction: tuple[str, str]
    window: tuple[str, str]
    blocks: tuple[str, str]

    @property
    def tile(self) -> tuple[str, str, str]:
        """The loops over the blocks of a tile: rows, columns and channels, as the result lies in memory."""
        return self.rows[1], self.columns, self.channels[1]


FIRST = BlockLoops(
    ("ko.outer_1", "ko.inner"), ("ho.outer_1", "ho.inner"), "wo", ("hi", "wi", "ki"), ("rc.outer", "rc.inner"),
    ("rh", "rw"), ("ko", "ho"),
)  # fmt: skip
SECOND = BlockLoops(
    ("ko.outer", "ko.c.inner"), ("ho.outer", "ho.c.inner"), "wo.c", ("hi.c", "wi.c", "ki.c"),
    ("rc.outer_1", "rc.inner_1"), ("rh_1", "rw_1"), ("ko.c", "ho.c"),
)  # fmt: skip
NAMES = (FIRST, SECOND)
"""The loops of both convolutions."""


@dataclass(frozen=True)
class BlockedChain:
    """The plan of ``chain``, two convolutions; ``whole`` is the form that runs over whole blocks.

    With ``asynchronous`` copies, caches share no memory where a copy would wait.
    """

    chain: Chain
    machine: Machine
    k_split: int = 1
    h_split: int = 1
    whole: bool = False
    asynchronous: bool = False

    def __post_init__(self) -> None:
        if len(self.chain.stages) != 2:
            raise _refuse(f"{self.chain} has {len(self.chain.stages)} stages; legal are two convolutions")
        for n, problem in enumerate(self.chain.stages, start=1):
            _check_stage(n, problem)
        for n, problem in enumerate(self.convs, start=1):
            _check_layouts(n, problem)
        blocks = [self.blocks(n) for n in range(2)]
        legal = {"k": _divisors(gcd(*(channels for _, channels in blocks))), "h": _divisors(blocks[1][0])}
        for letter, given in (("k", self.k_split), ("h", self.h_split)):
            if given not in legal[letter]:
                what = "output channels of both convolutions" if letter == "k" else "rows of the result"
                raise ConfigError(
                    "split", f"--{letter}-split={given} divides no number of blocks of {what}; legal are "
                    f"{', '.join(map(str, legal[letter]))}",
                )  # fmt: skip

    @cached_property
    def stages(self) -> Stages:
        """The convolutions of the chain, with TVM's layouts where it leaves them open."""
        first, second = self.chain.stages
        between = second.stag if second.stag != ANY else ACTIVATIONS
        made = Chain(
            stages=(
                _with_tags(first, stag=SOURCE, wtag=WEIGHTS, dtag=between),
                _with_tags(second, wtag=WEIGHTS, dtag=ACTIVATIONS),
            )
        )
        found = stages_of(made)
        assert found is not None
        return found

    @property
    def convs(self) -> tuple[Conv, ...]:
        """The convolutions, with the layouts of the kernel's arrays."""
        return tuple(p for p in self.stages.problems if isinstance(p, Conv))

    def blocks(self, n: int) -> tuple[int, int]:
        """Return the numbers of blocks of rows and of channels of the result of stage ``n`` (from 0)."""
        _, rows, _, channels, *_ = self.convs[n].dst_layout.blocks
        return rows.size, channels.size

    @property
    def rows(self) -> int:
        """Blocks of rows of the first convolution for a tile of the second one."""
        second = self.convs[1]
        (_, block), *_ = parse_tag(second.stag, 4).inner
        rows = (self.h_split * block - 1) * second.s[0] + (second.k[0] - 1) * (second.d[0] + 1) + 1
        return min(-(-rows // block), self.blocks(0)[0])

    @property
    def pipeline(self) -> Sequence[Step]:
        """The rewrites of the kernel: of the nest, with channels of a block as vectors."""
        steps = [*self.nest_steps]
        for conv, names in zip(self.convs, NAMES):
            lane, (_, terms) = names.inner[2], names.reduction
            row = self._row(conv)
            if row is None:
                steps.append(Step(reorder, (terms, lane)))
            else:
                words, in_word = f"{terms}.o", f"{terms}.t"
                steps += [Step(tile, terms, row.terms, words, in_word), Step(reorder, (words, lane, in_word))]
            if conv.acc not in self.machine.scalar_types:
                around = (names.inner[0], names.columns, names.rows[1], names.channels[1], names.rows[0])
                steps.append(Step(sum_in_registers, names.inner[1], around))
        steps += [Step(simplify), Step(share_storage, self.asynchronous), Step(narrow_index)]
        for conv, names in zip(self.convs, NAMES):
            row = self._row(conv)
            if row is not None:
                steps.append(Step(vectorise, f"{names.reduction[1]}.t", row.terms, False))
            steps.append(Step(vectorise, names.inner[2], _channel_block(conv)))
        return (*steps, Step(replace_by_rows, self.machine.instructions), Step(strength_reduce))

    def _row(self, conv: Conv) -> Instruction | None:
        """Return the machine's dot product for blocks of the channels of ``conv``; None if it has none of this shape.
        """
        row = self.machine.row(conv.dt[0], conv.dt[1], conv.acc)
        (_, terms) = parse_tag(conv.wtag, 4).inner[2]
        has_shape = row is not None and row.terms > 1 and (row.lanes, row.terms) == (_channel_block(conv), terms)
        return row if has_shape else None

    @property
    def nest_steps(self) -> Sequence[Step]:
        """The rewrites from the naive nests to the nest whose caches have memory of their own."""
        steps = [step for n, names in enumerate(NAMES) for step in self._tiles(n, names)]
        steps += [Step(set_layout, name, BlockDims(digits)) for name, digits in self._digits().items()]
        steps.append(Step(simplify))
        steps += self._splits(SECOND, SECOND.tile)
        steps.append(Step(compute_at, middle(0), SECOND.rows[0], False))
        steps += self._splits(FIRST, (FIRST.channels[1], FIRST.rows[1], FIRST.columns))
        for n, names in enumerate(NAMES):
            order = (names.reduction[0], *names.inner[:2], *names.window, names.inner[2], names.reduction[1])
            steps += [Step(fission, names.inner, (), "cache"), Step(reorder, order)]
            if n == 0 and _is_sum(self.convs[n]):
                steps.append(Step(sum_in_place, "acc"))
        steps += [Step(fission, SECOND.tile, (), "cache", True)]
        steps.append(Step(reorder, (SECOND.channels[1], SECOND.rows[1], SECOND.columns)))
        # The source is read where its footprint moves: the rows of several steps, or those of a tile at once.
        places = {"src": FIRST if self.rows > self.h_split else SECOND, "wei_1": FIRST, "wei_2": SECOND}
        steps += [Step(stage, name, at.rows[0], None, 0, "cache", 1, True) for name, at in places.items()]
        steps += [Step(simplify, False), Step(guard_tails, (FIRST.rows[1], "src_s1")), Step(simplify)]
        return (*steps, Step(sink_guards), Step(flatten), Step(simplify))

    def _tiles(self, n: int, names: BlockLoops) -> list[Step]:
        """Return the rewrites that split the loops of stage ``n`` into loops over blocks and loops in a block."""
        conv = self.convs[n]
        (_, rows), (_, columns), (_, channels) = parse_tag(conv.dtag, 4).inner
        terms = _reduction_block(conv)
        loops = {
            "oc": (channels, names.blocks[0], names.inner[2]), "oh": (rows, names.blocks[1], names.inner[0]),
            "ow": (columns, names.columns, names.inner[1]), "ic": (terms, *names.reduction),
            "kh": (conv.k[0], f"{names.window[0]}.outer", names.window[0]),
            "kw": (conv.k[1], f"{names.window[1]}.outer", names.window[1]),
        }  # fmt: skip
        return [Step(tile, loop + suffix(n), *parts) for loop, parts in loops.items()]

    def _splits(self, names: BlockLoops, order: Sequence[str]) -> list[Step]:
        """Return the rewrites that split the loops over blocks, and bring those of a tile into their ``order``."""
        channels, rows = names.blocks
        return [
            Step(tile, channels, self.k_split, *names.channels), Step(tile, rows, self.h_split, *names.rows),
            Step(reorder, (names.channels[0], names.rows[0], *order, *names.inner)), Step(simplify),
        ]  # fmt: skip

    def _digits(self) -> dict[str, tuple[tuple[int, int], ...]]:
        """Return the blocks of each array, by its name in the kernel; the source has those of the results."""
        first, second = self.convs
        source = Layout.from_tag(first.dtag, first.src_shape)
        layouts = {
            "src": source, "wei_1": first.wei_layout, middle(0): first.dst_layout, "wei_2": second.wei_layout,
            "dst": second.dst_layout,
        }  # fmt: skip
        return {name: tuple((b.dim, b.size) for b in layout.blocks) for name, layout in layouts.items()}

    # -- the driver's face ------------------------------------------------------------------------------------------

    def naive(self) -> Kernel:
        """Return the naive nests of both convolutions, in the ``whole`` form with loops over whole blocks."""
        own = tuple(_over_blocks(st) if self.whole else st for st in map(statement, self.convs))
        return FusedStatements(self.stages, 0, own).naive()

    @property
    def preparing(self) -> Mapping[str, Sequence[Step]]:
        """No kernel runs before this one."""
        return {}

    @property
    def each_call(self) -> frozenset[str]:
        """No kernel runs before this one."""
        return frozenset()

    def finishing(self) -> Sequence[tuple[Kernel, Sequence[Step]]]:
        """Return nothing: no kernel runs after this one."""
        return []

    def symbol(self, kernel: str = "") -> str:
        """Return the symbol of the kernel."""
        return SYMBOL

    def threads(self, kernel: str = "") -> int:
        """Return 1: the thread that calls runs the kernel."""
        return 1


def _with_tags(problem: Problem, **tags: str) -> Problem:
    """Return ``problem`` with those of the layouts ``tags`` that it leaves open."""
    given: dict[str, Any] = {field: tag for field, tag in tags.items() if getattr(problem, field) == ANY}
    return replace(problem, **given)


def _over_blocks(st: Statement) -> Statement:
    """Return ``st`` with loops that compute all elements of the blocks of its result."""
    longer = in_whole_blocks(st)
    sizes = {str(x): n for x, n in zip(longer.c.coords, longer.c.layout.shape)}
    return replace(longer, dims=tuple(replace(d, size=sizes.get(d.name, d.size)) for d in st.dims))


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def _refuse(why: str) -> ConfigError:
    return ConfigError("blocked-chain", f"--k-split, --h-split: {why}")


def _check_stage(n: int, problem: Problem) -> None:
    """Raise ConfigError where stage ``n`` (from 1) is no convolution that the schedule serves."""
    if not isinstance(problem, Conv) or problem.rank != 2 or problem.has_groups:
        raise _refuse(f"stage {n} is {problem}; legal are convolutions of two spatial axes without groups")
    if any(pad > 0 for pad in (*problem.p, *problem.pr)):  # a back pad below zero is a rest that no tap reads
        raise _refuse(f"stage {n} has padding ({problem.descriptor()}); legal is a source that is padded already")
    if problem.depthwise is not None:
        raise _refuse(f"stage {n} is {problem}; legal are post-ops that are no convolution")


def _check_layouts(n: int, conv: Conv) -> None:
    """Raise ConfigError where stage ``n`` (from 1) has layouts of other blocks than TVM's, of any size."""
    for what, tag, order, inner in (
        ("result", conv.dtag, (0, 2, 3, 1), (2, 3, 1)), ("weights", conv.wtag, (0, 1, 2, 3), (1, 0, 1)),
    ):  # fmt: skip
        form = parse_tag(tag, 4)
        if form.order != order or tuple(dim for dim, _ in form.inner) != inner:
            legal = ACTIVATIONS if what == "result" else WEIGHTS
            raise _refuse(f"the {what} of stage {n} have the layout {tag}; legal is that of {legal}, of any sizes")
    (_, rows), (_, columns), (_, channels) = parse_tag(conv.dtag, 4).inner
    terms, (_, results) = _reduction_block(conv), parse_tag(conv.wtag, 4).inner[1]
    if (terms, results) != (channels, channels):
        raise _refuse(
            f"{conv.dtag} of stage {n} has blocks of {channels} channels, {conv.wtag} of {results} and {terms}; legal "
            "are the same"
        )
    sizes = {"oc": (conv.oc, channels), "ic": (conv.ic, terms)}
    if n == 1:
        sizes |= {"ih": (conv.i[0], rows), "iw": (conv.i[1], columns)}
    for name, (size, block) in sizes.items():
        if size % block:
            raise _refuse(f"{name} of stage {n} is {size}; legal are multiples of {block}")


def _is_sum(conv: Conv) -> bool:
    """Return whether the results of ``conv`` are its sums as they are."""
    finishes = (conv.post_ops, conv.bia_dt, conv.scales, conv.zero_points)
    return conv.dt[2] == conv.acc and not any(finishes)


def _channel_block(conv: Conv) -> int:
    """Return the channels of a block of the result."""
    return parse_tag(conv.dtag, 4).inner[2][1]


def _reduction_block(conv: Conv) -> int:
    """Return the source channels of a block of the weights."""
    (_, outer), _, (_, inner) = parse_tag(conv.wtag, 4).inner
    return outer * inner
