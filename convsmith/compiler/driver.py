"""From a problem to an artifact: naive nest, rewrites, LLVM text, object code."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from convsmith.codegen import llvm_bind
from convsmith.codegen.artifact import Argument, Artifact, Entry, host_launch, size_argument
from convsmith.codegen.llvm_text import module_text
from convsmith.compiler.arguments import argument_of, packing_note, zero_argument
from convsmith.compiler.facts import facts
from convsmith.ir.buffer import Buffer
from convsmith.ir.intern import interning
from convsmith.ir.stmt import Alloc, Kernel
from convsmith.ir.types import PTR
from convsmith.ir.walk import statements_of
from convsmith.layout.indirection import recipe, shape_of
from convsmith.machine.base import Machine
from convsmith.passes.manager import Instrument, Step, run_steps
from convsmith.plan.config import Config
from convsmith.plan.dynamic import TABLE, check_dynamic, dynamic_steps
from convsmith.plan.packing import packing_steps
from convsmith.plan.pointers import Pointers, indirect, pointers
from convsmith.plan.schedule import schedule
from convsmith.plan.scheduled import scheduled, summing_steps
from convsmith.plan.sums import bias_steps, sums_steps
from convsmith.problem.problem import Problem
from convsmith.statement.bias import bias_kernel
from convsmith.statement.naive import naive, parts_kernel
from convsmith.statement.offsets import sums_of
from convsmith.statement.statement import Statement
from convsmith.statement.views import statement


@dataclass(frozen=True)
class Lowered:
    """What comes out of the rewrites: the kernel, those around it, and LLVM's text of them and of packing.

    ``before`` and ``after`` run in each call, ``packs`` (and what makes further sums of theirs) when something is
    packed. ``scratch`` is the bytes of memory that a thread needs of its own.
    """

    kernel: Kernel
    packs: tuple[Kernel, ...]
    before: tuple[Kernel, ...]
    after: tuple[Kernel, ...]
    text: str
    scratch: int


def naive_kernel(problem: Problem, target: Machine, config: Config | None = None) -> tuple[Statement, Kernel]:
    """The statement of a problem, as a config has it scheduled, and its naive nest."""
    st = statement(problem, target) if config is None else scheduled(problem, config, target)
    return st, naive(problem, st)


def lower(
    problem: Problem, config: Config, target: Machine, instruments: Sequence[Instrument] = (), dynamic: bool = False
) -> Lowered:
    """Run all rewrites and print LLVM's text; raises ConfigError where the config makes no kernel.

    A ``dynamic`` kernel serves any sizes of images.
    """
    st, kernel = naive_kernel(problem, target, config)
    steps = dynamic_steps(check_dynamic(problem), config, target) if dynamic else schedule(st, config, target)
    kernel = run_steps(kernel, steps, instruments)
    kernels = {SYMBOL: (kernel, config.threads)}
    prepared = {pack.name: run_steps(pack, steps) for pack, steps in preparing(problem, st, config, target, kernel)}
    each_call = {s.result.name for s in sums_of(problem, st.whole) if s.each_call}
    kernels |= {f"{SYMBOL}_{k.name}": (k, config.threads if k.name in each_call else 1) for k in prepared.values()}
    after = []
    if config.split:
        after.append(run_steps(parts_kernel(problem, st), sums_steps(st, target)))
    if (bias := bias_kernel(problem)) is not None:
        after.append(run_steps(bias, bias_steps(problem, target)))
    kernels |= {f"{SYMBOL}_{k.name}": (k, 1) for k in after}
    inside = (s.buffer for s in statements_of(kernel.body) if isinstance(s, Alloc))
    private = list(dict.fromkeys(b for b in inside if b.scope == "cache"))
    *offsets, size = accumulate((-(-b.size * b.dtype.bytes // 64) * 64 for b in private), initial=0)
    scratch = {b: (offset, size) for b, offset in zip(private, offsets)}
    launched = {symbol: (k, host_launch(threads)) for symbol, (k, threads) in kernels.items()}
    text = module_text(launched, facts(target), scratch)
    packs = list(kernel.packs)
    before = []
    for k in kernel.before:
        if k.name in each_call:
            before.append(prepared[k.name])
        else:
            packs.append(k)
    return Lowered(kernel, tuple(packs), tuple(before), tuple(after), text, size)


def preparing(
    problem: Problem, st: Statement, config: Config, target: Machine, kernel: Kernel
) -> Iterator[tuple[Kernel, list[Step]]]:
    """What makes the kernel's arguments that are no arrays of the problem, naive, each with its rewrites."""
    for pack in kernel.packs:
        yield pack, packing_steps(pack, target)
    sums = {s.result.name: s for s in sums_of(problem, st.whole)}
    for k in kernel.before:
        one = sums[k.name]
        yield k, summing_steps(one, target, config.threads if one.each_call else 1)


SYMBOL = "convsmith"


def build_artifact(
    problem: Problem, config: Config, target: Machine, instruments: Sequence[Instrument] = (), dynamic: bool = False
) -> Artifact:
    """Compile a problem under a config for a target."""
    with llvm_bind.no_collection(), interning():
        return emit(problem, config, target, lower(problem, config, target, instruments, dynamic))


def emit(problem: Problem, config: Config, target: Machine, low: Lowered) -> Artifact:
    """Object code of what `lower` made of the problem, with its manifest.

    A kernel's parameter X is the problem's tensor X, and X_p what the packing kernel makes of it.
    """
    code = llvm_bind.object_code(low.text, target.triple, target.cpu, target.features)
    tensors = {tensor.name: argument_of(tensor) for tensor in problem.tensors}
    operands: dict[str, str] = {}
    for pack in low.packs:
        given = pack.params[0].name
        operands |= {b.name: operands.get(given, given) for b in pack.written}

    own = _pointer_arguments(problem, config, target, bool(low.kernel.sizes))

    def argument(b: Buffer) -> Argument:
        if b.name in tensors:
            return tensors[b.name]
        if b.name in own:
            return own[b.name]
        if b.name in operands:
            return Argument(b.name, "packed", b.dtype.name, (b.size,), "a", b.size, of=operands[b.name])
        return Argument(b.name, "shared", b.dtype.name, (b.size,), "a", b.size)

    def entry(k: Kernel, threads: int) -> Entry:
        sizes = (size_argument(v.name) for v in k.sizes)
        return Entry(f"{SYMBOL}_{k.name}", (*map(argument, k.params), *sizes), host_launch(threads))

    main = [argument(b) for b in low.kernel.params]
    if low.scratch:
        main.append(Argument("scratch", "scratch", "f32", (low.scratch // 4,), "a", low.scratch // 4))
    main += [size_argument(v.name) for v in low.kernel.sizes]
    entries = {k.name: entry(k, config.threads) for k in low.before}
    entries["main"] = Entry(SYMBOL, tuple(main), host_launch(config.threads))
    entries |= {k.name: entry(k, 1) for k in low.after}
    notes = {}
    for pack in low.packs:
        suffix = f":{pack.params[-1].name}" if len(low.packs) > 1 else ""
        entries[f"pack{suffix}"] = entry(pack, 1)
        notes[f"packing{suffix}"] = packing_note(pack)
    # Padding in memory stands for activations; what multiplies its zeros is the other factor.
    factor = "wei" if "in" in (t.role for t in problem.tensors if t.name == "wei") else "diff_dst"
    return Artifact(
        code=code, isa=target.isa, entries=entries, problem=str(problem), config=str(config), needs=target.needs,
        permissions=target.permissions, notes=notes,
        needs_finite=(factor,) if config.realise in ("pad_copy", "indirection") else (),
    )  # fmt: skip


def _pointer_arguments(problem: Problem, config: Config, target: Machine, dynamic: bool) -> dict[str, Argument]:
    """The table of pointers and the zero buffer, where A is read through them."""
    st = statement(problem, target)
    if not indirect(st, config) and not dynamic:
        return {}
    p = pointers(st, config.table)
    return pointer_arguments(problem, p, TABLE if dynamic else p.table.name, st.a.name)


def pointer_arguments(problem: Problem, p: Pointers, name: str, of: str) -> dict[str, Argument]:
    """A table of pointers into a tensor, called ``name``, and what stands for absent pixels."""
    made, size = recipe(p.window, p.form), math.prod(shape_of(p.window, p.form))
    table = Argument(name, "table", PTR.name, (size,), "a", size, of=of, recipe=made)
    return {name: table, p.zero.name: zero_argument(problem, p.zero, of)}
