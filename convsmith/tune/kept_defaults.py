"""Default configs that the cache on disk keeps, for the choices that precede the compilation of a network.

Which stages are fused depends on default configs of stages alone, most of which no kernel has. The model takes 10 to 30
ms for each, reading one takes 0.1 ms.
"""

from __future__ import annotations

from convsmith.compiler.cache import cache_key, disk_cache
from convsmith.diag.errors import ConfigError
from convsmith.machine.base import Machine
from convsmith.problem.problem import Problem
from convsmith.schedule.config import Config
from convsmith.tune.candidates import default_config

__all__ = ["kept_default"]


def kept_default(problem: Problem, target: Machine, threads: int = 1) -> Config:
    """Return the default config of the canonical `problem` on `threads` of `target`, from the cache if it has it."""
    cache = disk_cache()
    if cache is None:
        return default_config(problem, target, threads)
    key = cache_key("default config of", str(problem), str(threads), target.key)
    found = cache.decoded(key, _decoded)
    if found is None:
        found = default_config(problem, target, threads)
        cache.put(key, str(found).encode())
    return found


def _decoded(content: bytes) -> Config:
    """Return the config of an entry of the cache; ValueError if the entry is malformed."""
    try:
        return Config.parse(content.decode())
    except ConfigError as error:
        raise ValueError(error.message) from None
