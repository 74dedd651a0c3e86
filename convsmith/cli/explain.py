"""`convsmith explain`: a page about one kernel."""

from __future__ import annotations

import click

from convsmith.cli.output import note
from convsmith.cli.problems import ProblemCommand, build, check_choices, choice_options, problem_options, read_problems

__all__ = ["explain"]


@click.command(cls=ProblemCommand)
@click.argument("target", metavar="DESCRIPTOR|FILE|-")
@choice_options
@problem_options
def explain(
    target: str, threads: int | None, isa: str | None, config: str | None, layout: str, **options: str | bool | None
) -> None:
    """Problem, config, plan, packing, registers, operations, bytes, roofline, and the files that were generated."""
    check_choices(isa, config, runs=False)
    listed = read_problems(target, options, layout, "explain")
    page = build(listed.problems[0], threads, isa, config).explain()
    note(f"{listed.heading(threads, config)}\n\n{page}")
