"""`convsmith explain`: a page on one kernel."""

from __future__ import annotations

import click

from convsmith.cli.output import note
from convsmith.cli.problems import build, choice_options, problem_options, read_one

__all__ = ["explain"]


@click.command()
@click.argument("descriptor")
@choice_options
@click.option("--layout", help="Source and destination, where the line leaves them open; plain order by default.")
@problem_options
def explain(
    descriptor: str, threads: int | None, isa: str | None, config: str | None, layout: str | None,
    **options: str | bool | None,
) -> None:  # fmt: skip
    """Problem, config, plan, packing, registers, operations, bytes, roofline, and the files that were generated."""
    note(build(read_one(descriptor, options, layout), threads, isa, config).explain())
