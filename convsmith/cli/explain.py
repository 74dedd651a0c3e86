"""`convsmith explain`: a page about one kernel."""

from __future__ import annotations

import click

from convsmith.cli.models import ModelInputs, node_options, one_problem
from convsmith.cli.output import note
from convsmith.cli.problems import ProblemCommand, build, check_choices, choice_options, problem_options
from convsmith.page.inner_loop import ALL, estimates

__all__ = ["explain"]


@click.command(cls=ProblemCommand, epilog="Example: convsmith explain mb1ic64ih56oc64kh3ph1 --html kernel.html")
@click.argument("source", metavar="[DESCRIPTOR|FILE|MODEL.onnx|-]", required=False)
@click.argument("node", required=False)
@choice_options
@problem_options
@node_options
@click.option("--html", metavar="FILE", help="Write a page to look at, with passes and assembly, for a browser.")
@click.option(
    "--mca", metavar="[CPU,...]", is_flag=False, flag_value=ALL,
    help="Estimate the cycles of inner loops on CPUs of LLVM's by llvm-mca; without CPUs, on those it describes.",
)  # fmt: skip
def explain(
    source: str | None, node: str | None, threads: int | None, target: str | None, config: str | None, layout: str,
    inputs: ModelInputs, torch: str | None, html: str | None, mca: str | None, **options: str | bool | None,
) -> None:  # fmt: skip
    """Explain a kernel: its bound, an alternative with its gain; then problem, config, plan, packing, registers,
    operations, bytes, roofline, and the files that were generated.

    For a model, NODE names one of its convolutions.
    """
    check_choices(target, config, runs=False)
    listed = one_problem(source, node, options, layout, inputs, torch, "explain")
    kernel = build(listed.problems[0], threads, target, config)
    verdict, _, page = kernel.explain(html).partition("\n")
    note(f"{verdict}\n{listed.heading(threads, config)}\n\n{page}")
    if mca is not None:
        note(estimates(kernel.asm(), kernel.target, mca))
