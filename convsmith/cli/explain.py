"""`convsmith explain`: a page about one kernel."""

from __future__ import annotations

import click

from convsmith.cli.output import note
from convsmith.cli.problems import (
    Listed,
    ProblemCommand,
    build,
    check_choices,
    choice_options,
    problem_options,
    read_problems,
    with_layout,
)
from convsmith.diag.errors import UsageError
from convsmith.onnx.models import node_problem

__all__ = ["explain"]


@click.command(cls=ProblemCommand, epilog="Example: convsmith explain mb1ic64ih56oc64kh3ph1 --html kernel.html")
@click.argument("source", metavar="DESCRIPTOR|FILE|MODEL.onnx|-")
@click.argument("node", required=False)
@choice_options
@problem_options
@click.option("--html", metavar="FILE", help="Write a page to look at, with passes and assembly, for a browser.")
def explain(
    source: str, node: str | None, threads: int | None, target: str | None, config: str | None, layout: str,
    html: str | None, **options: str | bool | None,
) -> None:  # fmt: skip
    """Problem, config, plan, packing, registers, operations, bytes, roofline, and the files that were generated.

    Of a model, NODE is the name of one of its convolutions.
    """
    check_choices(target, config, runs=False)
    if source.endswith(".onnx"):
        listed = _of_model(source, node, layout)
    elif node is not None:
        raise UsageError(f"explain takes {node!r} with a model only, as in explain MODEL.onnx {node}", code="node")
    else:
        listed = read_problems(source, options, layout, "explain")
    page = build(listed.problems[0], threads, target, config).explain(html)
    note(f"{listed.heading(threads, config)}\n\n{page}")


def _of_model(source: str, node: str | None, layout: str) -> Listed:
    """Return the problem of a model's node."""
    problem = node_problem(source, "" if node is None else node)
    return Listed((with_layout(problem, layout),), layout, False)
