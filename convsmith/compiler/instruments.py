"""Instruments of the pass manager: record, dump, verify, and interpret-and-compare.

Each instrument sees the kernel after every pass, starting with the naive nest, and does not change it. `CONVSMITH_DUMP`
and `CONVSMITH_CHECK` select the instruments of a compilation (`convsmith.compiler.service`).
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from convsmith.codegen import llvm_bind
from convsmith.compiler.cache import disk_cache
from convsmith.compiler.interpreted import InterpretedCall, known_arguments
from convsmith.diag.errors import InternalError, UsageError
from convsmith.diag.settings import settings
from convsmith.ir.stages import NAIVE
from convsmith.ir.stmt import Kernel
from convsmith.ir.verify import verify
from convsmith.ir.walk import walk
from convsmith.layout.layout import Layout
from convsmith.layout.reorder import strided, to_layout
from convsmith.machine.base import Machine
from convsmith.passes.contracts import stage_after
from convsmith.passes.manager import Step
from convsmith.problem.data import random_arrays, unwritten
from convsmith.problem.problem import Problem
from convsmith.problem.reference import is_exact, reference, steps_type
from convsmith.schedule.config import Config
from convsmith.schedule.given import GivenSchedule

__all__ = [
    "Dump", "Interpret", "PassRecord", "Recorder", "Verify", "dump_directory", "dump_root", "node_count",
    "remove_dumps", "texts_of_code",
]  # fmt: skip

Array = np.ndarray[Any, Any]

INTERPRETED_FLOPS = 100_000
"""Floating-point operations above which a problem is not interpreted: each operation takes microseconds, after every
pass.
"""

_TOLERANCE = 1e-5
"""Relative difference allowed, besides one unit in the last place, between correct transcendental functions."""

_DUMPS = "dump"


class PassRecord(NamedTuple):
    """The result of one pass: `name` is the pass ("naive" for the initial kernel), `step` includes its arguments.

    `run` is the function of the pass; None for the initial kernel.
    """

    number: int
    name: str
    step: str
    seconds: float
    changed: bool
    kernel: Kernel
    run: Callable[..., Kernel] | None = None


class Recorder:
    """Keeps the kernel after every pass in `records`."""

    def __init__(self) -> None:
        self.records: list[PassRecord] = []

    def after(self, number: int, step: Step | None, kernel: Kernel, seconds: float, changed: bool) -> None:
        run = None if step is None else step.run
        self.records.append(PassRecord(number, _name(step), str(step or "naive"), seconds, changed, kernel, run))


class Dump:
    """Writes `NNN_pass.ir` for every pass that changed the kernel, and `passes.txt` with the list of all passes.

    A file starts with comments (the pass with its arguments, its time, the number of nodes); the rest is parsable IR.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._list: list[str] = []
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for old in directory.glob("[0-9][0-9][0-9]_*.ir"):
                old.unlink()
        except OSError as error:
            raise _unwritable(directory, error) from None

    def after(self, number: int, step: Step | None, kernel: Kernel, seconds: float, changed: bool) -> None:
        nodes = node_count(kernel)
        unchanged = "" if changed else "  (unchanged)"
        self._list.append(f"{number:03} {seconds * 1e3:9.3f} ms {nodes:8} nodes  {step or 'naive'}{unchanged}")
        if changed:
            head = f"# {number:03} {step or 'naive'}\n# {seconds * 1e3:.3f} ms, {nodes} nodes\n"
            self.write(f"{number:03}_{_name(step)}.ir", head + str(kernel))

    def finish(self, texts: Mapping[str, str]) -> None:
        """Write the list of passes, and the texts of the code by the names of their files."""
        self.write("passes.txt", "\n".join(self._list) + "\n")
        for name, text in texts.items():
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        """Write one file of the directory. UsageError if that fails."""
        try:
            (self.directory / name).write_text(text, encoding="utf-8")
        except OSError as error:
            raise _unwritable(self.directory, error) from None


def texts_of_code(text: str, machine: Machine) -> dict[str, str]:
    """Return the texts of a module for ``machine`` by the names of their files: the LLVM text and the assembly, or the
    WGSL, for which LLVM has no code generator.
    """
    if machine.device is not None and machine.device.code == "wgsl":
        return {"kernel.wgsl": text}
    assembly = llvm_bind.assembly(text, machine.triple, machine.cpu, machine.features)
    return {"kernel.ll": text, "kernel.s": assembly}


class Verify:
    """Verifies after every pass that the kernel satisfies what the pass ensures. InternalError names the pass."""

    def __init__(self) -> None:
        self._stage = NAIVE

    def after(self, number: int, step: Step | None, kernel: Kernel, seconds: float, changed: bool) -> None:
        known = self._stage
        if step is not None:
            self._stage = stage_after(known, step.run, step.args)
        if changed or step is None or self._stage is not known:
            _blame(number, step, lambda: verify(kernel, self._stage))


class Interpret:
    """Interprets the kernel after every pass on small integers, and compares the result with the numpy reference.

    Sums of small integers are exact in any order, so every element must be equal; after a transcendental post-op it
    must agree within a tolerance. InternalError names the pass and the first element that differs.
    """

    def __init__(self, problem: Problem, target: Machine, seed: int = 0) -> None:
        arrays = random_arrays(problem, seed)
        truths = reference(problem, arrays, steps_type(problem))
        self._memory = {t.name: _memory(arrays[t.name], t.layout) for t in problem.inputs}
        self._known = known_arguments(problem)
        self._outputs: dict[str, tuple[Array, Array]] = {}
        for tensor in problem.outputs:
            # Padding elements are not compared: a kernel writes zeros to them only once its loops are rounded up.
            owned = _memory(np.ones(tensor.shape, np.bool_), tensor.layout)
            truth = _memory(truths[tensor.name], tensor.layout)
            self._outputs[tensor.name] = truth, owned
            if tensor.role == "out":
                self._memory[tensor.name] = unwritten(truth.shape, truth.dtype)
        self._exact = is_exact(problem)
        self._instructions = {name: row.kernel for name, row in target.rows.items()}

    @staticmethod
    def suits(problem: Problem, config: Config | GivenSchedule) -> bool:
        """Return whether the problem is small enough, and one kernel computes its whole result, with exact sums."""
        is_alone = isinstance(config, GivenSchedule) or not (config.tiles_at("split") or config.has_transform)
        return is_alone and problem.flops_dense <= INTERPRETED_FLOPS

    def after(self, number: int, step: Step | None, kernel: Kernel, seconds: float, changed: bool) -> None:
        if changed:
            _blame(number, step, lambda: self._check(kernel))

    def _check(self, kernel: Kernel) -> None:
        memory = {name: array.copy() for name, array in self._memory.items()}
        call = InterpretedCall(self._known, memory, self._instructions)
        for each in (*kernel.packs, *kernel.before, kernel):
            call.run(each)
        for name, (truth, owned) in self._outputs.items():
            wrong = np.flatnonzero(self._differ(memory[name], truth) & owned)
            if wrong.size:
                at = int(wrong[0])
                raise InternalError(
                    f"{wrong.size} of {int(owned.sum())} elements of {name} differ from the reference; the first, at "
                    f"offset {at} of memory, is {memory[name][at]} where {truth[at]} is right",
                    code="interpret",
                )

    def _differ(self, computed: Array, truth: Array) -> Array:
        differ: Array = (computed != truth) & ~((computed != computed) & (truth != truth))
        if self._exact or not differ.any():
            return differ
        step = np.ones(()) if truth.dtype.kind in "iu" else np.spacing(np.abs(truth)).astype(np.float64)
        a, b = computed.astype(np.float64), truth.astype(np.float64)
        return differ & ~(np.abs(a - b) <= step + _TOLERANCE * np.maximum(np.abs(b), 1))


def node_count(kernel: Kernel) -> int:
    """Return the number of nodes of the body and the functions as a tree; a shared expression counts once per
    occurrence.
    """
    return sum(1 for body in (kernel.body, *(f.body for f in kernel.functions)) for _ in walk(body))


def dump_directory(root: Path, problem: Problem, config: str) -> Path:
    """Return the directory under `root` for one kernel, with a readable and unique name."""
    plain = problem.canonical()
    digest = hashlib.sha256(f"{plain} {config}".encode()).hexdigest()
    return root / f"{plain.descriptor()[:120]}_{digest[:8]}"


def dump_root() -> Path | None:
    """Return the directory of dumps: CONVSMITH_DUMP, else a folder of the cache; None if neither is usable."""
    if settings.dump is not None:
        return settings.dump
    cache = disk_cache()
    return None if cache is None or cache.info().problem else cache.directory / _DUMPS


def remove_dumps(directory: Path) -> None:
    """Remove the folder of dumps from the cache `directory`."""
    shutil.rmtree(directory / _DUMPS, ignore_errors=True)


def _name(step: Step | None) -> str:
    return step.name if step else "naive"


def _memory(x: Array, layout: Layout) -> Array:
    """Return the memory of a logical array in `layout`, zero between its elements."""
    physical = to_layout(x, layout)
    strides = layout.strides if layout.is_plain else tuple(block.stride for block in layout.blocks)
    memory = np.zeros(layout.size, x.dtype)
    strided(memory, physical.shape, strides)[...] = physical
    return memory


def _blame(number: int, step: Step | None, check: Callable[[], None]) -> None:
    try:
        check()
    except InternalError as error:
        raise InternalError(f"after pass {number:03} {step or 'naive'}: {error.message}", code=error.code) from None


def _unwritable(directory: Path, error: OSError) -> UsageError:
    return UsageError(
        f"CONVSMITH_DUMP: {directory} cannot be written: {error.strerror}; legal is a directory that can be, or empty",
        code="bad-setting",
    )
