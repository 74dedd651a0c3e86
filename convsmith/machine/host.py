"""Facts of the CPU that this process runs on, as the system reports them. Measures nothing."""

from __future__ import annotations

import platform
import re
from functools import cache
from pathlib import Path

from convsmith.diag.forking import import_lock

__all__ = ["cache_sizes", "cpu_features", "cpu_model"]

_CPU = Path("/sys/devices/system/cpu/cpu0")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@cache
def cpu_features() -> frozenset[str]:
    """Features of the host CPU, by LLVM's names."""
    with import_lock:
        from llvmlite import binding as llvm

    return frozenset(name for name, present in llvm.get_host_cpu_features().items() if present)


@cache
def cpu_model() -> str:
    """The CPU's name as the system gives it."""
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return match[1].strip() if match else platform.processor() or platform.machine()


@cache
def cache_sizes() -> dict[str, int]:
    """Bytes of each data cache, as one CPU sees it: {"L1": 32768, "L2": ..., "L3": ...}; empty where unknown."""
    sizes: dict[str, int] = {}
    for index in sorted(_CPU.glob("cache/index*")):
        try:
            kind, level, size = ((index / name).read_text().strip() for name in ("type", "level", "size"))
        except OSError:
            continue
        match = re.fullmatch(r"(\d+)([KMG]?)", size)
        if kind != "Instruction" and match:
            sizes[f"L{level}"] = int(match[1]) * _UNITS[match[2]]
    return dict(sorted(sizes.items()))
