"""All targets by the name users give, and which of them this machine has."""

from __future__ import annotations

import platform
from functools import cache

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.ir.instruction import Instruction
from convsmith.machine.base import Machine
from convsmith.machine.generic.level import level
from convsmith.machine.host import cpu_features
from convsmith.machine.micro_architectures import on_host
from convsmith.machine.x86.levels import LEVELS

_BY_MACHINE: dict[str, tuple[Machine, ...]] = {"x86_64": LEVELS, "amd64": LEVELS}


def isa_names() -> tuple[str, ...]:
    """All names that :func:`target` knows."""
    return (*(t.isa for t in LEVELS), "generic")


@cache
def host_targets() -> tuple[Machine, ...]:
    """The levels that run on this machine, fastest first; the last is always ``generic``."""
    tuned = _BY_MACHINE.get(platform.machine().lower(), ())
    return (*(on_host(t) for t in tuned if set(t.needs) <= cpu_features()), level())


def _rows(t: Machine, types: tuple[str, str, str]) -> tuple[Instruction | None, ...]:
    return t.nearest(*types), *t.fragment_rows(*types)


def target(isa: str | None = None, types: tuple[str, str, str] | None = None) -> Machine:
    """The target of that name, by default the fastest this machine has.

    With `types` (of two factors and their sums) it is the lowest level that does as well as the fastest, so that code
    asks for no more than it uses. UsageError for an unknown name, UnsupportedError for one that this machine lacks.
    """
    have = host_targets()
    if isa is None:
        best = have[0]
        if types is None:
            return best
        return [t for t in have if t.vector_bits == best.vector_bits and _rows(t, types) == _rows(best, types)][-1]
    for t in have:
        if t.isa == isa:
            return t
    if isa in isa_names():
        missing = next(sorted(set(t.needs) - cpu_features()) for t in LEVELS if t.isa == isa)
        raise UnsupportedError(
            f"isa {isa!r} needs {', '.join(missing) or 'x86-64'}, which this machine lacks; "
            f"it has {', '.join(t.isa for t in have)}"
        )
    raise UsageError(f"isa {isa!r} is unknown; known are {', '.join(isa_names())}")
