"""A description of the machine, to be stored beside measured figures: its CPU, caches, and versions of software."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from pathlib import Path

import numpy as np

from convsmith.diag.forking import import_lock
from convsmith.machine.host import cache_sizes, cpu, cpu_features
from convsmith.machine.micro_architectures import of_host, preferred
from convsmith.machine.registry import host_targets
from convsmith.measure.vector_length import scalable_bits
from convsmith.runtime import threads

__all__ = ["describe"]


def describe() -> dict[str, object]:
    """Return the machine as values that JSON can hold, without the folders of its user."""
    with import_lock:
        from llvmlite import binding as llvm

    return {
        "cpu": cpu().model,
        "micro_architecture": of_host().name,
        "chosen_for": preferred().name,
        "llvm_cpu": llvm.get_host_cpu_name(),
        "cpus": os.cpu_count() or 1,
        "threads": threads.default_threads(),
        "features": sorted(cpu_features()),
        "caches": cache_sizes(),
        "scalable_vectors": f"{bits} bits" if (bits := scalable_bits()) else "none",
        "levels": {level.name: ", ".join(map(str, level.holders)) for level in host_targets()[0].levels},
        "os": platform.platform(),
        "python": ".".join(map(str, sys.version_info[:3])),
        "numpy": np.__version__,
        "llvmlite": metadata.version("llvmlite"),
        "llvm": ".".join(map(str, llvm.llvm_version_info)),
        "openmp": Path(threads.describe()).name,
    }
