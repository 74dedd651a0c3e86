"""Keys of the origin of a measurement: the machine that ran it, and the compiler that made its kernel."""

from __future__ import annotations

import hashlib
import re
from functools import cache

from convsmith.compiler.cache import compiler_source_hash
from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.machine.base import Machine
from convsmith.machine.host import cache_sizes, cpu, cpu_features
from convsmith.machine.micro_architectures import preferred
from convsmith.machine.registry import target as known_target
from convsmith.runtime.loading import device_name

__all__ = ["compiler_key", "is_of_this_machine", "machine_key", "machine_text"]

HASH_LETTERS = 12


def machine_key(target: Machine | None = None) -> str:
    """Return the name of this machine in rows of measurements of ``target``: the key of its CPU, or of the device.

    It begins with the preferred micro-architecture, so that rows that were measured under another one are not used.
    UnsupportedError if there is no such device.
    """
    if target is None or target.device is None:
        return f"{preferred().name}-{_cpu_hash()}"
    name = device_name(target.device.runtime)
    return f"{re.sub(r'[^a-z0-9]+', '-', name.lower())}-{_hash(name)}"


@cache
def _cpu_hash() -> str:
    """Return a hash of the facts of the CPU."""
    return _hash(cpu().model, *sorted(cpu_features()), repr(cache_sizes()))


def machine_text(target: Machine | None = None) -> str:
    """Return the machine that runs kernels of ``target`` in words: the model of its CPU and its caches, or the device.

    UnsupportedError if there is no such device.
    """
    if target is not None and target.device is not None:
        return device_name(target.device.runtime)
    sizes = ", ".join(f"{name} {size >> 10} KiB" for name, size in cache_sizes().items())
    return f"{cpu().model}; {sizes or 'caches unknown'}"


def is_of_this_machine(machine: str, target: str) -> bool:
    """Return whether ``machine``, the key in a row of measurements of ``target``, is this machine or one of its
    devices.

    An unknown target, or a target whose device is absent, belongs to another machine.
    """
    try:
        return machine == machine_key(known_target(target))
    except (UnsupportedError, UsageError):
        return False


@cache
def compiler_key() -> str:
    """Return a hash of the compiler's sources: kernels of different compilers may differ under the same config."""
    return compiler_source_hash()[:HASH_LETTERS]


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:HASH_LETTERS]
