"""Micro-architectures: the CPUs on which costs differ from the reference costs of a level.

A level has reference facts, which hold on the smaller machines that have it. A micro-architecture replaces costs of the
levels of its instruction set. The default is the micro-architecture of the host, which the system's description of the
CPU determines; CONVSMITH_MICRO_ARCHITECTURE selects another one. The host's caches are detected only for measurements
and pages; configs use the reference caches. Measured on an Intel server, cache tiles for its second-level cache of 2
MiB made kernels 19 % slower in the mean of 22 problems and one of them 4 times slower; tiles for its first-level cache
of 48 KiB made 40 problems 2 % slower.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from convsmith.diag.choices import choices
from convsmith.diag.errors import UsageError
from convsmith.diag.expect import shown
from convsmith.diag.record import record
from convsmith.diag.settings import settings
from convsmith.machine.base import Machine
from convsmith.machine.costs import FarRates
from convsmith.machine.host import Cpu, cpu, cpu_features

__all__ = ["MICRO_ARCHITECTURES", "MicroArchitecture", "micro_architecture", "named", "of_host", "preferred"]


@record(frozen=True)
class MicroArchitecture:
    """CPUs with the same costs.

    ``architecture`` is the first word of the LLVM triple of the levels that the costs apply to; empty matches all.
    ``vendor`` and ``families`` are the system's names; empty matches all. ``needs`` are features that distinguish the
    CPUs from older ones of a family. ``costs`` are the costs, by name, that differ from a level's reference costs;
    ``by_bits`` are further costs for the levels whose vectors have these bits; ``rates`` are the bytes per cycle that a
    core loads from each of its caches, for such levels.
    """

    name: str
    architecture: str = ""
    vendor: str = ""
    families: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    costs: tuple[tuple[str, Any], ...] = ()
    by_bits: tuple[tuple[int, tuple[tuple[str, Any], ...]], ...] = ()
    rates: tuple[tuple[int, tuple[int, ...]], ...] = ()

    def has(self, cpu: Cpu, features: frozenset[str]) -> bool:
        """Return whether a CPU with these features belongs to the micro-architecture."""
        named = self.vendor in ("", cpu.vendor) and (not self.families or cpu.family in self.families)
        return named and set(self.needs) <= features

    def costs_of(self, bits: int) -> dict[str, Any]:
        """Return the costs that differ from the reference costs of a level whose vectors have ``bits``, by name."""
        return {**dict(self.costs), **dict(dict(self.by_bits).get(bits, ()))}

    def of(self, level: Machine) -> Machine:
        """Return the level with the costs of the micro-architecture, if it has the level's architecture."""
        changes, rates = self.costs_of(level.vector_bits), dict(self.rates).get(level.vector_bits, ())
        if not (changes or rates) or self.architecture not in ("", level.triple.partition("-")[0]):
            return level
        caches = (replace(memory, rate=rate) for memory, rate in zip(level.memories, rates))
        return replace(level, costs=replace(level.costs, **changes), memories=(*caches, *level.memories[len(rates) :]))


_INTEL_SERVER = (
    ("scatter_far", 1.9), ("crossing", 1.3), ("page_turn", 6.0), ("slow", (("vdpbf16ps_512", 4.8),)), ("refill", 11.0),
    ("result_near", 32 << 20), ("prefetched", 512 << 10), ("prefetched_transforms", 512 << 10),
    ("prefetched_pixels", 3 << 19), ("exposed", 6.0), ("prefetched_results", 3 << 19),
    ("transform", 1.5), ("transform_far", FarRates(0.19, 0.56, 0.175)),
    ("transform_prefetched", FarRates(0.47, 3.3, 0.62)),
)  # fmt: skip

_ZEN = (("prefetched_transforms", 1 << 20),)
_ZEN5_BY_BITS = (
    (512, (("multiply_add", 0.5), ("exposed", 20.0), ("transform", 0.7), ("turn", 4.0))),
)  # fmt: skip

MICRO_ARCHITECTURES = (
    MicroArchitecture("znver4", "x86_64", "AuthenticAMD", ("25",), ("avx512f",), _ZEN),
    MicroArchitecture("znver5", "x86_64", "AuthenticAMD", ("26",), ("avx512f",), _ZEN, _ZEN5_BY_BITS, ((512, (128, 64)),)),
    MicroArchitecture("intel-server", "x86_64", "GenuineIntel", ("6",), ("avx512f",), _INTEL_SERVER),
    MicroArchitecture("generic"),
)
"""A CPU's micro-architecture is the first match; the last one matches every CPU.

The reference costs of the levels of x86 were measured on Zen 4. They stay on Intel servers: with the latency of two
ports (8 multiply-adds) 31 of 108 problems whose config changed were faster by more than 3 %, and 15 were slower. Loads
from beyond the second-level cache are slower there; the rates of transforms that prefetch weights were fitted on
Sapphire Rapids to 120 configs of 23 problems (13 % of error).

The costs of Zen 4 and Zen 5 were fitted to searches of the layers of ResNet-50 and MobileNetV2
(`benchmarks/measurements/`), on Zen 5 also to 20 depthwise layers of other sizes: loads of a transform's weights
prefetch lines there. Zen 5 starts two multiply-adds of 512 bits in a cycle; of 79 kernels at `avx2` and `avx512` that
this and the costs of windows changed there, the mean took 0.95 of the time.
"""


def micro_architecture(cpu: Cpu, features: frozenset[str]) -> MicroArchitecture:
    """Return the micro-architecture of a CPU with these features."""
    return next(row for row in MICRO_ARCHITECTURES if row.has(cpu, features))


@cache
def of_host() -> MicroArchitecture:
    """Return the micro-architecture of the CPU that this process runs on."""
    return micro_architecture(cpu(), cpu_features())


def named(name: str) -> MicroArchitecture:
    """Return the micro-architecture `name`. UsageError for an unknown name."""
    for row in MICRO_ARCHITECTURES:
        if row.name == name:
            return row
    known = choices(name, [row.name for row in MICRO_ARCHITECTURES])
    raise UsageError(
        f"CONVSMITH_MICRO_ARCHITECTURE={shown(name)}: the micro-architecture is unknown; known are {known}",
        code="bad-setting",
    )


def preferred() -> MicroArchitecture:
    """Return the micro-architecture that the compiler chooses for: the one in the setting, or else the host's."""
    name = settings.micro_architecture
    return of_host() if name is None else named(name)
