"""The text of a plan: one line for each decision."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from convsmith.passes.manager import Step
from convsmith.schedule.config import Config
from convsmith.schedule.group_fragments import why_no_fragments
from convsmith.schedule.hardware_choice import why_not_hardware
from convsmith.schedule.kernel_plan import KernelPlan
from convsmith.schedule.loops import Loop
from convsmith.schedule.plan import Plan
from convsmith.statement.offsets import summed
from convsmith.statement.views import statement

Line = tuple[str, str]

_WHEN = {
    "packing": "while packing",
    "before": "in each call, first",
    "loop": "in a loop of the main one",
    "main": "in each call",
    "after": "in each call, last",
}


def plan_text(plan: Plan) -> str:
    """Return the plan as text: its config, then for each statement its loops, instruction, registers and pipeline, or,
    for a user's schedule, its rewrites.
    """
    if plan.given is not None:
        steps = (f"  {n:3} {step}" for n, step in enumerate(plan.pipeline, 1))
        return "\n".join([str(plan.problem), str(plan.config), *steps])
    lines = [("config", str(plan.config))]
    if plan.requirements:
        lines.append(("sizes", f"those of a call: {plan.requirements}"))
    return "\n".join(f"{head:14}{text}".rstrip() for head, text in (*lines, *decisions(plan)))


def decisions(plan: Plan) -> Iterator[Line]:
    """Yield the decisions of the plan of each kernel, and the reasons why a copy engine or instructions on fragments
    that a device has are not used.
    """
    for kernel in plan.kernels:
        yield from (*statement_lines(kernel), *kernel_lines(kernel), *_pipeline(kernel.pipeline))
    if plan.joint:
        yield from _pipeline(plan.pipeline)
    if plan.machine.device is None or plan.program.kernels or not isinstance(plan.config, Config):
        return
    if plan.config.realise != "hardware":
        st, rounds = statement(plan.problem, plan.machine), plan.problem.accuracy == "any"
        sums = summed(plan.problem, st, in_call=True) if st.shifted else None
        for why in why_not_hardware(sums or st, plan.machine, rounds):
            yield "copy engine", f"not used: {why}"
    for why in why_no_fragments(plan.main.statement, plan.config, plan.machine):
        yield "fragments", f"not used: {why}"


def statement_lines(kernel: KernelPlan) -> Iterator[Line]:
    """Yield the statement of a kernel: its name, its operands, and when it runs."""
    st = kernel.statement
    product = " * ".join(v.name for v in st.factors)
    over = ", ".join(f"{d.name} {d.size}" for d in st.of("k"))
    yield "statement", f"{st.name}, {_WHEN[st.when]}: {st.c.name} from the sums of {product} over {over} in {st.acc}"


def kernel_lines(kernel: KernelPlan) -> Iterator[Line]:
    """Yield the loops by their level, the instruction, registers and buffers."""
    nest, symbolic = kernel.nest, kernel.loops.symbolic
    unit, st = nest.unit, kernel.statement

    def text(loops: Iterable[Loop]) -> str:
        items = (f"{x.name} {'given at the call' if x.of in symbolic else x.extent}" for x in loops)
        return ", ".join(items) or "none"

    if kernel.machine.device is not None:
        yield "loops", f"groups: {text(nest.grid)}"
        others = f" of {nest.warp_size} lanes, and {nest.copiers} threads that start copies" if nest.copiers else ""
        teams = f", in each of {nest.teams} teams that take turns" if nest.teams > 1 else ""
        yield "", f"threads: {text(nest.threads)}{teams}{others}"
        yield "", f"sums of each: {text(nest.accumulators)}"
        yield "", f"steps of the reduction: {text(nest.steps)}"
        yield "", f"terms of a step: {text(nest.terms)}"
    else:
        yield "loops", f"around the register tile: {text(nest.around)}"
        yield "", f"reduction: {text(nest.steps)}"
        if nest.rows:
            yield "", f"register tile (unrolled), of fragments: {text((*nest.pixels, *nest.vectors))}"
            yield "", f"an instruction runs: {text((*nest.rows, *nest.terms, nest.lane))}"
        else:
            tile = (*nest.pixels, *nest.vectors, nest.lane, *nest.terms)
            yield "", f"register tile (unrolled): {text((*tile, *nest.at('register', k=True)))}"
    if nest.warp is not None:
        row = nest.warp.row
        shape = " x ".join(map(str, (*row.result.shape, row.terms)))
        tiles = " x ".join(map(str, nest.warp.fragments))
        yield "instruction", f"{row.name}: {shape}, {tiles} fragments of sums in a warp of {nest.warp.lanes} lanes"
    elif unit.name:
        rows = f" in each of {unit.rows} rows" if unit.rows > 1 else ""
        yield "instruction", f"{unit.name}: {unit.lanes} sums of {unit.terms} products{rows}"
    else:
        verb = "multiply-add" if len(st.factors) > 1 else "add"
        yield "instruction", f"{verb} of {unit.lanes} element{'s' if unit.lanes > 1 else ''} of {st.acc}"
    if (registers := kernel.registers) is not None:
        yield "registers", f"{registers.needed} of {registers.available} {registers.file}, {registers.text}"
    for n, b in enumerate(kernel.buffers):
        size = f", {b.bytes} bytes" if b.elements else ""
        size += f" in the order [{', '.join(b.order)}]" if b.order else ""
        yield ("buffers" if n == 0 else ""), f"{b.name}: {b.dtype}, {b.scope}, {b.lifetime}{size}"
    yield from kernel.notes


def _pipeline(steps: Sequence[Step]) -> Iterator[Line]:
    if steps:
        yield "pipeline", ", ".join(step.name for step in steps)
