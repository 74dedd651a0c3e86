"""The page about one kernel: limits, passes, nest, registers, packing, assembly, and bytes through the caches."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from convsmith.compiler.driver import lower
from convsmith.compiler.instruments import Recorder, texts_of_code
from convsmith.compiler.rewritten import Lowered
from convsmith.diag.record import record
from convsmith.ir.stmt import Kernel
from convsmith.ir.text import listing
from convsmith.machine.base import Machine
from convsmith.machine.registry import host_targets
from convsmith.measure.calls import BindableKernel, aligned_inputs, bound_call
from convsmith.measure.roofline import bytes_of_arrays, rate_unit, roofline
from convsmith.measure.timing import measure
from convsmith.measure.verification import real_arrays
from convsmith.page.assembly_view import AssemblyLine, Routine, hot_loop, routines
from convsmith.page.document import render
from convsmith.page.executions import bytes_asked, executed
from convsmith.page.figures import ABOVE, EFFECTIVE, Dot, roofline_figure
from convsmith.page.nest_view import LEVELS, levels_of, nest_lines, planned_nest
from convsmith.page.packing_grid import packed_grids
from convsmith.page.pass_timeline import timeline
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.given import GivenSchedule
from convsmith.schedule.kernel_plan import KernelPlan
from convsmith.schedule.plan import Plan
from convsmith.tune.costs.expected import model_of, with_lanes

__all__ = ["Explained", "kernel_page"]

ROUNDS = 5
"""Number of samples of the kernel's time."""


class Explained(Protocol):
    """A kernel that can be compiled again."""

    problem: Problem
    config: Config | GivenSchedule
    target: Machine

    def planned(self) -> AbstractContextManager[Plan]:
        """Return a context with every decision worked out, in a table with its IR nodes."""
        ...


class Moved(NamedTuple):
    """Bytes that a call transfers from one memory to the next."""

    way: str
    nbytes: int
    source: str


class RegisterGroup(NamedTuple):
    """The number of registers that serve one use."""

    registers: int
    use: str


@record(frozen=True)
class Timing:
    """The measured time of a call, in microseconds, its rate, and the picture of the roofline."""

    microseconds: float | None
    rate: float | None
    unit: str
    bound: str
    picture: str


def kernel_page(kernel: Explained, text: str, verdict: str) -> str:
    """Return the page of HTML, with the ``text`` of `explain`, preceded by its ``verdict``.

    Compiles the kernel again, and times it if this machine runs it, which takes about 50 ms.
    """
    recorder = Recorder()
    with kernel.planned() as plan:
        low = lower(plan, [recorder], debug=True)
        main = plan.main if plan.given is None else None
        *_, code = texts_of_code(low.text, kernel.target).values()
        values: dict[str, Any] = {
            "above": ABOVE if kernel.config.has_transform else "", "verdict": verdict,
            "title": str(kernel.problem), "text": text, "config": str(kernel.config),
            "target": kernel.target.name, "passes": timeline(recorder.records),
            "nest": list(nest_lines(planned_nest(recorder.records), levels_of(main) if main else {})),
            "levels": LEVELS, "registers": _registers(main) if main else [], "grids": packed_grids(kernel.problem, low),
            "moved": _moved(kernel, low, main), "timing": _timing(kernel),
            **_assembly(low.kernel, code),
        }  # fmt: skip
    return render("kernel.html", values)


def _registers(main: KernelPlan) -> list[RegisterGroup]:
    """Return the registers of the tile by use, and the free registers; empty if an assembler allocates them."""
    registers = main.registers
    if registers is None:
        return []
    parts = registers.text.rpartition(": ")[2].split(" + ")
    groups = [RegisterGroup(int(count), use) for count, _, use in (x.partition(" ") for x in parts) if count.isdigit()]
    free = registers.available - registers.needed
    return [*groups, *([RegisterGroup(free, "free")] if free > 0 else [])]


def _moved(kernel: Explained, low: Lowered, main: KernelPlan | None) -> list[Moved]:
    """Return the bytes through each cache, as the kernel's statements request them and as the model estimates them."""
    moved = [Moved("registers and L1", bytes_asked(low.kernel), "loads and stores of the main kernel, counted")]
    config, problem = kernel.config, kernel.problem.canonical()
    is_known = main is not None and main.registers is not None and not low.kernel.sizes
    if is_known and isinstance(config, Config) and config.consumer is None and not config.tiles_at("winograd"):
        model, loops = model_of(problem, config, kernel.target)
        near, far = model.traffic.moved(loops, with_lanes(config, model, loops)).means
        moved += [
            Moved("L1 and L2", round(near), "expected by the cost model"),
            Moved("L2 and beyond", round(far), "expected by the cost model"),
        ]
    return [*moved, Moved("all arrays, once", bytes_of_arrays(problem), "the least that memory moves")]


def _timing(kernel: Explained) -> Timing:
    problem, config, unit = kernel.problem, kernel.config, rate_unit(kernel.problem)
    if not isinstance(kernel, BindableKernel):
        return Timing(None, None, unit, "each call has sizes, or arrays, of its own", "")
    if kernel.target not in host_targets():
        return Timing(None, None, unit, f"this machine does not run {config.target}", "")
    roof = roofline(problem, kernel.target, config.threads)
    call, _ = bound_call(problem, kernel, aligned_inputs(problem, real_arrays(problem)))
    times = measure(call, problem.flops_real, rounds=ROUNDS, threads=config.threads)
    rate = problem.flops_real / times.seconds.median * 1e-9
    name = f"this kernel, {EFFECTIVE}" if config.has_transform else "this kernel"
    picture = roofline_figure(roof, {name: [Dot(roof.intensity, rate)]}, unit)
    bound = f"{roof.bound:.1f} {unit} and {roof.seconds * 1e6:.2f} us by {roof.side}"
    return Timing(times.seconds.median * 1e6, rate, unit, bound, picture)


def _assembly(kernel: Kernel, assembly: str) -> Mapping[str, Any]:
    """Return the routines, the hot loop, and the lines of IR by number."""
    lines, times = listing(kernel), dict[int, int]()
    for leaf in executed(kernel):
        number = lines.numbers.get(leaf.statement, 0)
        times[number] = times.get(number, 0) + leaf.times
    found = routines(assembly)
    hot = hot_loop(found, times)
    return {
        "routines": found or [Routine("", tuple(AssemblyLine(x) for x in assembly.splitlines()))],
        "hot": [hot[0].lines[n] for n in hot[1]] if hot else [], "hot_name": hot[0].name if hot else "",
        "ir": dict(enumerate((x.strip() for x in lines), 1)),
    }  # fmt: skip
