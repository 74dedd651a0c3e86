"""`convsmith show`: the IR of one kernel at any stage, its LLVM text, its assembly or code, or its pointer tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

from convsmith.cli.models import ModelInputs, node_options, one_problem
from convsmith.cli.output import note
from convsmith.cli.problems import ProblemCommand, build, check_choices, choice_options, problem_options
from convsmith.diag.errors import UsageError
from convsmith.diag.settings import settings
from convsmith.frontend.annotated_nest import annotated_nest
from convsmith.frontend.inspection import KernelTexts
from convsmith.frontend.micro_kernel_texts import MicroKernelTexts
from convsmith.frontend.tables import indirection_page
from convsmith.layout.tags import ANY
from convsmith.machine.registry import target as known_target
from convsmith.problem.chain import Chain
from convsmith.problem.descriptor import STAGES
from convsmith.problem.micro_kernel import MicroKernel, is_micro_kernel
from convsmith.problem.problem import Problem

__all__ = ["show"]

_TEXTS: dict[str, tuple[str, Callable[[KernelTexts], str]]] = {
    "llvm": (";", KernelTexts.llvm), "asm": ("#", KernelTexts.asm), "ptx": ("//", KernelTexts.ptx),
    "sass": ("//", KernelTexts.sass), "spirv": (";", KernelTexts.spirv), "wgsl": ("//", KernelTexts.wgsl),
}  # fmt: skip
"""Texts behind the IR by option: the mark of a comment, and the function from a kernel to the text."""

@click.command(cls=ProblemCommand, epilog="Example: convsmith show mb1ic8ih6oc8kh3 --target opencl --spirv")
@click.argument("source", metavar="[DESCRIPTOR|FILE|MODEL.onnx|-]", required=False)
@click.argument("node", required=False)
@choice_options
@problem_options
@node_options
@click.option("--after", metavar="PASS", help="The IR after a pass: name, name:run or number; `naive` is before all.")
@click.option("--all", "every", is_flag=True, help="The IR after every pass that changed it.")
@click.option("--llvm", is_flag=True, help="LLVM's text.")
@click.option("--asm", is_flag=True, help="Assembly, of every target that LLVM compiles for.")
@click.option("--ptx", is_flag=True, help="PTX, of targets sm_* such as --target sm_80.")
@click.option("--sass", is_flag=True, help="Machine code of NVIDIA's GPUs, disassembled, of targets sm_*.")
@click.option("--spirv", is_flag=True, help="SPIR-V, of --target opencl.")
@click.option("--wgsl", is_flag=True, help="WGSL, of --target webgpu.")
@click.option("--indirection", is_flag=True, help="The table of pointers to the source, in every form.")
@click.option("--chain", is_flag=True, help="Two convolutions in blocks, in TVM's schedule, as annotated TIR.")
@click.option("--k-split", type=int, default=1, metavar="N", help="Blocks of channels in a tile of that schedule.")
@click.option("--h-split", type=int, default=1, metavar="N", help="Blocks of rows in a tile of that schedule.")
@click.option("--asynchronous", is_flag=True, help="Copies of that schedule wait for no cache that another one uses.")
@click.option("--kernel-tile", type=click.IntRange(0), metavar="N", help="Pointers of an output in that table.")
def show(
    source: str | None, node: str | None, threads: int | None, target: str | None, config: str | None, layout: str,
    inputs: ModelInputs, torch: str | None, after: str | None, every: bool, llvm: bool, asm: bool, ptx: bool,
    sass: bool, spirv: bool, wgsl: bool, indirection: bool, kernel_tile: int | None, chain: bool, k_split: int,
    h_split: int, asynchronous: bool, **options: str | bool | None,
) -> None:  # fmt: skip
    """Print a kernel: its IR as it goes to LLVM, or as one of the options says. The first line is a comment.

    Kernels for GPUs are shown on any machine. For a model, NODE names one of its convolutions. The name of a
    micro-kernel, such as f32_dwconv_up2x9, takes the place of a descriptor.
    """
    texts = [text for text, asked in zip(_TEXTS, (llvm, asm, ptx, sass, spirv, wgsl), strict=True) if asked]
    if sum((after is not None, every, *map(bool, texts), indirection, chain)) > 1:
        raise UsageError(
            f"--after, --all, {', '.join(f'--{text}' for text in _TEXTS)}, --indirection and --chain exclude each "
            "other; legal is one of them",
            code="bad-option",
        )
    if kernel_tile is not None and not indirection:
        raise UsageError("--kernel-tile is legal with --indirection only", code="bad-option")
    check_choices(target, config, runs=False)
    if source is not None and is_micro_kernel(source):
        given = (node, threads, config, torch, *options.values())
        if any((*given, inputs, indirection, chain)):
            raise UsageError(
                f"{source} is the name of a micro-kernel, which encodes every decision; legal beside it are --target, "
                f"--after, --all, {', '.join(f'--{text}' for text in _TEXTS)}",
                code="bad-option",
            )
        m = MicroKernel.parse(source)
        _print_texts(MicroKernelTexts(m, known_target(target or settings.target)), m.name, texts, after, every)
        return
    if not chain and (asynchronous or (k_split, h_split) != (1, 1)):
        raise UsageError("--k-split, --h-split and --asynchronous are legal with --chain only", code="bad-option")
    listed = one_problem(source, node, options, ANY if chain else layout, inputs, torch, "show")
    if chain:
        note(_nest(listed.problems[0], target, (k_split, h_split), asynchronous))
        return
    heading = listed.heading(threads, config)
    if indirection:
        note(f"# {heading}\n{indirection_page(listed.problems[0], kernel_tile)}")
        return
    _print_texts(build(listed.problems[0], threads, target, config), heading, texts, after, every)


def _print_texts(kernel: KernelTexts, heading: str, texts: Sequence[str], after: str | None, every: bool) -> None:
    """Print the first of the ``texts``, or the IR after every pass, or after the one that ``after`` names."""
    if texts:
        comment, text_of = _TEXTS[texts[0]]
        note(f"{comment} {heading}\n{text_of(kernel)}")
    elif every:
        note(f"# {heading}")
        for record in kernel.passes():
            changed = "" if record.changed else "  (unchanged)"
            note(f"# {record.number:03} {record.step}, {record.seconds * 1e3:.3f} ms{changed}")
            if record.changed:
                note(str(record.kernel))
    else:
        note(f"# {heading}\n{kernel.ir(after)}")


def _nest(problem: Problem, target: str | None, splits: tuple[int, int], asynchronous: bool) -> str:
    """Return the annotated nest of a chain; layouts that it leaves open are TVM's."""
    if not isinstance(problem, Chain):
        raise UsageError(f"--chain: {problem} is one problem; legal are two, joined by {STAGES}", code="bad-option")
    return annotated_nest(problem, known_target(target or settings.target), *splits, asynchronous)
