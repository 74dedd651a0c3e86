"""`convsmith show`: the IR of one kernel at any stage, its LLVM text, its assembly, or its tables of pointers."""

from __future__ import annotations

import click

from convsmith.cli.output import note
from convsmith.cli.problems import build, choice_options, problem_options, read_one
from convsmith.diag.errors import UsageError
from convsmith.frontend.tables import indirection_page

__all__ = ["show"]


@click.command()
@click.argument("descriptor")
@choice_options
@click.option("--layout", help="Source and destination, where the line leaves them open; plain order by default.")
@problem_options
@click.option("--after", metavar="PASS", help="The IR after a pass, by name or number; `naive` is before all.")
@click.option("--all", "every", is_flag=True, help="The IR after every pass that changed it.")
@click.option("--llvm", is_flag=True, help="LLVM's text.")
@click.option("--asm", is_flag=True, help="Assembly.")
@click.option("--indirection", is_flag=True, help="The table of pointers to the source, in every form.")
@click.option("--kernel-tile", type=click.IntRange(0), metavar="N", help="Pointers of an output in that table.")
def show(
    descriptor: str, threads: int | None, isa: str | None, config: str | None, layout: str | None, after: str | None,
    every: bool, llvm: bool, asm: bool, indirection: bool, kernel_tile: int | None, **options: str | bool | None,
) -> None:  # fmt: skip
    """Print a kernel: its IR as it goes to LLVM, or as one of the options says."""
    if sum((after is not None, every, llvm, asm, indirection)) > 1:
        raise UsageError(
            "--after, --all, --llvm, --asm and --indirection exclude each other; legal is one of them",
            code="bad-option",
        )
    if kernel_tile is not None and not indirection:
        raise UsageError("--kernel-tile is for --indirection", code="bad-option")
    if indirection:
        note(indirection_page(read_one(descriptor, options, layout), kernel_tile))
        return
    kernel = build(read_one(descriptor, options, layout), threads, isa, config)
    if llvm:
        note(kernel.llvm())
    elif asm:
        note(kernel.asm())
    elif every:
        for record in kernel.passes():
            changed = "" if record.changed else "  (unchanged)"
            note(f"# {record.number:03} {record.step}, {record.seconds * 1e3:.3f} ms{changed}")
            if record.changed:
                note(str(record.kernel))
    else:
        note(kernel.ir(after))
