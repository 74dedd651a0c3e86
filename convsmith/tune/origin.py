"""Keys of the origin of a measurement: the machine that ran it, and the compiler that made its kernel."""

from __future__ import annotations

import hashlib
from functools import cache

from convsmith.compiler.cache import compiler_source_hash
from convsmith.machine.host import cache_sizes, cpu, cpu_features
from convsmith.machine.micro_architectures import micro_architecture

__all__ = ["compiler_key", "machine_key", "machine_text"]

HASH_LETTERS = 12


@cache
def machine_key() -> str:
    """Return the name of this machine in rows of measurements: its micro-architecture, and a hash of its facts."""
    facts = (cpu().model, *sorted(cpu_features()), repr(cache_sizes()))
    return f"{micro_architecture(cpu(), cpu_features()).name}-{_hash(*facts)}"


def machine_text() -> str:
    """Return this machine in words: the model of its CPU and its caches."""
    sizes = ", ".join(f"{name} {size >> 10} KiB" for name, size in cache_sizes().items())
    return f"{cpu().model}; {sizes or 'caches unknown'}"


@cache
def compiler_key() -> str:
    """Return a hash of the compiler's sources: kernels of different compilers may differ under the same config."""
    return compiler_source_hash()[:HASH_LETTERS]


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:HASH_LETTERS]
