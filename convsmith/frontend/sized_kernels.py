"""`SizedKernels`: a dynamic kernel for a device, whose code has fixed sizes: one kernel for each size of a call."""

from __future__ import annotations

from typing import TYPE_CHECKING

from convsmith.codegen.artifact import Artifact
from convsmith.compiler.dynamic import requirements
from convsmith.diag.forking import import_lock
from convsmith.frontend.dynamic import DynamicKernel
from convsmith.frontend.kernel import CompiledKernel
from convsmith.problem.problem import Problem
from convsmith.runtime.host_kernel import HostKernel
from convsmith.schedule.config import Config
from convsmith.schedule.wish import Decisions, Wish
from convsmith.tune.compile import compile_problem
from convsmith.tune.device import device_config

if TYPE_CHECKING:
    from convsmith.schedule.planned import AnyPlan

__all__ = ["SizedKernels"]


class SizedKernels(DynamicKernel):
    """Kernels of `problem` on a device, one for each size, called like a `DynamicKernel`: the first call with a size
    compiles the kernel, or loads it from the cache.

    Plan, IR and code belong to the kernel at the sizes of the line.
    """

    KEPT = 64

    def _compiled(self, config: Decisions | None, threads: int) -> Artifact:
        if isinstance(config, Wish):
            config = CompiledKernel(self.problem, self.target, config, threads).config
        assert isinstance(config, Config | None)
        self._given, self.sizes = config, requirements(self.problem, self.dynamic)
        return compile_problem(self.problem, target=self.target, config=self._config(self.problem), threads=threads)

    def _config(self, problem: Problem) -> Config:
        """Return the config for a size. The default config does not pack, so that packed weights serve all sizes."""
        return self._given or device_config(problem.canonical(), self.target, packs=False)

    def _new_plan(self) -> AnyPlan:
        with import_lock:
            from convsmith.schedule.planned import plan_for

        return plan_for(self.problem.canonical(), self.config, self.target)

    def _of_call(self, q: Problem) -> HostKernel:
        host = CompiledKernel(q, self.target, self._config(q), self.config.threads)._host
        assert isinstance(host, HostKernel)
        return host
