"""Facts of the CPU that this process runs on, as the system reports them, without measurement."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable
from functools import cache
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from convsmith.diag.forking import import_lock
from convsmith.diag.system import SYSTEM

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Cache", "Cpu", "cache_sizes", "caches", "cpu", "cpu_features", "lacking"]

_CPUINFO = "/proc/cpuinfo"
_KEYS = ("model name", "(?:vendor_id|CPU implementer)", "(?:cpu family|CPU part)")
"""Patterns of the lines of /proc/cpuinfo with model, vendor and family, on x86 and on Arm."""
_CPU = "/sys/devices/system/cpu/cpu0"
_SIGNS = dict.fromkeys(map(ord, "-_."))
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@cache
def cpu_features() -> frozenset[str]:
    """Return the features of the host CPU, by LLVM's names."""
    with import_lock:
        from llvmlite import binding as llvm

    return frozenset(name for name, present in llvm.get_host_cpu_features().items() if present)


def lacking(features: Iterable[str]) -> list[str]:
    """Return the `features`, by LLVM's names, that the host CPU lacks.

    A feature that the system lists under the same name is present; LLVM, whose import takes long, is asked for others.
    """
    unlisted = [name for name in features if _plain(name) not in _listed()]
    return [name for name in unlisted if name not in cpu_features()]


@cache
def _listed() -> frozenset[str]:
    """Return the features that the system lists."""
    match = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", _first_cpu(), re.MULTILINE)
    return frozenset(map(_plain, match[1].split())) if match else frozenset()


def _first_cpu() -> str:
    """Return what the system lists of the first CPU; empty where it lists nothing."""
    try:
        with open(_CPUINFO) as file:
            return "".join(takewhile(str.strip, file))
    except OSError:
        return ""


@cache
def _plain(name: str) -> str:
    """Return a name without the signs in which LLVM and the system differ, as in "avx512vnni" and "avx512_vnni"."""
    return name.translate(_SIGNS)


class Cpu(NamedTuple):
    """A CPU as the operating system reports it: ``vendor`` and ``family`` tell its micro-architecture."""

    model: str
    vendor: str = ""
    family: str = ""


class Cache(NamedTuple):
    """A data cache as one CPU sees it; 0 stands for a number that the system does not give.

    ``bytes`` is its size, in sets of ``ways`` lines of ``line`` bytes; ``cores`` CPUs share it.
    """

    name: str
    bytes: int
    line: int
    ways: int
    cores: int


@cache
def cpu() -> Cpu:
    """Return the CPU as the system describes it."""
    text = _first_cpu()
    matches = (re.search(rf"^{key}\s*:\s*(.+)$", text, re.MULTILINE) for key in _KEYS)
    model, vendor, family = (match[1].strip() if match else "" for match in matches)
    if not (model or vendor):
        model, vendor, family = SYSTEM.cpu()
    return Cpu(model or platform.processor() or platform.machine(), vendor, family)


@cache
def caches() -> tuple[Cache, ...]:
    """Return the data caches, nearest first; empty if the system does not list them."""
    with import_lock:
        from pathlib import Path

    by_name: dict[str, Cache] = {}
    for index in sorted(Path(_CPU).glob("cache/index*")):
        kind, level, size = (_read(index / name) for name in ("type", "level", "size"))
        match = re.fullmatch(r"(\d+)([KMG]?)", size)
        if kind != "Instruction" and match:
            line, ways = (_read(index / name) for name in ("coherency_line_size", "ways_of_associativity"))
            cpus = _count(_read(index / "shared_cpu_list"))
            nbytes = int(match[1]) * _UNITS[match[2]]
            by_name[level] = Cache(f"L{level}", nbytes, int(line or 0), int(ways or 0), cpus)
    by_name = by_name or {name: Cache(name, nbytes, 0, 0, 1) for name, nbytes in SYSTEM.cache_bytes().items()}
    cpus_of_core = min((cache.cores for cache in by_name.values()), default=1)
    return tuple(by_name[level]._replace(cores=by_name[level].cores // cpus_of_core) for level in sorted(by_name))


def cache_sizes() -> dict[str, int]:
    """Return the bytes of each data cache: {"L1": 32768, "L2": ..., "L3": ...}; empty if unknown."""
    return {cache.name: cache.bytes for cache in caches()}


def _read(path: Path) -> str:
    """Return the text of a file without surrounding blanks; empty if the file does not exist."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _count(text: str) -> int:
    """Return the number of CPUs in a list such as ``0-3,8``; 1 for an empty list."""
    ends = (part.partition("-") for part in text.split(",") if part)
    return sum(int(last or first) - int(first) + 1 for first, _, last in ends) or 1
