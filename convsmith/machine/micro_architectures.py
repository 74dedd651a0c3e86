"""Micro-architectures: which costs of a level are others on the CPUs that have it.

A level has reference facts: they hold on the smaller machines that have it, and kernels for a machine that is not at
hand are made with them. On the host the costs are those of its micro-architecture, which follows from what the system
says of the CPU. Caches of the host are detected for what is measured and shown. Configs keep to the reference caches:
measured on an Intel server, blocks for its own second-level cache of 2 MiB made kernels 19 % slower in the mean of 22
problems and one of them 4 times, tiles for its first-level cache of 48 KiB made those of 40 problems 2 % slower.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from convsmith.machine.base import Machine
from convsmith.machine.host import Cpu, cpu, cpu_features

__all__ = ["MICRO_ARCHITECTURES", "MicroArchitecture", "micro_architecture", "on_host"]


@dataclass(frozen=True)
class MicroArchitecture:
    """CPUs on which the same work has the same costs.

    ``vendor`` and ``families`` are as the system names them; nothing stands for any. ``needs`` are features that tell
    the CPUs from older ones of a family. ``costs`` are those that differ from a level's reference costs, by name.
    """

    name: str
    vendor: str = ""
    families: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    costs: tuple[tuple[str, float], ...] = ()

    def has(self, cpu: Cpu, features: frozenset[str]) -> bool:
        """Whether a CPU with these features is one of them."""
        named = self.vendor in ("", cpu.vendor) and (not self.families or cpu.family in self.families)
        return named and set(self.needs) <= features

    def of(self, level: Machine) -> Machine:
        """Return the level with the costs of the micro-architecture."""
        changes: dict[str, Any] = dict(self.costs)
        return replace(level, costs=replace(level.costs, **changes)) if changes else level


MICRO_ARCHITECTURES = (
    MicroArchitecture("zen4", "AuthenticAMD", ("25",), ("avx512f",)),
    MicroArchitecture("intel-server", "GenuineIntel", ("6",), ("avx512f",)),
    MicroArchitecture("generic"),
)
"""The first that a CPU belongs to is its own; every CPU belongs to the last.

The reference costs of the levels of x86 were measured on Zen 4. They stay on Intel servers: with the latency of two
ports (8 multiply-adds) 31 of 108 problems whose config changed were faster by more than 3 %, and 15 were slower.
"""


def micro_architecture(cpu: Cpu, features: frozenset[str]) -> MicroArchitecture:
    """Return the micro-architecture of a CPU with these features."""
    return next(row for row in MICRO_ARCHITECTURES if row.has(cpu, features))


def on_host(level: Machine) -> Machine:
    """Return the level with the costs of the CPU that this process runs on."""
    return micro_architecture(cpu(), cpu_features()).of(level)
