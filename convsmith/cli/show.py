"""`convsmith show`: the IR of one kernel at any stage, its LLVM text or its assembly."""

from __future__ import annotations

import click

from convsmith.cli.output import note
from convsmith.cli.problems import build, choice_options, problem_options, read_one
from convsmith.diag.errors import UsageError

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
def show(
    descriptor: str, threads: int | None, isa: str | None, config: str | None, layout: str | None, after: str | None,
    every: bool, llvm: bool, asm: bool, **options: str | bool | None,
) -> None:  # fmt: skip
    """Print a kernel: its IR as it goes to LLVM, or as one of the options says."""
    if sum((after is not None, every, llvm, asm)) > 1:
        raise UsageError("--after, --all, --llvm and --asm exclude each other; legal is one of them", code="bad-option")
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
