"""All targets by the name users give: known targets, for which code can be compiled, and targets that this machine
runs.
"""

from __future__ import annotations

import platform
from dataclasses import replace
from functools import cache
from importlib import import_module

from convsmith.diag.choices import choices
from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.diag.forking import import_lock
from convsmith.diag.system import SYSTEM
from convsmith.ir.instruction import Instruction
from convsmith.machine.base import Machine
from convsmith.machine.generic.level import level
from convsmith.machine.host import cpu_features
from convsmith.machine.micro_architectures import named, preferred

_FAMILIES = {
    "x86_64": "x86", "aarch64": "aarch64", "hexagon": "hexagon", "riscv64": "riscv", "riscv32": "riscv",
    "thumbv8.1m.main": "arm32", "thumbv7em": "arm32", "wasm32": "wasm",
}  # fmt: skip
"""Folders with the levels of CPUs by the first word of their triple."""
_DEVICES = ("nvidia", "intel_gpu", "webgpu")
"""Folders with the levels of devices, which run whatever CPU this machine has, if it has the device and the library
that launches.
"""
_OF_THIS_MACHINE = {"cuda": "nvidia"}
"""Names of targets whose level the device of this machine decides, and their folders."""
_SPELLINGS = {"amd64": "x86_64", "arm64": "aarch64"}
"""Alternative names of architectures, as systems report them."""

_AMD = (
    "AMD's GPUs need rows of their products of matrices (v_mfma and v_wmma, whose intrinsics LLVM has) with fragments "
    "over waves of 64 or 32 lanes, the local data share as shared memory with its barriers, and a run time that "
    "launches code objects (HIP, or HSA); the fragments of devices here are those of NVIDIA's warps and Intel's "
    "sub-groups, and none of it could be run"
)
_WITHOUT_LEVEL = {"amdgcn": _AMD, "gfx": _AMD}
"""The needs of a level, by the beginnings of names of machines for which there is none."""


@cache
def _levels(folder: str) -> tuple[Machine, ...]:
    """Return the levels of a folder, highest first. Others are not imported: a process compiles for few."""
    with import_lock:
        found: tuple[Machine, ...] = import_module(f"convsmith.machine.{folder}.levels").LEVELS
    return found


@cache
def _tuned(folder: str, micro_architecture: str) -> tuple[Machine, ...]:
    """Return the levels of a folder with the costs of a micro-architecture."""
    return tuple(map(named(micro_architecture).of, _levels(folder)))


def host_targets() -> tuple[Machine, ...]:
    """Return the levels that run on this machine, fastest first; the last is always ``generic``."""
    return _host_targets(preferred().name)


def known_targets(micro_architecture: str = "") -> tuple[Machine, ...]:
    """Return every level of CPUs, family by family, with the costs of a micro-architecture, by default of the preferred
    one; the last is ``generic``.
    """
    return _known_targets(micro_architecture or preferred().name)


@cache
def _host_targets(micro_architecture: str) -> tuple[Machine, ...]:
    machine = platform.machine().lower()
    architecture = _SPELLINGS.get(machine, machine)
    folder = _FAMILIES.get(architecture)
    levels = _tuned(folder, micro_architecture) if folder is not None else ()
    if triple := SYSTEM.triple(architecture):
        levels = tuple(replace(t, triple=triple) for t in levels)
    return (*(t for t in levels if set(t.needs) <= cpu_features()), level())


@cache
def _known_targets(micro_architecture: str) -> tuple[Machine, ...]:
    return (*(t for folder in dict.fromkeys(_FAMILIES.values()) for t in _tuned(folder, micro_architecture)), level())


def device_targets() -> tuple[Machine, ...]:
    """Return every level of devices."""
    return tuple(t for folder in _DEVICES for t in _levels(folder))


def target_names() -> tuple[str, ...]:
    """Return all names that :func:`target` knows."""
    return tuple(t.name for t in (*known_targets(), *device_targets()))


def _rows(t: Machine, types: tuple[str, str, str]) -> tuple[Instruction | None, ...]:
    return t.nearest(*types), *t.fragment_rows(*types)


@cache
def _lowest(names: tuple[str, ...], types: tuple[str, str, str]) -> str:
    """Return the lowest of the levels `names` of this machine that is as fast for `types` as the first of them."""
    have = [t for t in host_targets() if t.name in names]
    best = have[0]
    alike = [t for t in have if t.vector_bits == best.vector_bits and _rows(t, types) == _rows(best, types)]
    return alike[-1].name


def halved(machine: Machine, types: tuple[str, str, str]) -> Machine | None:
    """Return the lowest level of this machine whose vectors have half the bits of those of ``machine``, a level of this
    machine too, and that adds as many products of ``types`` to sums in a cycle; None if there is none.
    """
    micro_architecture = preferred().name
    have = {t.name: t for t in _host_targets(micro_architecture)}
    if have.get(machine.name) is not machine:
        return None
    name = _halved(machine.name, types, micro_architecture)
    return have[name] if name else None


@cache
def _halved(name: str, types: tuple[str, str, str], micro_architecture: str) -> str:
    have = {t.name: t for t in _host_targets(micro_architecture)}
    machine = have[name]
    same = (machine.triple, machine.vector_bits)
    short = tuple(t.name for t in have.values() if (t.triple, 2 * t.vector_bits) == same and not t.vectors.scalable)
    if len({*types}) > 1 or not short:  # products of other types have rows of several terms, or are converted
        return ""
    level = have[_lowest(short, types)]
    long, half = machine.row(*types), level.row(*types)
    if long is None or half is None:
        return ""
    is_as_fast = half.lanes / level.costs.multiply_add >= long.lanes / machine.costs.multiply_add
    return level.name if is_as_fast else ""


def target(name: str | None = None, types: tuple[str, str, str] | None = None) -> Machine:
    """Return the known target `name`, by default the fastest that this machine has.

    With `types` (of two factors and their sums), the default is the lowest level that is as fast for them, so that code
    requires no more features than it uses. A level with scalable vectors is never the default: whether it is faster
    depends on their length. The target ``cuda`` is the level of this machine's GPU; UnsupportedError if it has no GPU,
    and for machines of which it says what a level would need. UsageError for another unknown name.
    """
    if name is None:
        have = {t.name: t for t in host_targets() if not t.vectors.scalable}
        return have[_lowest(tuple(have), types)] if types is not None else next(iter(have.values()))
    if name in _OF_THIS_MACHINE:
        with import_lock:
            here: Machine = import_module(f"convsmith.machine.{_OF_THIS_MACHINE[name]}.host").level_here()
        return here
    tables = (host_targets, known_targets, device_targets)  # in this order, each is imported when it is asked
    level = next((t for table in tables for t in table() if t.name == name), None)
    if level is None:
        if why := next((why for start, why in _WITHOUT_LEVEL.items() if name.startswith(start)), ""):
            raise UnsupportedError(f"there is no level for {name}: {why}", code="target")
        known = choices(name, (*target_names(), *_OF_THIS_MACHINE))
        raise UsageError(f"target {name!r} is unknown; known are {known}")
    return level


def scalable_level() -> Machine | None:
    """Return the highest level of this machine whose vectors are scalable, which is never the default; None if it has
    no such level.
    """
    return next((t for t in host_targets() if t.vectors.scalable), None)


def host_target(name: str | None = None) -> Machine:
    """Return the target `name` for code that will run here. UnsupportedError if this machine lacks it.

    Whether the device of a level exists is checked by the runtime that launches its kernels.
    """
    level = target(name)
    if level.device is None and level not in host_targets():
        missing = [name for name in level.needs if name not in cpu_features()]
        raise UnsupportedError(
            f"target {name!r} needs {', '.join(missing)}, which this machine lacks; "
            f"it has {', '.join(t.name for t in host_targets())}"
        )
    return level
