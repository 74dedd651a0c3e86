"""The text of a plan: one line for each decision."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from convsmith.schedule.kernel_plan import KernelPlan
from convsmith.schedule.loops import Loop
from convsmith.schedule.plan import Plan

Line = tuple[str, str]

_WHEN = {
    "packing": "while packing",
    "before": "in each call, first",
    "loop": "in a loop of the main one",
    "main": "in each call",
    "after": "in each call, last",
}


def plan_text(plan: Plan) -> str:
    """Return the plan as text: its config, then for each statement its loops, instruction, registers and pipeline."""
    lines = [("config", str(plan.config))]
    if plan.requirements:
        lines.append(("sizes", f"those of a call: {plan.requirements}"))
    for kernel in plan.kernels:
        lines += [*statement_lines(kernel), *kernel_lines(kernel), *_pipeline(kernel)]
    return "\n".join(f"{head:14}{text}".rstrip() for head, text in lines)


def statement_lines(kernel: KernelPlan) -> Iterator[Line]:
    """Yield the statement of a kernel: its name, its operands, and when it runs."""
    st = kernel.statement
    product = " * ".join(v.name for v in st.factors)
    over = ", ".join(f"{d.name} {d.size}" for d in st.of("k"))
    yield "statement", f"{st.name}, {_WHEN[st.when]}: {st.c.name} from the sums of {product} over {over} in {st.acc}"


def kernel_lines(kernel: KernelPlan) -> Iterator[Line]:
    """Yield the loops by their place around or within the register tile, the instruction, registers and buffers."""
    nest, symbolic = kernel.nest, kernel.loops.symbolic

    def text(loops: Iterable[Loop]) -> str:
        items = (f"{x.name} {'given at the call' if x.of in symbolic else x.extent}" for x in loops)
        return ", ".join(items) or "none"

    yield "loops", f"around the register tile: {text(nest.around)}"
    yield "", f"reduction: {text(x for x in nest.reduce if x not in nest.unrolled)}"
    if nest.rows:
        yield "", f"register tile (unrolled), of fragments: {text((*nest.pixels, *nest.vectors))}"
        yield "", f"an instruction runs: {text((*nest.rows, *nest.terms, nest.lane))}"
    else:
        tile = (*nest.pixels, *nest.vectors, nest.lane, *nest.terms)
        yield "", f"register tile (unrolled): {text((*tile, *(x for x in nest.reduce if x in nest.unrolled)))}"
    unit, st = nest.unit, kernel.statement
    if unit.name:
        rows = f" in each of {unit.rows} rows" if unit.rows > 1 else ""
        yield "instruction", f"{unit.name}: {unit.lanes} sums of {unit.terms} products{rows}"
    else:
        verb = "multiply-add" if len(st.factors) > 1 else "add"
        yield "instruction", f"{verb} of {unit.lanes} elements of {st.acc}"
    registers = kernel.registers
    yield "registers", f"{registers.needed} of {registers.available} {registers.file}, {registers.text}"
    for n, b in enumerate(kernel.buffers):
        size = f", {b.bytes} bytes" if b.elements else ""
        size += f" in the order [{', '.join(b.order)}]" if b.order else ""
        yield ("buffers" if n == 0 else ""), f"{b.name}: {b.dtype}, {b.scope}, {b.lifetime}{size}"


def _pipeline(kernel: KernelPlan) -> Iterator[Line]:
    yield "pipeline", ", ".join(step.name for step in kernel.pipeline)
