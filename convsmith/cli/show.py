"""`convsmith show`: the IR of one kernel at any stage, its LLVM text, its assembly, or its pointer tables."""

from __future__ import annotations

import click

from convsmith.cli.output import note
from convsmith.cli.problems import (
    Options,
    ProblemCommand,
    build,
    check_choices,
    choice_options,
    problem_options,
    read_problems,
)
from convsmith.diag.errors import UsageError
from convsmith.diag.settings import settings
from convsmith.frontend.annotated_nest import annotated_nest
from convsmith.frontend.tables import indirection_page
from convsmith.layout.tags import ANY
from convsmith.machine.registry import target as known_target
from convsmith.plan.blocked_chain import BlockedChain
from convsmith.problem.chain import Chain
from convsmith.problem.descriptor import STAGES

__all__ = ["show"]


@click.command(cls=ProblemCommand)
@click.argument("source", metavar="DESCRIPTOR|FILE|-")
@choice_options
@problem_options
@click.option("--after", metavar="PASS", help="The IR after a pass, by name or number; `naive` is before all.")
@click.option("--all", "every", is_flag=True, help="The IR after every pass that changed it.")
@click.option("--llvm", is_flag=True, help="LLVM's text.")
@click.option("--asm", is_flag=True, help="Assembly, such as PTX.")
@click.option("--sass", is_flag=True, help="Machine code of NVIDIA's GPUs, disassembled.")
@click.option("--indirection", is_flag=True, help="The table of pointers to the source, in every form.")
@click.option("--chain", is_flag=True, help="Two convolutions in blocks, in TVM's schedule, as annotated TIR.")
@click.option("--k-split", type=int, default=1, metavar="N", help="Blocks of channels in a tile of that schedule.")
@click.option("--h-split", type=int, default=1, metavar="N", help="Blocks of rows in a tile of that schedule.")
@click.option("--asynchronous", is_flag=True, help="Copies of that schedule wait for no cache that another one uses.")
@click.option("--kernel-tile", type=click.IntRange(0), metavar="N", help="Pointers of an output in that table.")
def show(
    source: str, threads: int | None, target: str | None, config: str | None, layout: str, after: str | None,
    every: bool, llvm: bool, asm: bool, sass: bool, indirection: bool, kernel_tile: int | None, chain: bool,
    k_split: int, h_split: int, asynchronous: bool, **options: str | bool | None,
) -> None:  # fmt: skip
    """Print a kernel: its IR as it goes to LLVM, or as one of the options says. The first line is a comment."""
    if sum((after is not None, every, llvm, asm, sass, indirection, chain)) > 1:
        raise UsageError(
            "--after, --all, --llvm, --asm, --sass, --indirection and --chain exclude each other; legal is one of them",
            code="bad-option",
        )
    if kernel_tile is not None and not indirection:
        raise UsageError("--kernel-tile is legal with --indirection only", code="bad-option")
    check_choices(target, config, runs=False)
    if chain:
        note(_nest(source, options, target, (k_split, h_split), asynchronous))
        return
    if asynchronous or (k_split, h_split) != (1, 1):
        raise UsageError("--k-split, --h-split and --asynchronous are legal with --chain only", code="bad-option")
    listed = read_problems(source, options, layout, "show")
    heading = listed.heading(threads, config)
    if indirection:
        note(f"# {heading}\n{indirection_page(listed.problems[0], kernel_tile)}")
        return
    kernel = build(listed.problems[0], threads, target, config)
    if llvm:
        note(f"; {heading}\n{kernel.llvm()}")
    elif asm:
        note(f"# {heading}\n{kernel.asm()}")
    elif sass:
        note(f"# {heading}\n{kernel.sass()}")
    elif every:
        note(f"# {heading}")
        for record in kernel.passes():
            changed = "" if record.changed else "  (unchanged)"
            note(f"# {record.number:03} {record.step}, {record.seconds * 1e3:.3f} ms{changed}")
            if record.changed:
                note(str(record.kernel))
    else:
        note(f"# {heading}\n{kernel.ir(after)}")


def _nest(source: str, options: Options, target: str | None, splits: tuple[int, int], asynchronous: bool) -> str:
    """Return the annotated nest of the chain that ``source`` describes; layouts that it leaves open are TVM's."""
    (problem,) = read_problems(source, options, ANY, "show").problems
    if not isinstance(problem, Chain):
        raise UsageError(f"--chain: {problem} is one problem; legal are two, joined by {STAGES}", code="bad-option")
    plan = BlockedChain(problem, known_target(target or settings.target), *splits, asynchronous=asynchronous)
    return annotated_nest(plan)
