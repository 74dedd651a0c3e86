"""The pipeline of a Winograd program: the pipeline of the product, with the rewrites of the transforms around it."""

from __future__ import annotations

from collections import Counter

from convsmith.diag.errors import ConfigError
from convsmith.ir.instruction import Instruction
from convsmith.ir.intern import nodes
from convsmith.ir.types import dtype
from convsmith.machine.base import Machine
from convsmith.machine.transpositions import square_transposition, tile_shape
from convsmith.passes.flatten import flatten
from convsmith.passes.manager import Step
from convsmith.passes.narrow_index import narrow_index
from convsmith.passes.outline import outline
from convsmith.passes.partition import partition
from convsmith.passes.scale import scale
from convsmith.passes.share_guards import share_guards
from convsmith.passes.simplify import simplify
from convsmith.passes.strength import strength_reduce
from convsmith.passes.transpose import transpose
from convsmith.passes.unroll import unroll
from convsmith.passes.vectorise import vectorise
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.kernel import scheduled
from convsmith.schedule.kernel_plan import KernelPlan
from convsmith.schedule.lower import pick_transpositions
from convsmith.schedule.pipeline import pipeline_of
from convsmith.schedule.schedule import Schedule
from convsmith.statement.channel_copies import ChannelCopy, has_vectors_of_channels
from convsmith.statement.filtered_axis import ERROR
from convsmith.statement.statement import Statement
from convsmith.statement.views import statement
from convsmith.statement.winograd import WEIGHTS, WORD, Winograd, winograd

PIECES = 4
"""Maximum number of pieces of a transform's loop over tiles: the pieces at the borders of an image, and the interior.
"""
UNITS = 16
"""Maximum number of units of a vector that transform groups of channels at once."""


def winograd_of(problem: Problem, config: Config, machine: Machine, dynamic: bool) -> Winograd:
    """Return the transform of ``problem`` that ``config`` describes; ConfigError if it describes none."""
    if (
        config.realise != "peel"
        or config.offsets != "each"
        or config.tiles_at("split")
        or config.phases
        or config.consumer is not None
    ):
        raise ConfigError("winograd", f"{config}: legal beside --winograd= is the schedule of its product")
    if problem.accuracy == "strict":
        raise ConfigError("accuracy", f"{config}: --accuracy=strict permits no transforms; legal with it is relaxed")
    made = _in_blocks(problem, config, machine, dynamic)
    if problem.accuracy == "relaxed" and made.error > ERROR:
        raise ConfigError(
            "accuracy", f"{config}: the error is {made.error:.1f} times that of the direct kernel; --accuracy=relaxed "
            f"admits {ERROR:g}, legal is --accuracy=any",
        )  # fmt: skip
    if config.staged("pack") not in ((), (WEIGHTS,)):
        words = f"--pack={','.join(config.staged('pack'))}"
        raise ConfigError("winograd", f"{words}: legal beside --winograd= is {WEIGHTS}, or nothing")
    return made


def _in_blocks(problem: Problem, config: Config, machine: Machine, dynamic: bool) -> Winograd:
    """Return the transform in the blocks of ``config``. The intern table caches the transform without blocks, which
    many configs share, and the one with blocks, which the choice of a config and the plan share.
    """
    known, key = nodes(), (winograd, problem, config.tiles_at("winograd"), id(machine), dynamic)
    made: Winograd | None = known.get((*key, config.tiles_at("block")))
    if made is None:
        whole: Winograd | None = known.get(key)
        if whole is None:
            direct = statement(problem, machine, dynamic)
            blocks = Counter(b.dim for b in direct.c.layout.blocks)
            if any(blocks[dim] > 1 for dim in range(2, len(direct.c.coords))):
                raise ConfigError(
                    "winograd", f"{config}: the pixels of {direct.c.name} are in blocks, and a transform stores the "
                    "pixels of a tile with one distance between them; legal are blocks of channels",
                )  # fmt: skip
            sums = machine.width(dtype(direct.acc))
            wide = machine.lanes(dtype(WORD).bits)
            is_wide = direct.acc == "s32" and all(has_vectors_of_channels(x, wide) for x in (direct.a, direct.c))
            factors = wide if is_wide else sums
            spread = UNITS if machine.vectors.scalable else 1
            whole = known[key] = winograd(
                problem, direct, dict(config.tiles_at("winograd")), (factors, sums), machine.l1.line, spread
            )
        made = known[*key, config.tiles_at("block")] = whole.in_blocks(dict(config.tiles_at("block")))
    return made


def scheduled_statement(problem: Problem, config: Config, machine: Machine) -> Statement:
    """Return the statement whose loops ``config`` names: the product of a transform, or the statement of ``problem``.
    """
    if config.tiles_at("winograd"):
        return winograd_of(problem, config, machine, dynamic=False).product
    return scheduled(problem, config, machine)


def product_config(config: Config) -> Config:
    """Return the config of the product alone; threads share blocks."""
    return config.changed(winograd=(), block=(), threads=1)


def block_steps(made: Winograd, product: KernelPlan, config: Config, machine: Machine) -> tuple[Step, ...]:
    """Return the rewrites of the kernel of all nests of a block; threads share blocks."""
    shared = made.stepping if config.threads > 1 else ()
    return pipeline_of([product], product.ordering, shared, _Transforms(made, machine))


class _Transforms:
    """The transforms around a product, as `Surrounding` of its pipeline."""

    def __init__(self, made: Winograd, machine: Machine) -> None:
        self.made, self.machine = made, machine

    def cut(self, s: Schedule) -> None:
        """Split loops over groups of channels, and separate the tiles in the interior of an image."""
        for channels, tiles in self.made.transforms:
            s.run(partition, channels, PIECES)
            s.run(partition, tiles, PIECES, (), True)

    def transpose(self, s: Schedule) -> None:
        """Transpose tiles of pixels and channels that a copy makes contiguous."""
        made, machine = self.made, self.machine
        rows = [(copy, row) for copy in made.copies if (row := transposition(copy, machine)) is not None]
        for copy, row in rows:
            s.run(transpose, copy.loops, tile_shape(row)[:2])
        if rows:
            pick_transpositions(s, rows[0][0].width, machine)

    def vectorise(self, s: Schedule) -> None:
        """Vectorise the channels in the transforms of the source and of the result, and test each border of an image
        once for all rows of a tile.
        """
        for end in ("s", "d"):
            for name in self.made.lanes(end):
                s.run(vectorise, name, self.made.width(end), False)
        s.run(share_guards)

    def scale(self, s: Schedule) -> None:
        """Make vectors of channels scalable."""
        if self.machine.vectors.scalable:
            s.run(scale, tuple(channels[0] for channels, _ in self.made.transforms), self.machine.instructions)

    def outline(self, s: Schedule) -> None:
        """Outline the transforms of all channels of a tile into functions, which all tiles of an image share; a copy of
        a group of channels belongs to the function.

        LLVM would keep the constants of a transform in registers during the product.
        """
        s.run(outline, tuple(n for channels, _ in self.made.transforms for n in channels))


def transposition(copy: ChannelCopy, machine: Machine) -> Instruction | None:
    """Return the row of ``machine`` that transposes tiles of pixels and channels; None if elements are copied one by
    one.
    """
    row = square_transposition(machine.transpositions, copy.buffer.dtype.name, copy.width)
    return row if copy.row > 1 else None


def weights_steps(made: Winograd) -> tuple[Step, ...]:
    """Return the rewrites of the kernel that transforms weights."""
    vectors = (Step(vectorise, name, made.width("g"), False) for name in made.lanes("g"))
    return (
        Step(partition, ("g.o",), PIECES), Step(flatten), Step(simplify), *vectors,
        Step(unroll), Step(simplify, False), Step(narrow_index), Step(strength_reduce),
    )  # fmt: skip
