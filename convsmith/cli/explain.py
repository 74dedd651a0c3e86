"""`convsmith explain`: a page about one kernel."""

from __future__ import annotations

import click

from convsmith.cli.models import ModelInputs, node_options, one_problem
from convsmith.cli.output import note
from convsmith.cli.problems import ProblemCommand, build, check_choices, choice_options, problem_options
from convsmith.frontend.kernel import CompiledKernel
from convsmith.page.inner_loop import estimated_cycles, inner_loop

__all__ = ["explain"]


@click.command(cls=ProblemCommand, epilog="Example: convsmith explain mb1ic64ih56oc64kh3ph1 --html kernel.html")
@click.argument("source", metavar="[DESCRIPTOR|FILE|MODEL.onnx|-]", required=False)
@click.argument("node", required=False)
@choice_options
@problem_options
@node_options
@click.option("--html", metavar="FILE", help="Write a page to look at, with passes and assembly, for a browser.")
@click.option("--mca", metavar="CPU", help="Estimate the inner loop's cycles on a CPU of LLVM's, by llvm-mca.")
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
        note(_inner_loop(kernel, mca))


def _inner_loop(kernel: CompiledKernel, cpu: str) -> str:
    """Return the line about the inner loop of a kernel on a CPU."""
    loop = inner_loop(kernel.asm(), kernel.target)
    if loop is None:
        return "inner loop    none: the products of a tile are no loop"
    cycles = estimated_cycles(loop, kernel.target, cpu)
    return f"inner loop    {loop}; {cycles:.1f} cycles on {cpu}, as llvm-mca estimates"
