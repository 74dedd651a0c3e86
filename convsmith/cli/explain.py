"""`convsmith explain`: a page about one kernel."""

from __future__ import annotations

import click

from convsmith.cli.output import note
from convsmith.cli.problems import ProblemCommand, build, check_choices, choice_options, problem_options, read_problems

__all__ = ["explain"]


@click.command(cls=ProblemCommand, epilog="Example: convsmith explain mb1ic64ih56oc64kh3ph1 --html kernel.html")
@click.argument("source", metavar="DESCRIPTOR|FILE|-")
@choice_options
@problem_options
@click.option("--html", metavar="FILE", help="Write a page to look at, with passes and assembly, for a browser.")
def explain(
    source: str, threads: int | None, target: str | None, config: str | None, layout: str, html: str | None,
    **options: str | bool | None,
) -> None:  # fmt: skip
    """Problem, config, plan, packing, registers, operations, bytes, roofline, and the files that were generated."""
    check_choices(target, config, runs=False)
    listed = read_problems(source, options, layout, "explain")
    page = build(listed.problems[0], threads, target, config).explain(html)
    note(f"{listed.heading(threads, config)}\n\n{page}")
