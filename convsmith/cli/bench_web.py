"""`convsmith bench --target wasm32`: kernels in an engine of WebAssembly, beside libraries of npm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from convsmith.cli.bench_page import Row
from convsmith.cli.problems import build, command
from convsmith.compiler.service import faults
from convsmith.diag.choices import choices
from convsmith.diag.errors import ConvsmithError, UnsupportedError, UsageError
from convsmith.machine.base import Machine
from convsmith.machine.host import cpu
from convsmith.measure.peak import peak_types
from convsmith.measure.verification import Verdict
from convsmith.measure.web import ENGINES, WebEngine, engine_of
from convsmith.measure.web_peers import WEB_PEERS, Packages
from convsmith.problem.problem import Problem

__all__ = ["WebBench"]


class WebBench(NamedTuple):
    """Times problems in an engine: all kernels are for the level `target` and one thread.

    `asked` are libraries, of which `packages` has some.
    """

    engine: WebEngine
    packages: Packages
    target: Machine
    config: str | None
    rounds: int

    @classmethod
    def of(
        cls, target: Machine, config: str | None, threads: int | None, name: str | None, npm: str | None,
        asked: Sequence[str], rounds: int, stack: ExitStack,
    ) -> WebBench:  # fmt: skip
        """Return it with a new engine, which `stack` ends. UsageError if an option is not legal; UnsupportedError if
        the engine is not installed, or for several threads.
        """
        if threads not in (None, 1):
            raise UnsupportedError(f"--threads={threads}: engines run kernels of {target.name} on 1", code="threads")
        chosen = name or next(iter(ENGINES))
        if chosen not in ENGINES:
            raise UsageError(f"--engine={chosen} is not legal; legal are {choices(chosen, ENGINES)}", code="bad-option")
        packages = Packages(npm or ".", asked)
        return cls(stack.enter_context(engine_of(chosen, packages)), packages, target, config, rounds)

    @property
    def where(self) -> str:
        return f"{cpu().model}, {self.engine.version}"

    @property
    def libraries(self) -> Mapping[str, str | None]:
        return self.packages.versions

    @property
    def advice(self) -> list[str]:
        advice = self.packages.advice(self.packages.here)
        copies = [name for name in self.packages.here if WEB_PEERS[name].copies]
        copied = f"beside {', '.join(copies)} our time includes copies of source and result, which it takes and returns"
        return [*([advice] if advice else []), *([copied] if copies else [])]

    def row(self, problem: Problem) -> Row:
        """Return the row of a problem."""
        try:
            with faults(command("bench", problem, 1, self.target.name, self.config)):
                kernel = build(problem, 1, self.target.name, self.config)
                if kernel.artifact is None:
                    raise UnsupportedError("a call of this problem runs no kernel", code="empty")
                found = self.engine.measure(kernel, self.rounds)
        except ConvsmithError as error:
            return Row(problem, error=error)
        verdict = Verdict(bool(found.wrong), 1, found.wrong)
        types = peak_types(problem, kernel.target) if found.times.of_peak is not None else None
        return Row(problem, kernel, verdict, found.times, peak_types=types, missing=found.missing)
