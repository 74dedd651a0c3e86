"""The verdict on a kernel: its bound, the change that saves most time, and how much, by the cost model alone.

The bound is the largest term. Each alternative is a problem, or a config, whose modelled time is compared with the
kernel's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from convsmith.diag.errors import ConvsmithError
from convsmith.diag.record import record
from convsmith.ir.intern import interning
from convsmith.machine.base import Machine
from convsmith.machine.registry import host_targets
from convsmith.machine.registry import target as known_target
from convsmith.measure.roofline import Roofline, roofline
from convsmith.problem.conv import Conv
from convsmith.problem.fusion import stages_of
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.tune.compile import choose
from convsmith.tune.costs.expected import expected_terms, model_of
from convsmith.tune.records.recall import measured_row

__all__ = ["MIN_GAIN", "KernelVerdict", "verdict"]

MIN_GAIN = 0.03
"""Least part of the modelled time that an alternative saves if it is reported."""
MIN_GAIN_CHANGED = 0.1
"""Least part of the modelled time that an alternative saves if it is reported although it does other work: in another
type, or with other channels.
"""
_BOUNDS = {
    "multiply-adds": "the multiply-adds", "products": "the products of fragments", "loads": "loads of operands",
    "loads of fragments": "loads of fragments", "latency": "the latency of multiply-adds",
    "lines": "lines from beyond the first-level cache", "write-back": "the write-back of results",
    "calls": "the calls of register tiles", "padded copy": "the copy into padded memory",
    "packing": "packing in each call", "transforms": "the transforms", "copies of channels": "copies of channels",
    "far memory": "loads from beyond the second-level cache",
}  # fmt: skip
"""Names of the model's terms in a sentence."""
_PRODUCTS = ("multiply-adds", "products")
"""Terms of the multiplications, which every kernel has; a better kernel may save the other terms."""


@record(frozen=True)
class KernelVerdict:
    """The ``bound`` of a kernel, its ``share`` of the modelled time, and the ``action`` that saves most.

    ``gain`` is the part of the time that the action saves; 0 where no alternative is known.
    """

    bound: str
    share: str
    action: str
    gain: float = 0.0

    def __str__(self) -> str:
        return f"bound by {self.bound} ({self.share}): {self.action}"


@record(frozen=True)
class _Alternative:
    """A problem and a target whose default config may be faster. The ``option`` that selects it, if there is one,
    and ``text`` say what to do; the gain follows them.
    """

    option: str
    text: str
    problem: Problem
    target: Machine
    is_other_work: bool = False
    dynamic: bool = False


def verdict(
    problem: Problem, config: Config, target: Machine, roof: Roofline | None = None, dynamic: bool = False
) -> KernelVerdict | None:  # fmt: skip
    """Return the verdict on the kernel of a canonical ``problem`` under ``config``; None if the model has no estimate.

    Stages of several statements count as if each ran alone. A ``dynamic`` kernel is judged at the sizes of ``problem``.
    If bytes from beyond the caches of a core take longer than the products, by ``roof``, they are the bound.
    """
    with interning():
        terms = _terms(problem, config, target)
        total = sum(terms.values())
        if not total:
            return None
        if roof is not None and roof.side == "the bytes" and roof.level in ("L3", "DRAM"):
            return _of_bytes(problem, config, target, roof)
        (name, stage), cycles = max(terms.items(), key=lambda term: term[1])
        bound = _BOUNDS.get(name, name) + ("" if stage is None else f" of stage {stage}")
        share = f"{cycles / total:.0%} of the modelled time"
        others = list(_alternatives(problem, config, target, dynamic))
        gains = [(1 - _relative(x, problem, total, config.threads), x) for x in others]
    worth = [(gain, x) for gain, x in gains if gain >= (MIN_GAIN_CHANGED if x.is_other_work else MIN_GAIN)]
    if worth:
        gain, best = max(worth, key=lambda item: (not item[1].is_other_work, item[0]))
        return KernelVerdict(bound, share, f"{best.option}{best.text} {gain:.0%} less by the model", gain)
    work = sum(cycles for (cause, _), cycles in terms.items() if cause in _PRODUCTS)
    tried = ", ".join(x.option for _, x in gains if x.option)
    known = f"no gain by the model from {tried}" if tried else "the model knows nothing faster"
    way = "another config" if dynamic else "a config that `convsmith tune` finds"
    action = f"{known}; {way} saves at most {1 - work / total:.0%}"
    return KernelVerdict(bound, share, action)


def _terms(problem: Problem, config: Config, target: Machine) -> dict[tuple[str, int | None], float]:
    """Return the modelled cycles by cause, and by stage where there are several; empty where there is no estimate."""
    stages = stages_of(problem)
    if stages is None:
        found = expected_terms(problem, config, target) if config.consumer is None else {}
        return {(name, None): cycles for name, cycles in found.items()}
    terms: dict[tuple[str, int | None], float] = {}
    for n, (stage, own) in enumerate(zip(stages.problems, config.stages)):
        try:
            found = expected_terms(stage.canonical(), own.changed(consumer=None, compute_at="", halo="keep"), target)
        except ConvsmithError:  # a stage within another one has loops of that one
            return {}
        terms |= {(name, n): cycles for name, cycles in found.items()}
    return terms


def _relative(other: _Alternative, problem: Problem, total: float, threads: int) -> float:
    """Return the time of an alternative relative to the ``total`` of the kernel, for each operation of the result."""
    try:
        config = choose(other.problem, other.target, threads, other.dynamic)
        cycles = sum(_terms(other.problem, config, other.target).values())
    except ConvsmithError:
        return 1.0
    work = max(other.problem.flops_dense, 1) / max(problem.flops_dense, 1) if other.is_other_work else 1.0
    return cycles / total / work if cycles else 1.0


def _alternatives(problem: Problem, config: Config, target: Machine, dynamic: bool) -> Iterator[_Alternative]:
    """Yield the alternatives: the default config, fixed sizes, other options, another level, and work that suits the
    machine. Other options than fixed sizes leave a ``dynamic`` kernel dynamic.
    """
    if measured_row(problem, config) is None and choose(problem, target, config.threads, dynamic) != config:
        yield _Alternative("--config", " left out takes", problem, target, dynamic=dynamic)
    if dynamic:
        yield _Alternative("fixed sizes", " (no dynamic=) take", problem, target)
    for other in _of_options(problem, config, target):
        yield replace(other, dynamic=dynamic)


def _of_options(problem: Problem, config: Config, target: Machine) -> Iterator[_Alternative]:
    """Yield the problem under other options, and work that suits the machine."""
    if not isinstance(problem, Conv):
        return
    for tag, meaning in (("axb", "channels last"), ("abx", "channels first")):
        other = _changed(problem, stag=tag, dtag=tag)
        if other is not None and other != problem:
            yield _Alternative(f"--layout={tag}", f" ({meaning}) takes", other, target)
    if problem.accuracy == "strict" and (other := _changed(problem, accuracy="relaxed")) is not None:
        yield _Alternative("--accuracy=relaxed", " takes", other, target)
    if target in host_targets() and (best := known_target(None, problem.types)) != target:
        yield _Alternative(f"--target={best.name}", " takes", problem, best)
    if set(problem.dt) == {"f32"} and (other := _changed(problem, dt=("bf16",) * 3)) is not None:
        yield _Alternative("--dt=bf16", ", where its precision suffices, takes", other, target, is_other_work=True)
    yield from _fuller_lanes(problem, config, target)


def _fuller_lanes(problem: Conv, config: Config, target: Machine) -> Iterator[_Alternative]:
    """Yield the problem of one statement whose channels along the lanes fill all vectors, where they do not."""
    if config.consumer is not None:
        return
    model, loops = model_of(problem, config, target)
    is_depthwise = problem.ic == problem.oc == problem.g
    fields: tuple[str, ...] = ("g", "ic", "oc") if is_depthwise else loops.dims[config.lane]
    kind = "batch" if is_depthwise else "n"
    if loops.kinds[config.lane] != kind or not (is_depthwise or (problem.g == 1 and len(fields) == 1)):
        return
    size, lanes = getattr(problem, fields[0]), model.unit.lanes
    if not size % lanes:
        return
    full = -(-size // lanes) * lanes
    if (other := _changed(problem, **dict.fromkeys(fields, full))) is not None:
        text = f"{fields[0]}={size} leaves lanes of its vectors of {lanes} empty; each of {full} channels would take"
        yield _Alternative("", text, other, target, is_other_work=True)


def _changed(problem: Conv, **fields: object) -> Conv | None:
    """Return the canonical problem with other fields, or None if they are not legal for it."""
    try:
        return replace(problem, **fields).canonical()  # type: ignore[arg-type]
    except ConvsmithError:
        return None


def _of_bytes(problem: Problem, config: Config, target: Machine, roof: Roofline) -> KernelVerdict:
    """Return the verdict on a kernel that the roofline's bytes bound."""
    share = f"{roof.nbytes / max(roof.flops, 1):.2g} bytes an operation"
    bound, alone = f"the bytes from {roof.level}", "only fewer bytes help: a chain with its neighbours, `A -> B`, saves"
    most = max(t.nbytes for t in problem.tensors if t.holds != "wei") / roof.nbytes
    other = _changed(problem, dt=("bf16",) * 3) if isinstance(problem, Conv) and set(problem.dt) == {"f32"} else None
    if other is not None:
        gain = 1 - roofline(other, target, config.threads).seconds / roof.seconds
        if gain >= max(most, MIN_GAIN_CHANGED):
            text = f"--dt=bf16, where its precision suffices, takes {gain:.0%} less by the roofline"
            return KernelVerdict(bound, share, text, gain)
    return KernelVerdict(bound, share, f"{alone} at most {most:.0%}", most)
