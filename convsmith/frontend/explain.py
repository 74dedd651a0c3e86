"""A page of text about one kernel: its problem, its decisions, its costs, and the machine's limits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from convsmith.codegen.artifact import FINITE, Artifact
from convsmith.codegen.memory import KernelMemory
from convsmith.compiler.driver import lower
from convsmith.compiler.instruments import Dump, PassRecord, Recorder, dump_directory, dump_root, texts_of_code
from convsmith.compiler.launch import launch_of
from convsmith.compiler.ocloc import TOOL, uses_on_chip
from convsmith.compiler.rewritten import Lowered, private_buffers
from convsmith.compiler.service import faults, repro
from convsmith.diag.errors import ToolchainError, UsageError
from convsmith.diag.forking import import_lock
from convsmith.frontend.explain_device import device_lines, device_roofline, device_verdict
from convsmith.frontend.explain_fusion import fusion_lines
from convsmith.frontend.explain_memory import bytes_text, memory_lines
from convsmith.frontend.tables import TITLES, pixel_window
from convsmith.ir.buffer import Buffer
from convsmith.ir.stmt import Call, For, Kernel, Store
from convsmith.ir.walk import loops_of, statements_of
from convsmith.layout.indirection import POINTER_BYTES, shape_of
from convsmith.machine.base import Machine
from convsmith.machine.registry import host_targets
from convsmith.measure.roofline import Roofline, bytes_of_arrays, rate_unit, roofline
from convsmith.page.nest_view import planned_nest
from convsmith.passes.manager import Step
from convsmith.passes.share_storage import plan_storage, share_storage
from convsmith.problem.conv import Conv
from convsmith.problem.problem import Problem
from convsmith.problem.types import print_types
from convsmith.runtime.arrays import beyond_text
from convsmith.schedule.config import Config
from convsmith.schedule.copies import is_copied
from convsmith.schedule.plan import Plan
from convsmith.schedule.planned import without_limits
from convsmith.schedule.text import kernel_lines, statement_lines
from convsmith.statement.views import sums_type
from convsmith.tune.costs.expected import expected_terms
from convsmith.tune.costs.verdict import verdict
from convsmith.tune.records.recall import measured_row

if TYPE_CHECKING:
    from convsmith.frontend.inspection import Inspected

__all__ = ["explain", "explain_in", "reason"]

Line = tuple[str, str]
_INDENT = 14
_VERDICT = "verdict"


def explain(kernel: Inspected) -> str:
    """Return the page. Compiles the kernel again, and writes the files that the page names.

    The machine's ceilings are stored; a missing one is measured, which takes about 50 ms.
    """
    return _layout(_lines(kernel))


def _lines(kernel: Inspected) -> list[Line]:
    """Return the lines of the page; the first one is the verdict."""
    problem, config = kernel.problem, kernel.config
    if kernel.artifact is None:
        page = [(_VERDICT, "nothing bounds it: an array has no elements"), *_problem(problem)]
        page.append(("result", "an array has no elements: nothing is compiled or multiplied"))
        return page
    recorder, files, target = Recorder(), _DumpedFiles(problem, str(config)), kernel.target
    with faults(repro("explain", problem, str(config))), kernel.planned() as plan:
        low = lower(plan, [recorder, files])
        files.finish(texts_of_code(low.text, target))
        roof = _roof(kernel)
        page = [
            (_VERDICT, _verdict(kernel, low, roof)), *_problem(problem), *_sizes(kernel, low),
            ("config", str(config)),
            *_decisions(kernel, plan, low, recorder.records),
            *_work(problem, target), *_roofline(kernel, roof), *_machine_code(kernel.artifact, target),
            *_notes(kernel, plan, low),
        ]  # fmt: skip
    page.append(("files", files.text))
    return page


def explain_in(kernel: Inspected, file: str | Path) -> str:
    """Write the page of HTML to a file, and return the text."""
    with import_lock:
        from convsmith.page.document import check_page, write_page
        from convsmith.page.kernel_page import kernel_page

    check_page(file)
    if kernel.artifact is None:
        raise UsageError(
            f"html={file}: {kernel.problem} has no elements in its source or destination: nothing is compiled",
            code="nothing",
        )
    lines = _lines(kernel)
    text = _layout(lines)
    write_page(file, kernel_page(kernel, text, lines[0][1]))
    return text


def _problem(problem: Problem) -> list[Line]:
    lines = [("problem", str(problem))]
    for tensor in problem.tensors:
        layout = tensor.layout
        shape = " x ".join(map(str, layout.shape))
        physical = "" if layout.is_plain else f", array of {' x '.join(map(str, layout.physical_shape))}"
        role = {"in": "", "out": ", written", "inout": ", read and written"}[tensor.role]
        text = f"{tensor.name} {shape} {tensor.dtype} {layout}{physical}, {bytes_text(tensor.nbytes)}{role}"
        lines.append(("", text))
    if isinstance(problem, Conv) and any(back != front for front, back in zip(problem.p, problem.pr)):
        pads = ", ".join(f"{a} {f} + {b}" for a, f, b in zip(problem.axes, problem.p, problem.pr))
        lines.append(("", f"pads in front + at the back: {pads}"))
    return lines


def _sizes(kernel: Inspected, low: Lowered) -> Iterator[Line]:
    """Yield the requirements and the sizes of a call; no lines for a kernel of fixed sizes."""
    assert kernel.artifact is not None
    if kernel.sizes:
        yield "sizes", f"those of a call: {kernel.sizes}; each has a kernel, and this page is about that of the line"
    if low.kernel.sizes:
        pads = "; pads are arguments" if isinstance(kernel.problem, Conv) else ""
        yield "sizes", f"those of a call: {kernel.artifact.requirements}{pads}"
        yield "", f"the kernel is given {', '.join(map(str, low.kernel.sizes))}"
        yield "", "bytes, operations and bounds below are for the sizes of the line"


def _decisions(
    kernel: Inspected, plan: Plan, low: Lowered, records: Sequence[PassRecord]
) -> Iterator[Line]:  # fmt: skip
    """Yield the decisions of the plan, and facts about the code."""
    if plan.machine.device is not None and plan.given is None:
        assert kernel.artifact is not None
        yield from device_lines(plan, low, kernel.artifact)
        yield from _nest(low, records)
        yield from _code(kernel, low)
        return
    if plan.given is not None:
        yield from ((("rewrites" if n == 0 else ""), str(step)) for n, step in enumerate(plan.pipeline))
        yield from (*_nest(low, records), *_packing(low), *_storage(kernel, records), *_code(kernel, low))
        return
    yield from (*_statements(plan), *_nest(low, records), *_packing(low), *_fusion(kernel, plan, low))
    yield from (*_tables(kernel.problem), *_storage(kernel, records), *_code(kernel, low), *_model(kernel, low))


def _statements(plan: Plan) -> Iterator[Line]:
    """Yield the loops, instruction, registers and buffers of the main statement, or of all stages."""
    stages = [k for kernel in plan.program.kernels for k in plan.plans_of(kernel)]
    for kernel in stages or [plan.main]:
        if len(stages) > 1:
            yield from statement_lines(kernel)
        yield from kernel_lines(kernel)


def _nest(low: Lowered, records: Sequence[PassRecord]) -> Iterator[Line]:
    """Yield the nest whose loops are in their final order and not yet split into pieces."""
    yield "nest", ""
    for line in str(replace(planned_nest(records), packs=(), before=())).splitlines()[1:]:
        yield "", line[2:]


def _writing(pack: Kernel, packed: Buffer) -> list[For]:
    """Return the loops that write the packed operand, in the order of its dims."""
    loops = [x for x in loops_of(pack.body) if packed in _stored(x)]
    place = next(x.index for x in statements_of(pack.body) if isinstance(x, Store) and x.buffer is packed)
    return sorted(loops, key=lambda x: place.index(x.var) if x.var in place else 0)


def _packing(low: Lowered) -> Iterator[Line]:
    if not low.packs:
        yield "packing", "none: weights are read as they lie, and copied once into memory of their own"
    copies = {pack.name for pack in low.kernel.packs}
    for pack in low.packs:
        operand, packed = pack.params[0], pack.params[-1]
        order = ", ".join(f"{loop.var} {loop.hi - loop.lo}" for loop in _writing(pack, packed))
        text = f"{operand} in the order [{order}]" if pack.name in copies else f"sums, {packed}"
        yield "packing", f"{text}, {bytes_text(packed.size * packed.dtype.bits // 8)}"
        for sums in (b for b in pack.written if b is not packed):
            yield "", f"and sums, {sums}, {bytes_text(sums.size * sums.dtype.bits // 8)}"
    for kernel in (k for k in low.before if not private_buffers(k) and not k.packs):
        sums = kernel.params[-1]
        yield "each call", f"sums, {sums}, {bytes_text(sums.size * sums.dtype.bits // 8)}"


def _fusion(kernel: Inspected, plan: Plan, low: Lowered) -> Iterator[Line]:
    lines = fusion_lines(plan, low, kernel.target)
    yield from ((("fusion" if n == 0 else ""), line) for n, line in enumerate(lines))


def _stored(loop: For) -> set[Buffer]:
    return {s.buffer for s in statements_of(loop.body) if isinstance(s, Store)}


def _tables(problem: Problem) -> Iterator[Line]:
    """Return the bytes of the pointer table in each form that has a title, if the source has pixels."""
    if isinstance(problem, Conv):
        window = pixel_window(problem)
        sizes = {form: math.prod(shape_of(window, form)) * POINTER_BYTES for form in TITLES}
        yield "tables", "of pointers: " + "; ".join(f"{TITLES[form]}: {bytes_text(n)}" for form, n in sizes.items())


def _storage(kernel: Inspected, records: Sequence[PassRecord]) -> Iterator[Line]:
    """Yield the storage plan of a kernel with several private buffers: lifetimes, shared memory, the peak, and their
    place on a machine with special memory for them.
    """
    for before, record in pairwise(records):
        if record.run is share_storage and len((plan := plan_storage(before.kernel)).buffers) > 1:
            head, *others = [*plan.lines, *_place(kernel.target.place(kernel.config.threads * plan.after))]
            yield "storage", head
            yield from (("", text) for text in others)


def _place(place: str) -> list[str]:
    """Return the line about the memory of buffers; empty if the machine has no special memory."""
    return [f"these buffers lie {place}"] if place else []


def _code(kernel: Inspected, low: Lowered) -> Iterator[Line]:
    assert kernel.artifact is not None
    bodies = [low.kernel.body, *(f.body for f in low.kernel.functions)]
    calls = sum(isinstance(s, Call) for body in bodies for s in statements_of(body))
    yield "code", f"{len(kernel.artifact.code)} bytes, {len(low.kernel.functions)} functions called from {calls} places"
    yield from memory_lines(KernelMemory.of(kernel.artifact), low, kernel.target)


def _work(problem: Problem, target: Machine) -> Iterator[Line]:
    real, dense = problem.flops_real, problem.flops_dense
    types = f"products of {' and '.join(dict.fromkeys(problem.factors))}, sums in {sums_type(problem, target)}"
    yield "operations", f"{dense / 1e6:.3f} million counting taps that meet padding, {real / 1e6:.3f} without; {types}"
    nbytes = bytes_of_arrays(problem)
    yield "bytes", f"{bytes_text(nbytes)} of all arrays"
    yield "intensity", f"{real / max(nbytes, 1):.1f} operations a byte"


def _model(kernel: Inspected, low: Lowered) -> Iterator[Line]:
    """Yield the cycles that the cost model expects, by cause, and the measurement; no lines for sizes of a call."""
    if low.kernel.sizes:
        return
    problem, config = kernel.problem.canonical(), kernel.config
    assert isinstance(config, Config)
    terms = expected_terms(problem, config, kernel.target)
    total = sum(terms.values())
    if terms:
        shares = sorted(terms.items(), key=lambda term: -term[1])
        yield "model", f"{total:,.0f} cycles on one thread are expected:"
        yield "", ", ".join(f"{name} {cycles / total:.1%}" for name, cycles in shares)
    row = measured_row(problem, config)
    if row is not None:
        text = f"{row.seconds * 1e6:.2f} us, {row.ratio:.2f} of the first choice's time, in {row.rounds} samples"
        yield "measured", f"{text} on {row.date}"


def _roof(kernel: Inspected) -> Roofline | None:
    """Return the roofline on this machine; None if it does not run the kernel."""
    if kernel.target not in host_targets():
        return None
    return roofline(kernel.problem, kernel.target, kernel.config.threads)


def _verdict(kernel: Inspected, low: Lowered, roof: Roofline | None) -> str:
    """Return the bound of a compiled kernel, a recommendation, and its gain."""
    bound = f"bound by {roof.side} as a whole, by the roofline" if roof is not None else "the bound is not known"
    if not isinstance(kernel.config, Config):
        return f"{bound}: no gain is known, as no model estimates a given schedule; `convsmith bench` measures"
    if kernel.target.device is not None:
        launch = launch_of(low.kernel, 1, kernel.target)
        return device_verdict(kernel.problem, kernel.config, launch, kernel.target.device.units)
    sized = bool(kernel.sizes or low.kernel.sizes)
    where = "at the sizes of the line, " if sized else ""
    found = verdict(kernel.problem.canonical(), kernel.config, kernel.target, roof, sized)
    if found is not None:
        return f"{where}{found}"
    return f"{where}{bound}: no gain is known, as the model has no estimate of these stages; `convsmith tune` measures"


def _roofline(kernel: Inspected, roof: Roofline | None) -> Iterator[Line]:
    """Yield the bounds by the machine's stored ceilings."""
    config = kernel.config
    if kernel.target.device is not None:
        if not isinstance(config, Config):
            return
        yield from device_roofline(kernel.problem, config, kernel.target.device.units)
        return
    if roof is None:
        yield "roofline", f"not known: this machine does not run {config.target}"
        return
    unit = rate_unit(kernel.problem)
    rates = [f"{roof.read.rate:.1f} GB/s from {roof.level}"]
    if roof.types is not None and roof.peak is not None:
        rates.insert(0, f"{roof.peak.rate:.1f} {unit} in {print_types(roof.types)}")
    measured = [figure for figure in (roof.read, roof.peak) if figure is not None]
    threads = f"{config.threads} thread{'s' * (config.threads > 1)}"
    dates = " and ".join(sorted({figure.date for figure in measured}))
    yield "roofline", f"{config.target} on {threads}, measured {dates}: {', '.join(rates)}"
    if not all(figure.is_steady for figure in measured):
        yield "", "the machine was busy during the measurement: these rates are too low, and are not kept"
    yield "", f"bound by {roof.side}: at most {roof.bound:.1f} {unit}, at least {roof.seconds * 1e6:.2f} us"


def reason(plan: Plan, of_bound: float, side: str) -> str:
    """Return the bottleneck that a kernel's plan shows; the kernel reaches the fraction ``of_bound`` of the bound by
    ``side``.
    """
    main = plan.main
    nest, unit = main.nest, main.nest.unit
    facts = [f"{of_bound:.0%} of what {side} allow"]
    size = main.loops.extents[nest.lane.of]
    if size % unit.lanes:
        facts.append(f"{nest.lane.of} {size} in vectors of {unit.lanes}")
    registers = main.registers
    if registers is not None and registers.needed < registers.available * 3 // 4:
        facts.append(f"{registers.needed} of {registers.available} {registers.file}")
    copies = [b.name for k in plan.kernels if k.statement.when == "before" for b in k.buffers]
    if copies:
        facts.append(f"{', '.join(copies)} made in each call")
    if plan.main.config.realise == "pad_copy":
        facts.append("the source is copied into padded memory")
    return "; ".join(facts)


def _machine_code(artifact: Artifact, machine: Machine) -> Iterator[Line]:
    """Yield the resources of each entry that a compiler of ``machine`` reports; no lines for a CPU."""
    uses, maker = {x.symbol: artifact.notes.get(f"use of {x.symbol}") for x in artifact.entries.values()}, ""
    if machine.device is not None and machine.device.code == "spirv":
        maker = f"compiled by {TOOL} for {machine.device.chip}"
        try:
            uses = {**uses_on_chip(artifact, machine.device.chip)}
        except ToolchainError as error:
            yield "machine code", str(error)
    title = "machine code"
    for name, entry in artifact.entries.items():
        use = uses.get(entry.symbol)
        if use is not None:
            yield title, f"{name}: {use}, {entry.launch.shared} bytes of shared memory at the launch"
            title = ""
    if not title:
        yield "", maker or f"assembled by {artifact.notes['assembler']}"


def _notes(kernel: Inspected, plan: Plan, low: Lowered) -> Iterator[Line]:
    assert kernel.artifact is not None
    notes = []
    for tensor in kernel.problem.tensors:
        if tensor.layout.is_plain and tensor.holds in ("src", "dst"):
            notes.append(f"{tensor.name} with other strides than {tensor.layout}'s is copied at each call")
    if _copies(plan, low):
        notes.append("the source is copied into padded memory at each call")
    for name, limit in kernel.artifact.limits.items():
        if not isinstance(kernel.config, Config):
            notes.append(f"{name} with {beyond_text(limit)} run through the default kernel")
            continue
        other = without_limits(kernel.config, kernel.target)
        how = f"realise={other.realise}" if limit >= FINITE else f"instruction={other.instruction}"
        if kernel.config.has_transform:
            how = "accuracy=strict"
        notes.append(f"{name} with {beyond_text(limit)} run through another kernel ({how})")
    yield from ((("notes" if n == 0 else ""), note) for n, note in enumerate(notes))


def _copies(plan: Plan, low: Lowered) -> bool:
    return low.scratch > 0 and any(is_copied(k.statement, k.config) for k in plan.kernels)


class _DumpedFiles:
    """An instrument that writes the files of a kernel; `text` says where they are, or why there are none."""

    def __init__(self, problem: Problem, config: str) -> None:
        self.text = "none: there is no directory for them (CONVSMITH_CACHE, CONVSMITH_DUMP)"
        self._dump: Dump | None = None
        if (root := dump_root()) is not None:
            with self._noting():
                self._dump = Dump(dump_directory(root, problem, config))

    def after(self, number: int, step: Step | None, kernel: Kernel, seconds: float, changed: bool) -> None:
        with self._noting():
            if self._dump is not None:
                self._dump.after(number, step, kernel, seconds, changed)

    def finish(self, texts: Mapping[str, str]) -> None:
        """Write the list of passes, and the texts of the code by the names of their files."""
        with self._noting():
            if self._dump is not None:
                self._dump.finish(texts)
                names = ", ".join((*texts, "passes.txt"))
                self.text = f"{self._dump.directory}/: {names}, and the IR after every pass"

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Write no further file after one that cannot be written."""
        try:
            yield
        except UsageError as error:
            self._dump, self.text = None, f"none: {error.message}"


def _layout(lines: Sequence[Line]) -> str:
    return "\n".join(f"{head:{_INDENT}}{text}".rstrip() for head, text in lines)
