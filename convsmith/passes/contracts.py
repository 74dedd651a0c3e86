"""Contracts of passes: the stages that a pass requires of a kernel, and the stage that it ensures.

The stages are those of :mod:`convsmith.ir.stages`. A pass on loops requires a kernel that is not flat yet; a pass that
selects instructions requires a flat kernel. The decorator :func:`stages` states it, next to the pass. A schedule checks
each pass when it records it, and the verifier checks after the pass that the kernel is in the grammar of the stage that
the pass ensures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from convsmith.diag.errors import ConfigError
from convsmith.ir.stages import FLAT, NAIVE, REALISED, SCHEDULED, STAGES, TENSORISED, UNROLLED, Stage
from convsmith.ir.stmt import Kernel

Pass = TypeVar("Pass", bound=Callable[..., Kernel])
ANY = tuple(STAGES.values())
LOOPS = (NAIVE, SCHEDULED, REALISED)
"""Stages in which buffers have their own dims, and statements are scalar."""
FLATTENED = (FLAT, TENSORISED, UNROLLED)
"""Stages in which memory is flat."""
ORDER = {stage: n for n, stage in enumerate(STAGES.values())}
"""The stages in the order of a pipeline."""


class Contract(NamedTuple):
    """The stages that a pass ``requires`` (a kernel must be in one of them), and the stage that it ``ensures``.

    A kernel in a later stage stays in it. A ``partial`` pass ensures its stage only when it rewrites the whole kernel,
    not when its arguments select a part.
    """

    requires: tuple[Stage, ...]
    ensures: Stage
    partial: bool


_CONTRACTS: dict[Callable[..., Kernel], Contract] = {}


def stages(
    *requires: Stage, ensures: Stage = SCHEDULED, partial: bool = False
) -> Callable[[Pass], Pass]:  # fmt: skip
    """Return the decorator of a pass that requires a kernel in one of the stages ``requires``, and ensures a stage."""

    def decorate(rewrite: Pass) -> Pass:
        _CONTRACTS[rewrite] = Contract(requires, ensures, partial)
        return rewrite

    return decorate


def contract_of(rewrite: Callable[..., Kernel]) -> Contract:
    """Return the contract of the pass ``rewrite``; KeyError if it has no contract."""
    return _CONTRACTS[rewrite]


def stage_after(stage: Stage, rewrite: Callable[..., Kernel], args: tuple[Any, ...]) -> Stage:
    """Return the stage of a kernel of ``stage`` after the pass; ConfigError if the pass requires another stage."""
    requires, ensures, partial = contract_of(rewrite)
    if stage not in requires:
        legal = " or ".join(map(str, requires))
        raise ConfigError(
            "stage-order", f"{rewrite.__name__}: the kernel is {stage} here; legal is a kernel that is {legal}"
        )
    if partial and args:
        return stage
    return ensures if ORDER[ensures] > ORDER[stage] else stage
