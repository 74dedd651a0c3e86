"""What this machine is: CPU, its features, caches, and the versions of what runs on it.

Knows how to look; measures nothing (`convsmith.frontend.peak` does).
"""

from __future__ import annotations

import os
import platform
import re
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

import numpy as np

from convsmith.diag.forking import import_lock
from convsmith.runtime import threads

__all__ = ["cache_sizes", "cpu_features", "cpu_model", "describe"]

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


def describe() -> dict[str, object]:
    """The machine as JSON-able values: what a measured figure has to be read with."""
    with import_lock:
        from llvmlite import binding as llvm

    return {
        "cpu": cpu_model(),
        "llvm_cpu": llvm.get_host_cpu_name(),
        "cpus": os.cpu_count() or 1,
        "threads": threads.default_threads(),
        "features": sorted(cpu_features()),
        "caches": cache_sizes(),
        "os": platform.platform(),
        "python": ".".join(map(str, sys.version_info[:3])),
        "numpy": np.__version__,
        "llvmlite": metadata.version("llvmlite"),
        "llvm": ".".join(map(str, llvm.llvm_version_info)),
        "openmp": threads.describe(),
    }
