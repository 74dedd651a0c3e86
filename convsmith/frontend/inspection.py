"""Questions about how a kernel was compiled. Answers run the rewrites of its plan again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from convsmith.codegen.artifact import Artifact
from convsmith.compiler.service import faults, repro
from convsmith.diag.choices import suggestion
from convsmith.diag.errors import UsageError
from convsmith.diag.expect import expect_text, has_long_number
from convsmith.diag.forking import cached_property, import_lock
from convsmith.layout.requirements import FIXED, Requirements
from convsmith.machine.base import Machine
from convsmith.machine.registry import device_targets
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.schedule.given import GivenSchedule

if TYPE_CHECKING:
    from convsmith.compiler.instruments import PassRecord
    from convsmith.compiler.rewritten import Lowered
    from convsmith.schedule.plan import Plan
    from convsmith.schedule.planned import KeptPlan

__all__ = ["Inspected", "KernelTexts"]


class KernelTexts(ABC):
    """Base class of what is compiled, whose texts rewrites give. `artifact` is None if nothing is compiled."""

    config: Config | GivenSchedule
    target: Machine
    artifact: Artifact | None

    def plan(self) -> Plan:
        """Return every decision worked out: statements, loops, instruction, registers, buffers, pipelines. It can be
        printed.
        """
        return self._kept_plan.plan

    @contextmanager
    def planned(self) -> Iterator[Plan]:
        """Run the `with` block in a table with the IR nodes of the plan, which is its value (`convsmith.ir.intern`)."""
        with self._kept_plan.opened() as plan:
            yield plan

    @cached_property
    def _kept_plan(self) -> KeptPlan:
        """The plan with its nodes: the artifact's, or, for a loaded kernel, a plan that is worked out once."""
        with import_lock:
            from convsmith.ir.intern import interning
            from convsmith.schedule.planned import KeptPlan

        if self.artifact is not None and self.artifact.plan is not None:
            kept: KeptPlan = self.artifact.plan
            return kept
        with interning():
            return KeptPlan.of(self._new_plan())

    @abstractmethod
    def _new_plan(self) -> Plan:
        """Return the plan, worked out in the current intern table."""

    def ir(self, stage: str | None = None) -> str:
        """Return the IR, by default of all kernels of a call as they go to LLVM.

        "naive" selects the initial IR of the main kernel, the name or the number of a pass the IR after that pass. A
        name denotes the last run of a pass, "simplify:2" the second run of `simplify`, and a number the run with that
        number among the runs of all passes. UsageError lists the passes.
        """
        if stage is not None:
            expect_text("stage", stage, "bad-pass")
        low, records = self._lower()
        if stage is None:
            return str(low)
        number = int(stage) if stage.isdecimal() and not has_long_number(stage) else None
        matches = [r for r in records if stage == r.name or number == r.number]
        runs = Counter[str]()
        for r in records:
            runs[r.name] += 1
            if stage == f"{r.name}:{runs[r.name]}":
                matches = [r]
        if not matches:
            names = ", ".join(f"{name} ({count} runs)" if count > 1 else name for name, count in runs.items())
            meant = suggestion(stage, runs)
            raise UsageError(f"no pass {stage!r}: legal are 0 to {len(records) - 1}, {names}{meant}", code="bad-pass")
        return str(matches[-1].kernel)

    def llvm(self) -> str:
        """Return the LLVM text. UsageError for a target whose code is WGSL."""
        if self._has_code("wgsl"):
            raise UsageError(
                f"target {self.target.name} has no LLVM text and no assembly; wgsl() and --wgsl give its code",
                code="text",
            )
        return self._lower()[0].text

    def asm(self) -> str:
        """Return the assembly. UsageError for a target whose code is WGSL."""
        with import_lock:
            from convsmith.codegen import llvm_bind

        target = self.target
        return llvm_bind.assembly(self.llvm(), target.triple, target.cpu, target.features)

    def ptx(self) -> str:
        """Return the PTX, the input of an assembler or of NVIDIA's driver. UsageError for other targets."""
        self._expect_code("ptx", "PTX")
        return self.asm()

    def spirv(self) -> str:
        """Return the SPIR-V as text. UsageError for targets that do not use it."""
        self._expect_code("spirv", "SPIR-V")
        return self.asm()

    def wgsl(self) -> str:
        """Return the module of WGSL, WebGPU's language. UsageError for other targets."""
        self._expect_code("wgsl", "WGSL")
        return self._lower()[0].text

    def sass(self) -> str:
        """Return the disassembled machine code of a device. UsageError for other targets, UnsupportedError if the
        assembler or a disassembler is not installed.
        """
        with import_lock:
            from convsmith.compiler.cubin import assemble_ptx, disassemble

        self._expect_code("ptx", "SASS")
        return disassemble(assemble_ptx(self.asm(), self.target.cpu).cubin)

    def _has_code(self, code: str) -> bool:
        return self.target.device is not None and self.target.device.code == code

    def _expect_code(self, code: str, name: str) -> None:
        """Raise UsageError, with the ``name`` of a text, unless the target is a device that takes ``code``."""
        if not self._has_code(code):
            able = [t.name for t in device_targets() if t.device is not None and t.device.code == code]
            raise UsageError(
                f"target {self.target.name} has no {name}; targets that have it: {', '.join(able)}; asm() and --asm "
                "give the assembly of every target that LLVM compiles for",
                code="text",
            )

    def passes(self) -> list[PassRecord]:
        """Return the kernel after every pass, the naive nest first."""
        return self._lower()[1]

    def _lower(self) -> tuple[Lowered, list[PassRecord]]:
        with import_lock:
            from convsmith.compiler.driver import lower
            from convsmith.compiler.instruments import Recorder

        recorder = Recorder()
        with faults(self._command()), self.planned() as plan:
            return lower(plan, [recorder]), recorder.records

    @abstractmethod
    def _command(self) -> str:
        """Return the command that shows the kernel."""


class Inspected(KernelTexts):
    """Base class of the kernels of problems."""

    problem: Problem
    sizes: Requirements = FIXED
    """Requirements on the sizes of calls, each of which has its own kernel; empty if one kernel serves all sizes."""

    def explain(self, html: str | Path | None = None) -> str:
        """Return a page on the kernel: problem, config, plan, packing, work, and the machine's limits.

        The file `html` gets a page to look at, which also shows the passes, the assembly beside its IR, and the bytes
        through the caches. UsageError if it cannot be written, UnsupportedError if the packages for it are missing.
        """
        with import_lock:
            from convsmith.frontend.explain import explain, explain_in

        return explain(self) if html is None else explain_in(self, html)

    def _lower(self) -> tuple[Lowered, list[PassRecord]]:
        if self.artifact is None:
            raise UsageError(
                f"{self.problem} has no elements in its source or destination: nothing is compiled", code="nothing"
            )
        return super()._lower()

    def _command(self) -> str:
        return repro("show", self.problem, str(self.config))
